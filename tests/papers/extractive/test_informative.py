"""What belongs to a component, and what to none."""

from __future__ import annotations

import torch
from papers.extractive.tiny import Decoder

from mechcore.models.protocol import named_weights
from mechcore.papers.extractive.encoded import EncodedFacts
from mechcore.papers.extractive.passes import (
    Question,
    Sites,
    covered_names,
    hooks_needed,
    informative,
    look_back,
)
from mechcore.papers.extractive.ranks import prompt_batch
from mechcore.papers.extractive.scores import weight_effects
from mechcore.papers.extractive.weights import WeightDelta, linear_maps


def stored(case: Decoder, data: EncodedFacts, delta: WeightDelta) -> tuple[torch.Tensor, ...]:
    """Informative scores summed over layers and tokens: heads, MLPs, and W_out's part of these."""
    question = Question(prompt_batch(data.prompt_ids), data.option_ids, data.answers, range(5))
    sites = Sites.of(case.model)
    trace = look_back(case.model, question, sites, *hooks_needed(sites), by_head=True)
    whole, paper = (
        informative(case.model, sites, trace, delta, paper=paper) for paper in (False, True)
    )
    return tuple(part.flatten(1).sum(1) for part in (whole.heads, whole.mlps, paper.mlps / 2))


def test_covered_are_matrices_and_biases_of_components(tiny: Decoder) -> None:
    covered = covered_names(Sites.of(tiny.model))
    rest = set(named_weights(tiny.model)) - covered
    assert len(covered) == {"llama": 2 * 7, "bridge": 2 * 11, "hooked": 2 * 11}[tiny.kind]
    outputs = {m.bias for m in linear_maps(tiny.model) if m.part == "O"} - {None}
    assert outputs <= rest
    assert len(outputs) == (0 if tiny.kind == "llama" else 2)


def test_every_weight_alone_is_of_its_component(tiny: Decoder, data: EncodedFacts) -> None:
    """Each against the derivatives with respect to itself."""
    covered = covered_names(Sites.of(tiny.model))
    parts = {m.weight: m.part for m in linear_maps(tiny.model)}
    parts |= {m.bias: m.part for m in linear_maps(tiny.model) if m.bias is not None}
    for name in (each for each in tiny.of_all if ".1." in each or each not in covered):
        delta = tiny.of_all.only([name])
        heads, mlps, outs = stored(tiny, data, delta)
        expected = weight_effects(tiny.model, data, delta).to(heads)
        precise = {"rtol": 1e-8, "atol": 1e-10} if tiny.exact else {"rtol": 1e-3, "atol": 1e-4}
        none = torch.zeros_like(heads)
        attention = name in covered and parts[name] in "QKVO"
        torch.testing.assert_close(heads, expected if attention else none, **precise, msg=name)
        mlp = name in covered and not attention
        torch.testing.assert_close(mlps, expected if mlp else none, **precise, msg=name)
        is_out = mlp and parts[name] == "out" and name not in biases(tiny)
        torch.testing.assert_close(outs, expected if is_out else none, **precise, msg=name)


def biases(tiny: Decoder) -> set[str]:
    return {m.bias for m in linear_maps(tiny.model) if m.bias is not None}
