"""Rankings by name: all are methods, with subnetworks of the highest scores, and have a cost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from pruning.oracles import QUICK, Subject, assert_same, snapshot

from mechcore.bench import methods
from mechcore.components import ModelShape
from mechcore.data.examples import Examples
from mechcore.evaluation.cost import counted
from mechcore.pruning import METHODS, Request, discretise
from mechcore.pruning.methods import PruningMethod, attribution, ugs

N = 10
SHORT: dict[str, dict[str, Any]] = {
    "optimal": {"steps": 2, "batch_size": 5},
    "ugs": {"steps": 2, "n_masks": 3, "batch_size": 5},
}
"""Options of the rankings that are trained."""


SHORT_RANKINGS = {
    each.name: replace(each, scores=partial(each.scores, **SHORT.get(each.name, {})))
    for each in (attribution, ugs, *methods.RANKINGS)
}


def method_of(name: str) -> PruningMethod:
    """Trained rankings take two steps."""
    return SHORT_RANKINGS.get(name) or METHODS[name]


@pytest.fixture(scope="module")
def request_(loud: Subject) -> Request:
    few = loud.data.part(range(N))
    labels = ["entailment", "neutral"] * (N // 2)
    few = replace(few, examples=Examples("x", few.examples.frame.assign(label=labels)))
    return Request(loud.model, few, loud.means, [0.7, 0.3], [5, 6], QUICK, data_seed=3)


@pytest.mark.parametrize("name", SHORT_RANKINGS)
def test_every_ranking_is_a_method(request_: Request, name: str) -> None:
    assert name in methods.RANKERS
    assert (name in METHODS) == (name in ("attribution", "ugs"))
    before = snapshot(request_.model)
    found = method_of(name)(request_)
    assert_same(before, snapshot(request_.model))
    seeds = [5, 6] if name == "ugs" else [3]
    assert [(each.seed, each.target_sparsity) for each in found] == [
        (seed, target_sparsity) for seed in seeds for target_sparsity in (0.7, 0.3)
    ]
    shape, ranking = ModelShape.of(request_.model), SHORT_RANKINGS[name]
    for each in found:
        of_seed = {} if ranking.seed is None else {"seed": each.seed}
        scores = ranking.scores(request_.model, request_.data, request_.means, **of_seed)
        assert torch.equal(each.scores, scores)
        assert each.mask == discretise(scores, each.target_sparsity, shape)
        assert each.method == name
        assert each.mask.identity is not None
    assert len({tuple(each.scores.flatten().tolist()) for each in found}) == len(seeds)


N_COMPONENTS, N_LAYERS = 10, 2
COSTS = {
    "attribution": (1, 1),
    "integrated": (1 + 8, 8),  # the full model, then every point
    "gradient-drop": (1, N_LAYERS),
    "eap-ig": (1 + 8 + 1, 8),  # and the pairs
    "singles": (1 + N_COMPONENTS, 0),
    "optimal": (1 + 2 * N_COMPONENTS + N_COMPONENTS, N_COMPONENTS),  # two steps of half of them
    "ugs": (2 * (1 + 1 + 3), 2 * 3),  # two seeds; nothing kept, then three masks
    "random": (0, 0),
    "l0": (1 + 8 * 4 * 6 / N, 8 * 4 * 6 / N),  # steps, masks, examples per step
}


@pytest.mark.parametrize("name", COSTS)
def test_passes_are_counted(request_: Request, name: str) -> None:
    with counted(request_.model, N) as cost:
        method_of(name)(request_)
    assert (cost.forwards, cost.backwards) == pytest.approx(COSTS[name])


def test_costs_are_known_of_every_ranking() -> None:
    assert set(SHORT_RANKINGS) <= set(COSTS)
