"""Masks through the layers as functions against hooks: answers and gradients."""

from typing import Any

import pytest
import torch
from helpers import FEW, Cases, padded, texts

from mechcore.components import Mask, ModelShape
from mechcore.masking.interventions import masked, masked_stack
from mechcore.masking.means import MeanActivations
from mechcore.models.architectures.layers import stack_of
from mechcore.models.protocol import frozen, is_classifier, model_inputs, read_position


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
    found, expected = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
    with frozen(model):
        got = masked_stack(stack_of(model), inputs, read, found, means.z, means.mlp)
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
    for answers, leaf in ((got, found), (logits, expected)):
        (answers * weights).sum().backward()
        assert leaf.grad is not None
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-5)


def _inputs(model: Any, side: str = "right") -> dict[str, Any]:
    return model_inputs(model, padded(texts(), side))
