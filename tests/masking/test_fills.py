"""Fills by name: a registered one is used wherever fills are named."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import FEW, Case, Cases, edited, padded, reference_logits, texts
from torch import Tensor

from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError, NotFiniteError
from mechcore.masking.fills import FILLS, Fill, fill_of
from mechcore.masking.interventions import masked, masked_stack
from mechcore.masking.means import MeanActivations
from mechcore.models.architectures.layers import stack_of
from mechcore.models.protocol import frozen, is_classifier, model_inputs, read_position


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
        logits = run(padded(rows))
    by_hand = edited(case.reference, {(0, 1): means.z[0, 1] / 2}, {1: means.mlp[1] / 2})
    expected = reference_logits(by_hand, rows)
    whole = reference_logits(case.reference, rows)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4, check_dtype=False)
    assert (logits - whole).abs().max() > 1e-3
    assert fill_of(case.model, None, "ones", 0).values("mlp", 0, None, None).mean() == 1
    with pytest.raises(InputError, match=r"fill 'half' needs means; pass MeanActivations\.compute"):
        fill_of(case.model, None, "half", 0)
    with pytest.raises(InputError, match=r"fill 'halv': unknown \(did you mean 'half'\?\)"):
        fill_of(case.model, None, "halv", 0)


def _samples(values: Tensor) -> Tensor:
    return values.expand(3, *values.shape)


def _damaged(values: Tensor) -> Tensor:
    return values.clone().fill_(float("nan"))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (_samples, InputError, r"gave \(3, 4, 4\) for heads; expected a tensor \(4, 4\), \[head"),
        (_damaged, NotFiniteError, "gave values that are NaN or infinite"),
        (lambda values: None, InputError, "gave NoneType for heads; expected a tensor"),
    ],
)
def test_fills_of_other_things_are_named(cases: Cases, change: Any, error: Any, text: str) -> None:
    class Other(Fill):
        def values(self, kind: Any, layer: int, positions: Any, draws: Any) -> Any:
            return change(getattr(self.means, kind)[layer])

    model = cases.get("bert").model
    batch, mask = padded(texts()), Mask.full(model).without("L0.H1")
    means = MeanActivations.compute(model, [batch])
    refused = pytest.raises(error, match=rf"fill Other: values\('z', layer=0\) {text}")
    with refused, masked(model, mask, means, Other) as run:
        run(batch)


NO_MASK = r"mask: found {}; expected a Mask, such as Mask\.full\(model\)"
NO_MEANS = r"means: found {}; expected MeanActivations: MeanActivations\.compute\(model, data\), or"
A_NAME = r"expected a name \(mean, zero, resample, counterfactual, half, ones\), or a function"
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "no mask": ({"mask": None}, NO_MASK.format("NoneType")),
    "a list of masks": ({"mask": [Mask(torch.ones(2, 5))]}, NO_MASK.format("list")),
    "values of a mask": ({"mask": torch.ones(2, 5)}, NO_MASK.format("Tensor")),
    "a dict as means": ({"means": {"z": 1}}, NO_MEANS.format("dict")),
    "a file as means": ({"means": "means.safetensors"}, NO_MEANS.format("str")),
    "means for zeros": ({"means": {"z": 1}, "fill": "zero"}, NO_MEANS.format("dict")),
    "means that lack": ({"means": None}, "fill 'mean' needs means; pass MeanActivations"),
    "means that a class lacks": ({"means": None, "fill": Half}, "fill 'Half' needs means; pass"),
    "a number": ({"fill": 3}, f"fill: 3 gave a int; {A_NAME}"),
    "a function of no fill": ({"fill": lambda *_: 0}, f"fill: <lambda> gave a int; {A_NAME}"),
    "a name": ({"fill": "Zeros"}, r"fill 'Zeros': unknown \(did you mean 'zero'\?\); expected"),
}


def _masked(model: Any, batch: Any, **options: Any) -> None:
    with masked(model, **options) as run:
        run(batch)


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_something_else_gets_one_line(cases: Cases, kind: str) -> None:
    changes, message = OTHERS[kind]
    model, batch = cases.get("bert").model, padded(texts())
    means = MeanActivations.compute(model, [batch])
    options = {"mask": Mask.full(model).without("L0.H1"), "means": means} | changes
    with pytest.raises(InputError, match=message) as caught:
        _masked(model, batch, **options)
    assert "\n" not in str(caught.value)


# -- Masks through the layers as functions against hooks: answers and gradients


@pytest.fixture(params=(*FEW, "gpt2-lm"))
def model(request: pytest.FixtureRequest, cases: Cases) -> Any:
    return cases.get(request.param).model


@pytest.mark.parametrize(("side", "by_row"), [("right", False), ("left", False), ("right", True)])
def test_answers_and_gradients_are_those_of_hooks(model: Any, side: str, by_row: bool) -> None:
    """Left padding, and one mask for all rows or for each."""
    if side == "left" and is_classifier(model) and not read_position(model, _inputs(model)).any():
        pytest.skip("encoders read their first position, which is padding then")
    batch, shape = padded(texts(), side), ModelShape.of(model)
    inputs = _inputs(model, side)
    n = len(inputs["input_ids"])
    means = MeanActivations.compute(model, [batch])
    size = (2, n) if by_row else (2,)
    generator = torch.Generator().manual_seed(1)
    drawn = 1.5 * torch.rand(*size, shape.n_layers, shape.columns, generator=generator) - 0.25
    drawn = drawn.clamp(0, 1)
    read = read_position(model, inputs)
    values, expected = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
    with frozen(model):
        got = masked_stack(stack_of(model), inputs, read, values, means.z, means.mlp)
        mask = Mask(expected.flatten(0, 1) if by_row else expected, has_mlps=shape.has_mlps)
        with masked(model, mask, means) as run:
            if by_row:
                twice = {k: v.repeat(2, 1) for k, v in batch.items() if torch.is_tensor(v)}
                logits = run.rows(twice).unflatten(0, (2, n))
            else:
                logits = run(batch)
    if not is_classifier(model):
        logits = logits[:, torch.arange(n), read]
    torch.testing.assert_close(got, logits, rtol=0, atol=2e-5)
    weights = torch.randn(got.shape, generator=generator)
    for answers, leaf in ((got, values), (logits, expected)):
        (answers * weights).sum().backward()
        assert leaf.grad is not None
    torch.testing.assert_close(values.grad, expected.grad, rtol=1e-3, atol=1e-5)


def _inputs(model: Any, side: str = "right") -> dict[str, Any]:
    return model_inputs(model, padded(texts(), side))
