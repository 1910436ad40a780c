from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from papers.extractive.tiny import Decoder, scaled
from torch import Tensor

from mechcore.errors import InputError, MismatchError
from mechcore.models.protocol import named_weights
from mechcore.papers.extractive.weights import (
    WeightDelta,
    applied,
    delta_from,
    differentiable,
    restored,
    snapshot,
    trainable_names,
)

IDS = torch.tensor([[2, 5, 9, 7, 11]])


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(IDS, return_type="logits")


def plain_logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def equal(delta: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return delta.keys() == expected.keys() and all(
        torch.equal(delta[name], expected[name]) for name in delta
    )


vectors = st.dictionaries(
    st.sampled_from("abc"), st.tuples(*[st.integers(-8, 8)] * 2), max_size=3
).map(
    lambda drawn: WeightDelta({n: torch.tensor(v, dtype=torch.float64) for n, v in drawn.items()})
)


def dense(delta: WeightDelta) -> Tensor:
    """All three vectors, zeros where there is none."""
    return torch.stack([delta.get(n, torch.zeros(2, dtype=torch.float64)) for n in "abc"])


@given(vectors, vectors)
def test_deltas_are_vectors(one: WeightDelta, two: WeightDelta) -> None:
    assert torch.equal(dense(one + two), dense(one) + dense(two))
    assert (one + two).keys() == one.keys() | two.keys()
    assert repr(one) == f"WeightDelta({len(one)} tensors, norm {float(dense(one).norm()):.4g})"


def test_a_delta_is_what_changed(tiny: Decoder) -> None:
    before = snapshot(tiny.model)
    assert not any(change.any() for change in delta_from(tiny.model, before).values())
    with applied(tiny.model, tiny.of_all):
        changes = delta_from(tiny.model, before)
        part = delta_from(tiny.model, {n: before[n] for n in tiny.names})
    for name, change in tiny.of_all.items():
        torch.testing.assert_close(changes[name], change, rtol=0, atol=1e-15)
    assert set(part) == set(tiny.names)


@pytest.mark.parametrize("which", ["matrices", "all"])
def test_logits_are_those_of_the_edited_checkpoint(tiny: Decoder, which: str) -> None:
    """Every weight changes exactly once, the parts of fused matrices included."""
    before, tolerance = logits(tiny.model), 1e-12 if tiny.exact else 1e-5
    torch.testing.assert_close(before, plain_logits(tiny.reference), rtol=tolerance, atol=tolerance)
    delta = tiny.of_all if which == "all" else tiny.of_matrices
    with applied(tiny.model, delta):
        after = logits(tiny.model)
    expected = plain_logits(tiny.references_after[which])
    assert (after - before).abs().max() > 0.1
    torch.testing.assert_close(after, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(logits(tiny.model), before)


def test_weights_come_back_bit_for_bit(tiny: Decoder) -> None:
    """Adding and subtracting would not bring them back."""
    model, before = tiny.model, snapshot(tiny.model)
    odd = scaled(1 / 3, tiny.of_all)
    name = tiny.names[0]
    assert not torch.equal((before[name] + odd[name]) - odd[name], before[name])
    with applied(model, odd):
        once = snapshot(model)
        with applied(model, odd):
            assert not equal(snapshot(model), once)
            with applied(model, tiny.of_matrices, 1e6):
                pass
        assert equal(snapshot(model), once)
    assert equal(snapshot(model), before)


def test_weights_come_back_after_an_exception(tiny: Decoder) -> None:
    before = snapshot(tiny.model)
    for change in (applied(tiny.model, tiny.of_all), restored(tiny.model)):
        with pytest.raises(ZeroDivisionError):
            spoil(tiny, change)
        assert equal(snapshot(tiny.model), before)


def spoil(tiny: Decoder, change: AbstractContextManager[object]) -> None:
    with change, torch.no_grad():
        named_weights(tiny.model)[tiny.names[0]].fill_(torch.nan)
        raise ZeroDivisionError


def test_derivatives_of_the_named_weights_alone(tiny: Decoder) -> None:
    first, second = tiny.names[:2]
    with differentiable(tiny.model, [second, first]) as weights:
        known = named_weights(tiny.model)
        assert weights[0] is known[second]
        assert weights[1] is known[first]
        assert {n for n, w in known.items() if w.requires_grad} == {first, second}
        tiny.model(IDS, return_type="logits").sum().backward()
        assert all(weight.grad is not None and weight.grad.any() for weight in weights)
    assert all(w.grad is None and not w.requires_grad for w in known.values())


def test_trainable_are_the_matrices(tiny: Decoder) -> None:
    weights, per_layer = named_weights(tiny.model), 7 if tiny.kind == "llama" else 6
    assert len(tiny.names) == len({*tiny.names}) == 2 * per_layer
    by_layer = [trainable_names(tiny.model, [layer]) for layer in range(2)]
    assert [*by_layer[0], *by_layer[1]] == tiny.names
    for layer, names in enumerate(by_layer):
        assert all(f".{layer}." in name for name in names)
    assert trainable_names(tiny.model, []) == []
    assert trainable_names(tiny.model, iter([1, 1])) == by_layer[1]
    words = ("ln", "norm", "embed", "wte", "wpe", "W_E", "W_pos", "W_U", "b_", "bias", "lm_head")
    rest = set(weights) - set(tiny.names)
    assert all(any(word in name for word in words) for name in rest)
    assert not any(weights[name].ndim < 2 for name in tiny.names)


def test_unknown_names_and_shapes(tiny: Decoder) -> None:
    model = tiny.model
    example = next(iter(named_weights(model)))
    with pytest.raises(InputError, match=f"the model has no nowhere; expected names as {example}"):
        snapshot(model, ["nowhere"])
    wrong = WeightDelta({tiny.names[0]: torch.zeros(1, 2)})
    message = r"has shape \(1, 2\), that of the model .*another model"
    with pytest.raises(MismatchError, match=message), applied(model, wrong):
        pass
    with pytest.raises(InputError, match="the model has no layer 2; expected 0 to 1"):
        trainable_names(model, [0, 2])
