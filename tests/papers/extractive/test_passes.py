"""Derivatives of activations against finite differences, and runs with values put in."""

from __future__ import annotations

import pytest
import torch
from papers.extractive.tiny import Decoder, last_tokens
from torch import Tensor

from mechcore.models.protocol import hook_mlp_out, hook_z
from mechcore.papers.extractive.encoded import EncodedFacts, rewards
from mechcore.papers.extractive.passes import Question, Sites, look, look_back, rewards_of


def tolerance(case: Decoder) -> float:
    return 1e-9 if case.exact else 1e-5


def test_rewards_are_those_of_the_model(
    tiny: Decoder, data: EncodedFacts, question: Question
) -> None:
    sites, precise = Sites.of(tiny.model), {"rtol": tolerance(tiny), "atol": tolerance(tiny)}
    expected = rewards(tiny.model, data)
    for found in (
        look(tiny.model, question, sites.outputs),
        look_back(tiny.model, question, sites, sites.outputs),
    ):
        torch.testing.assert_close(found.rewards, expected, **precise)
        assert not found.rewards.requires_grad
    torch.testing.assert_close(rewards_of(tiny.model, question), expected, **precise)


@pytest.mark.parametrize("name", [hook_z(0), hook_z(1), hook_mlp_out(0), hook_mlp_out(1)])
def test_derivatives_against_finite_differences(
    tiny: Decoder, question: Question, name: str
) -> None:
    sites = Sites.of(tiny.model)
    found = look_back(tiny.model, question, sites, sites.outputs)
    value = found.values[name]
    generator = torch.Generator().manual_seed(3)
    direction = torch.randn(value.shape, generator=generator, dtype=value.dtype)
    ups = [
        look(tiny.model, question, [], {name: value + step * direction}).rewards
        for step in (tiny.step, -tiny.step)
    ]
    slope = (ups[0] - ups[1]) / (2 * tiny.step)
    expected = (found.gradients[name] * direction).flatten(1).sum(1)
    precise = 1e-6 if tiny.exact else 1e-2
    torch.testing.assert_close(slope, expected, rtol=precise, atol=precise / 10)


def test_derivatives_by_head_sum_to_those_of_shared_keys(
    tiny: Decoder, data: EncodedFacts, question: Question
) -> None:
    sites = Sites.of(tiny.model)
    shared = [each.hook for each in sites.maps if each.part in ("K", "V")]
    wanted = [*sites.outputs, *shared]
    found = look_back(tiny.model, question, sites, wanted, by_head=True)
    for name in shared:
        by_head = as_heads(found.head_gradients[name], 4)
        whole = as_heads(found.gradients[name], 4 // sites.group)
        summed = by_head.unflatten(2, (4 // sites.group, sites.group)).sum(3)
        torch.testing.assert_close(summed, whole, rtol=1e-5, atol=1e-7)
        if sites.group > 1:
            assert not torch.allclose(by_head[:, :, 0], by_head[:, :, 1], rtol=1e-3)
        for row, end in enumerate(last_tokens(data)):
            assert not by_head[row, end + 1 :].any()


def as_heads(tensor: Tensor, n_heads: int) -> Tensor:
    return tensor if tensor.ndim == 4 else tensor.unflatten(2, (n_heads, -1))
