"""Ablation at some positions against outputs replaced there by hand with plain torch hooks."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers import N_HEADS, N_LAYERS, Case, torch_hooks
from masking.test_counterfactual import plain
from pruning.oracles import encoded_for
from torch import Tensor

from mechcore.ablation import ablate, interactions, sets
from mechcore.ablation.sets import ComponentSet
from mechcore.components import Mask
from mechcore.errors import InputError
from mechcore.masking.counterfactual import Counterfactual, Positions, at_positions
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations

N = 5
ROWS = [4, 0, 3]


def by_hand(case: Case, values: Tensor, row: Any, at: int, means: MeanActivations) -> Tensor:
    """Hugging Face's logits of one text with mean activations at one position."""

    def there(own: Tensor, mean: Tensor, m: Tensor) -> Tensor:
        out = own.clone()
        out[:, at] = mean + m * (own[:, at] - mean)
        return out

    def on_z(layer: int, x: Tensor) -> Tensor:
        return there(x, means.z[layer].to(x), values[layer, :N_HEADS, None])

    def on_mlp(layer: int, x: Tensor) -> Tensor:
        return there(x, means.mlp[layer].to(x), values[layer, -1])

    with torch.no_grad(), torch_hooks(case.reference, on_z, on_mlp):
        return case.reference(input_ids=torch.tensor([row])).logits[0]


@pytest.mark.parametrize("positions", [0, 1, -1, -2, (1, 0, -1, 2, -2)], ids=str)
def test_it_is_replacing_outputs_there_by_hand(case64: Case, positions: Positions) -> None:
    data = plain(encoded_for(case64.architecture, N))
    means = MeanActivations.compute(case64.model, data)
    generator = torch.Generator().manual_seed(0)
    several = torch.rand(3, N_LAYERS, N_HEADS + 1, generator=generator, dtype=torch.float64)
    several[0] = Mask.full(case64.model).without("L0.H1", "L1.H3", "L0.MLP").values
    with torch.no_grad():
        with masked(case64.model, Mask(several), means, at_positions(positions)) as run:
            together = run(data.rows(ROWS))
        with masked(case64.model, Mask(several[1]), means, at_positions(positions)) as run:
            alone = run(data.rows(ROWS))
    for values, logits in zip(several, together, strict=True):
        for row, got in zip(ROWS, logits, strict=True):
            at = positions if isinstance(positions, int) else positions[row]
            expected = by_hand(case64, values, list(data.input_ids[row]), at, means)
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(alone, together[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("fill", ["mean", "counterfactual"])
@pytest.mark.parametrize("engine", ["tree", "restart"])
def test_engines_agree_with_one_forward_per_set(case: Case, engine: Any, fill: str) -> None:
    data = plain(encoded_for(case.architecture, N))
    means = MeanActivations.compute(case.model, data)
    made = Counterfactual.of(data.part([2, 3, 4, 0, 1])) if fill == "counterfactual" else fill
    options: dict[str, Any] = {"fill": made, "positions": -2, "split": "ood"}
    alone = sets.singles(case.model)
    shared = ablate(case.model, alone, data, means, engine=engine, **options)
    plainly = ablate(case.model, alone, data, means, engine="reference", **options)
    everywhere = ablate(case.model, alone, data, means, fill=made, split="ood")
    moved = 0.0
    for cut in alone:
        got, expected, whole = (
            answers.without[cut].logits for answers in (shared, plainly, everywhere)
        )
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)
        moved = max(moved, float(np.abs(got - whole).max()))
    assert moved > 1e-3


def test_of_several_components_the_later_ones_see_the_earlier_ones(case: Case) -> None:
    data = plain(encoded_for(case.architecture, N))
    means = MeanActivations.compute(case.model, data)
    together = ablate(case.model, ["L0.H1+L1.H3"], data, means, positions=1, split="ood")
    mask = Mask.full(case.model).without("L0.H1", "L1.H3")
    with torch.no_grad(), masked(case.model, mask, means, at_positions(1)) as run:
        logits = run(data.rows(range(N)))
    got = together.without[together.sets[0]].logits
    np.testing.assert_allclose(got, logits.numpy(), rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="use engine='reference'"):
        ablate(case.model, ["L0.H1+L1.H3"], data, means, positions=1, engine="tree")


@pytest.mark.parametrize("at", [0, -1])
def test_a_path_is_cut_there(case: Case, at: int) -> None:
    data = plain(encoded_for(case.architecture, N))
    means = MeanActivations.compute(case.model, data)
    last = f"L{N_LAYERS - 1}.MLP"  # which only the answer reads
    options: dict[str, Any] = {"positions": at, "split": "ood"}
    cut = ablate(case.model, [f"{last}>answer"], data, means, **options)
    whole = ablate(case.model, [last], data, means, **options)
    (got,), (expected,) = cut.without.values(), whole.without.values()
    np.testing.assert_allclose(got.logits, expected.logits, rtol=0, atol=1e-5)


def test_a_full_mask_changes_no_bit(case: Case) -> None:
    data = plain(encoded_for(case.architecture, N))
    means = MeanActivations.compute(case.model, data)
    runs = []
    with torch.no_grad():
        for fill in ("mean", at_positions(0)):
            with masked(case.model, Mask.full(case.model), means, fill) as run:
                runs.append(run(data.rows(ROWS)))
    assert torch.equal(*runs)


def test_what_cannot_be_placed_is_refused(case: Case) -> None:
    data = plain(encoded_for(case.architecture, N))
    means = MeanActivations.compute(case.model, data)
    for positions, message in (
        (99, "positions: an example has .* tokens, and none at position 99"),
        (-99, "none at position -99"),
        ([0, 1], "found 2 positions for 5 examples"),
    ):
        with pytest.raises(InputError, match=message):
            ablate(case.model, ["L0.H1"], data, means, positions=positions, split="ood")
    with pytest.raises(InputError, match="it is not known which tokens are run"):
        ablate(case.model, ["L0.H1>L1.H0.q"], data, means, positions=0, split="ood")
    batch = {"input_ids": torch.tensor([[1, 2]]), "attention_mask": torch.tensor([[1, 1]])}
    mask = Mask.full(case.model).without("L0.H1")
    with masked(case.model, mask, means, at_positions([0])) as run:
        with pytest.raises(InputError, match="one position for each example of encoded data"):
            run(batch)
        with pytest.raises(InputError, match="run batches by the value of the with statement"):
            case.model(batch["input_ids"], attention_mask=batch["attention_mask"])


def test_names_have_positions(case: Case) -> None:
    data = plain(encoded_for(case.architecture, N))
    means = MeanActivations.compute(case.model, data)
    own = [1, 0, 1, 0, 1]
    given = ["L0.H1@-1", "L0.H1", "L1.MLP@name", "L0.H1 @ 0", "L0.H1@0+L1.H3@0", "L1.H3@0"]
    options: dict[str, Any] = {"split": "ood"}
    got = ablate(case.model, given, data, means, positions={"name": own}, **options)
    assert [*map(str, got.without)] == [name.replace(" ", "") for name in given]
    expected: list[tuple[str, Positions | None]] = [
        *(("L0.H1", -1), ("L0.H1", None), ("L1.MLP", own)),
        *(("L0.H1", 0), ("L0.H1+L1.H3", 0), ("L1.H3", 0)),
    ]
    for answers, (name, at) in zip(got.without.values(), expected, strict=True):
        apart = ablate(case.model, [name], data, means, positions=at, **options)
        alone_there = apart.without[apart.sets[0]].logits
        np.testing.assert_allclose(answers.logits, alone_there, rtol=0, atol=1e-5)
    together, *alone = (
        got.changes(ComponentSet.of(given[i].split("+")), "margin") for i in (4, 3, 5)
    )
    table = interactions(got, n_resamples=2).set_index(["subset", "metric", "set"])
    effect = table.loc[("all", "margin", "L0.H1@0+L1.H3@0"), "interaction"]
    assert len(table.xs("all")) == 2  # accuracy and the margin
    assert effect == pytest.approx((together - sum(alone)).mean(), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "positions", "message"),
    [
        ("L0.H1@", None, r"set L0.H1@: expected one position of all components"),
        ("L0.H1@0+L1.H3", None, r"as in L0.H3@-1\+L2.H1@-1 or L0.H3@subject, or none"),
        ("L0.H1@a b", None, "expected one position of all components"),
        ("L0.H1@name", None, r"no positions of 'name', found none; expected .*\{'name': \["),
        ("L0.H1@name", {"end": -1}, "no positions of 'name', found those of end"),
        ("L0.H1@end", {"end": -1, "name": 0}, "no set is at name, of which there are positions"),
        ("L0.H1@0", -1, "found a set at 0, and other positions; leave one out"),
    ],
)
def test_positions_of_names_that_cannot_be_read(
    case: Case, name: str, positions: Any, message: str
) -> None:
    data = plain(encoded_for(case.architecture, N))
    with pytest.raises(InputError, match=message):
        ablate(case.model, [name], data, None, fill="zero", positions=positions, split="ood")
