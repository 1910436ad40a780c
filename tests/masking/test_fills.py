"""Fills by name: a registered one is used wherever fills are named."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Case, Cases, edited, padded, reference_logits, texts
from pruning.oracles import encoded_for
from torch import Tensor

from mechcore.ablation import ablate
from mechcore.bench.alone import singles_scores
from mechcore.components import Mask
from mechcore.errors import InputError, NotFiniteError
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.fills import FILLS, Fill, fill_of
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.pruning import prune
from mechcore.pruning.attribution import attribution_scores
from mechcore.pruning.uniform_sampling import ugs_scores


class Half(Fill):
    """Half of the mean."""

    def values(self, kind: Any, layer: int, positions: Any, draws: Any) -> Tensor:
        return getattr(self.means, kind)[layer] / 2


class Ones(Fill):
    """Ones."""

    needs_means = False

    def values(self, kind: Any, layer: int, positions: Any, draws: Any) -> Tensor:
        cfg = self.model.cfg
        return torch.ones((cfg.n_heads, cfg.d_head) if kind == "z" else cfg.d_model)


@pytest.fixture(autouse=True)
def added() -> Iterator[None]:
    FILLS.register("half")(Half)
    FILLS.register("ones")(Ones)
    yield
    FILLS.remove("half")
    FILLS.remove("ones")


def test_a_registered_fill_is_as_weights_edited_by_hand(case: Case) -> None:
    rows = texts()
    means = MeanActivations.compute(case.model, [padded(rows)])
    mask = Mask.full(case.model).without("L0.H1", "L1.MLP")
    with masked(case.model, mask, means, "half") as run:
        found = run(padded(rows))
    by_hand = edited(case.reference, {(0, 1): means.z[0, 1] / 2}, {1: means.mlp[1] / 2})
    expected = reference_logits(by_hand, rows)
    whole = reference_logits(case.reference, rows)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4, check_dtype=False)
    assert (found - whole).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["half", "ones"])
def test_all_engines_agree_on_a_registered_fill(case: Case, name: str) -> None:
    data = padded(texts()) | {"labels": torch.zeros(len(texts()), dtype=torch.long)}
    means = None if name == "ones" else MeanActivations.compute(case.model, [data])
    sets = ["L0.H0", "L1.H1+L0.MLP"]
    tree, restart, plain = (
        ablate(case.model, sets, [data], means, fill=name, engine=engine, split="ood")
        for engine in ("tree", "restart", "reference")
    )
    for each in plain.without:
        drops = plain.changes(each, "margin")
        for found in (tree, restart):
            np.testing.assert_allclose(found.changes(each, "margin"), drops, rtol=0, atol=1e-4)
        assert np.abs(drops).max() > 1e-4


def test_what_a_fill_needs_is_asked_for(case: Case) -> None:
    assert fill_of(case.model, None, "ones", 0).values("mlp", 0, None, None).mean() == 1
    with pytest.raises(InputError, match=r"fill 'half' needs means; pass MeanActivations\.compute"):
        fill_of(case.model, None, "half", 0)
    with pytest.raises(InputError, match=r"fill 'halv': unknown \(did you mean 'half'\?\)"):
        fill_of(case.model, None, "halv", 0)


@pytest.mark.parametrize("engine", ["tree", "restart", "reference"])
def test_a_fill_of_another_shape_is_named(case: Case, engine: Any) -> None:
    class Samples(Fill):
        def values(self, kind: Any, layer: int, positions: Any, draws: Any) -> Tensor:
            return getattr(self.means, f"samples_{kind}")[:, layer]

    data = padded(texts()) | {"labels": torch.zeros(len(texts()), dtype=torch.long)}
    means = MeanActivations.compute(case.model, [data], n_samples=3)
    heads, size = case.model.cfg.n_heads, case.model.cfg.d_head
    with pytest.raises(InputError) as caught:
        ablate(case.model, ["L0.H1"], [data], means, fill=Samples, engine=engine, split="ood")
    assert str(caught.value) == (
        f"fill Samples: values('z', layer=0) gave (3, {heads}, {size}) for heads; expected a "
        f"tensor ({heads}, {size}), [head, d_head], or one for every token, [batch, pos, head, "
        "d_head]"
    )


@pytest.mark.parametrize("engine", ["tree", "restart", "reference"])
def test_a_fill_that_is_not_finite_is_named(case: Case, engine: Any) -> None:
    class Damaged(Fill):
        def values(self, kind: Any, layer: int, positions: Any, draws: Any) -> Tensor:
            values = getattr(self.means, kind)[layer].clone()
            values.view(-1)[-1] = float("nan")
            return values

    data = padded(texts()) | {"labels": torch.zeros(len(texts()), dtype=torch.long)}
    means = MeanActivations.compute(case.model, [data])
    message = r"fill Damaged: values\('z', layer=0\) gave values that are NaN or infinite"
    with pytest.raises(NotFiniteError, match=message):
        ablate(case.model, ["L0.H1"], [data], means, fill=Damaged, engine=engine, split="ood")


def test_a_fill_that_gives_no_tensor_is_named(case: Case) -> None:
    class Nothing(Fill):
        def values(self, kind: Any, layer: int, positions: Any, draws: Any) -> Any:
            return None

    mask = Mask.full(case.model).without("L1.MLP")
    message = r"fill Nothing: values\('mlp', layer=1\) gave NoneType for the MLP; expected a tensor"
    means = MeanActivations.compute(case.model, [padded(texts())])
    with (
        masked(case.model, mask, means, Nothing) as run,
        pytest.raises(InputError, match=message),
    ):
        run(padded(texts()))


# -- what is no mask, no means or no fill ---------------------------------------------------------

NO_MASK = r"mask: found {}; expected a Mask, as by Mask\.full\(model\)"
NO_MEANS = r"means: found {}; expected MeanActivations: MeanActivations\.compute\(model, data\), or"
A_NAME = r"expected a name \(mean, zero, resample, counterfactual, half, ones\), or what makes"
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "no mask": ({"mask": None}, NO_MASK.format("NoneType")),
    "a list of masks": ({"mask": [Mask(torch.ones(2, 5))]}, NO_MASK.format("list")),
    "values of a mask": ({"mask": torch.ones(2, 5)}, NO_MASK.format("Tensor")),
    "a dict as means": ({"means": {"z": 1}}, NO_MEANS.format("dict")),
    "a file as means": ({"means": "means.safetensors"}, NO_MEANS.format("str")),
    "means for zeros": ({"means": {"z": 1}, "fill": "zero"}, NO_MEANS.format("dict")),
    "means that lack": ({"means": None}, "fill 'mean' needs means; pass MeanActivations"),
    "means that a class lacks": ({"means": None, "fill": Half}, "fill 'Half' needs means; pass"),
    "a number": ({"fill": 3}, rf"fill: found 3 \(.*\); {A_NAME}"),
    "no fill": ({"fill": None}, rf"fill: found None \(.*\); {A_NAME}"),
    "a function of outputs": (
        {"fill": lambda x: x * 0},
        rf"fill: found <lambda> \(too many positional arguments\); {A_NAME}",
    ),
    "a function of no fill": ({"fill": lambda *_: 0}, f"fill: <lambda> made int; {A_NAME}"),
    "a name": ({"fill": "Zeros"}, r"fill 'Zeros': unknown \(did you mean 'zero'\?\); expected"),
}


def _masked(model: Any, batch: Any, **options: Any) -> None:
    with masked(model, **options) as run:
        run(batch)


def _evaluate(model: Any, batch: Any, **options: Any) -> None:
    labels = torch.zeros(len(batch["input_ids"]), dtype=torch.long)
    evaluate(model, [batch | {"labels": labels}], in_domain=False, **options)


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("use", [_masked, _evaluate])
def test_what_is_something_else_gets_one_line(cases: Cases, kind: str, use: Any) -> None:
    if (kind, use) == ("no mask", _evaluate):
        return  # that is the whole model
    changes, message = OTHERS[kind]
    model, batch = cases.get("bert").model, padded(texts())
    means = MeanActivations.compute(model, [batch])
    options = {"mask": Mask.full(model).without("L0.H1"), "means": means} | changes
    with pytest.raises(InputError, match=message) as caught:
        use(model, batch, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("train", [prune, attribution_scores, ugs_scores, singles_scores])
@pytest.mark.parametrize("means", [None, {"z": 1}])
def test_what_is_no_means_is_named_in_pruning(cases: Cases, train: Any, means: Any) -> None:
    options = {"sparsity": 0.5} if train is prune else {}
    message = NO_MEANS.format(type(means).__name__) + "|fill 'mean' needs means"
    with pytest.raises(InputError, match=message):
        train(cases.get("bert").model, encoded_for("bert", 4), means, **options)
