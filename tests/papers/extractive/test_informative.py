"""What belongs to a component, and what to none."""

from __future__ import annotations

import pytest
import torch
from papers.extractive.tiny import Decoder, last_tokens
from torch import Tensor

from mechcore.models.protocol import hook_mlp_out, hook_z, named_weights
from mechcore.papers.extractive.encoded import EncodedFacts, rewards
from mechcore.papers.extractive.passes import (
    Question,
    Sites,
    covered_names,
    hooks_needed,
    informative,
    look,
    look_back,
    rewards_of,
)
from mechcore.papers.extractive.weights import differentiable, linear_maps


def effects_of_weights(case: Decoder, question: Question) -> dict[str, torch.Tensor]:
    """<grad R, change> of every prompt, for each weight alone, by autograd."""
    effects: dict[str, list[torch.Tensor]] = {name: [] for name in case.of_all}
    with differentiable(case.model, case.of_all) as weights:
        for reward in rewards_of(case.model, question):
            gradients = torch.autograd.grad(reward, weights, retain_graph=True, allow_unused=True)
            for (name, change), gradient in zip(case.of_all.items(), gradients, strict=True):
                none = torch.zeros((), dtype=change.dtype)
                effects[name].append(none if gradient is None else (gradient * change).sum())
    return {name: torch.stack(parts).detach() for name, parts in effects.items()}


def test_covered_are_matrices_and_biases_of_components(tiny: Decoder) -> None:
    covered = covered_names(Sites.of(tiny.model))
    rest = set(named_weights(tiny.model)) - covered
    assert len(covered) == {"llama": 2 * 7, "bridge": 2 * 11, "hooked": 2 * 11}[tiny.kind]
    outputs = {m.bias for m in linear_maps(tiny.model) if m.part == "O"} - {None}
    assert outputs <= rest
    assert len(outputs) == (0 if tiny.kind == "llama" else 2)


def test_every_weight_alone_is_of_its_component(tiny: Decoder, question: Question) -> None:
    """Each against the derivatives with respect to itself; the paper has W_out's twice."""
    sites = Sites.of(tiny.model)
    trace = look_back(tiny.model, question, sites, *hooks_needed(sites), by_head=True)
    covered, expected = covered_names(sites), effects_of_weights(tiny, question)
    parts = {m.weight: m.part for m in linear_maps(tiny.model)}
    biases = {m.bias: m.part for m in linear_maps(tiny.model) if m.bias is not None}
    parts |= biases
    precise = {"rtol": 1e-8, "atol": 1e-10} if tiny.exact else {"rtol": 1e-3, "atol": 1e-4}
    for name, effect in expected.items():
        delta = tiny.of_all.only([name])
        whole, paper = (
            informative(tiny.model, sites, trace, delta, paper=paper) for paper in (False, True)
        )
        is_mlp = name in covered and parts[name] not in "QKVO"
        is_out = is_mlp and parts[name] == "out" and name not in biases
        for values, part in (
            (whole.heads, effect * (name in covered and not is_mlp)),
            (whole.mlps, effect * is_mlp),
            (paper.mlps / 2, effect * is_out),
        ):
            total = values.flatten(1).sum(1)
            torch.testing.assert_close(total, part.to(total), **precise, msg=name)


# -- Derivatives of activations against finite differences, and runs with values put in


def tolerance(case: Decoder) -> float:
    return 1e-9 if case.exact else 1e-5


def test_rewards_are_those_of_the_model(
    tiny: Decoder, data: EncodedFacts, question: Question
) -> None:
    sites, precise = Sites.of(tiny.model), {"rtol": tolerance(tiny), "atol": tolerance(tiny)}
    expected = rewards(tiny.model, data)
    for seen in (
        look(tiny.model, question, sites.outputs),
        look_back(tiny.model, question, sites, sites.outputs),
    ):
        torch.testing.assert_close(seen.rewards, expected, **precise)
        assert not seen.rewards.requires_grad
    torch.testing.assert_close(rewards_of(tiny.model, question), expected, **precise)


@pytest.mark.parametrize("name", [hook_z(0), hook_z(1), hook_mlp_out(0), hook_mlp_out(1)])
def test_derivatives_against_finite_differences(
    tiny: Decoder, question: Question, name: str
) -> None:
    sites = Sites.of(tiny.model)
    seen = look_back(tiny.model, question, sites, sites.outputs)
    value = seen.values[name]
    generator = torch.Generator().manual_seed(3)
    direction = torch.randn(value.shape, generator=generator, dtype=value.dtype)
    ups = [
        look(tiny.model, question, [], {name: value + step * direction}).rewards
        for step in (tiny.step, -tiny.step)
    ]
    slope = (ups[0] - ups[1]) / (2 * tiny.step)
    expected = (seen.gradients[name] * direction).flatten(1).sum(1)
    precise = 1e-6 if tiny.exact else 1e-2
    torch.testing.assert_close(slope, expected, rtol=precise, atol=precise / 10)


def test_derivatives_by_head_sum_to_those_of_shared_keys(
    tiny: Decoder, data: EncodedFacts, question: Question
) -> None:
    sites = Sites.of(tiny.model)
    shared = [a_map.hook for a_map in sites.maps if a_map.part in ("K", "V")]
    wanted = [*sites.outputs, *shared]
    seen = look_back(tiny.model, question, sites, wanted, by_head=True)
    for name in shared:
        by_head = as_heads(seen.head_gradients[name], 4)
        whole = as_heads(seen.gradients[name], 4 // sites.group)
        summed = by_head.unflatten(2, (4 // sites.group, sites.group)).sum(3)
        torch.testing.assert_close(summed, whole, rtol=1e-5, atol=1e-7)
        if sites.group > 1:
            assert not torch.allclose(by_head[:, :, 0], by_head[:, :, 1], rtol=1e-3)
        for row, end in enumerate(last_tokens(data)):
            assert not by_head[row, end + 1 :].any()


def as_heads(tensor: Tensor, n_heads: int) -> Tensor:
    return tensor if tensor.ndim == 4 else tensor.unflatten(2, (n_heads, -1))
