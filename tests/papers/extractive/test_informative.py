"""What belongs to a component, and what to none."""

from __future__ import annotations

import torch
from papers.extractive.tiny import Decoder

from mechcore.models.protocol import named_weights
from mechcore.papers.extractive.passes import (
    Question,
    Sites,
    covered_names,
    hooks_needed,
    informative,
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
            found = values.flatten(1).sum(1)
            torch.testing.assert_close(found, part.to(found), **precise, msg=name)
