"""Rankings by name: all are methods, with subnetworks of the highest scores, and have a cost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from helpers import Cases
from pruning.oracles import (
    PLANTED,
    QUICK,
    Adam,
    Subject,
    assert_same,
    encoded_for,
    full_logits,
    names,
    plain_kl,
    slopes,
    snapshot,
)

from mechcore.bench import methods
from mechcore.components import ModelShape
from mechcore.data.examples import Examples
from mechcore.evaluation.cost import counted
from mechcore.masking.means import MeanActivations
from mechcore.pruning import METHODS, Request, discretise
from mechcore.pruning.attribution import START, ugs_scores
from mechcore.pruning.methods import PruningMethod, attribution, ugs
from mechcore.pruning.teacher import example_order

N = 10
SHORT: dict[str, dict[str, Any]] = {
    "optimal": {"steps": 2, "batch_size": 5},
    "ugs": {"steps": 2, "n_masks": 3, "batch_size": 5},
}
"""Options of the rankings that are trained."""


SHORT_RANKINGS = {
    ranking.name: replace(ranking, scores=partial(ranking.scores, **SHORT.get(ranking.name, {})))
    for ranking in (attribution, ugs, *methods.RANKINGS)
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
    ranked = method_of(name)(request_)
    assert_same(before, snapshot(request_.model))
    seeds = [5, 6] if name == "ugs" else [3]
    assert [(subnetwork.seed, subnetwork.target_sparsity) for subnetwork in ranked] == [
        (seed, target_sparsity) for seed in seeds for target_sparsity in (0.7, 0.3)
    ]
    shape, ranking = ModelShape.of(request_.model), SHORT_RANKINGS[name]
    for subnetwork in ranked:
        of_seed = {} if ranking.seed is None else {"seed": subnetwork.seed}
        scores = ranking.scores(request_.model, request_.data, request_.means, **of_seed)
        assert torch.equal(subnetwork.scores, scores)
        assert subnetwork.mask == discretise(scores, subnetwork.target_sparsity, shape)
        assert subnetwork.method == name
        assert subnetwork.mask.identity is not None
    assert len({tuple(subnetwork.scores.flatten().tolist()) for subnetwork in ranked}) == len(seeds)


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


# -- Uniform gradient sampling: its draws, its steps a second time, and what it finds


def test_steps_are_those_of_a_second_implementation(cases: Cases) -> None:
    n, n_masks, lr = 3, 3, 0.1
    case, data = cases.get("bert", torch.float64), encoded_for("bert", n)
    means = MeanActivations.compute(case.model, data, n_samples=0)
    full = full_logits(case.reference, means, data, range(n))

    def kl(z: torch.Tensor) -> torch.Tensor:
        return plain_kl(case.reference, means, z.double(), data, rows, full[rows])

    theta, rows = torch.full((2, 5), START, dtype=torch.float64), list(range(n))
    penalty = kl(torch.zeros(2, 5)).item() / 10
    order = example_order([len(ids) for ids in data.input_ids], n, 7)
    generator, adam, waited = torch.Generator().manual_seed(7), Adam(theta), False
    for _ in range(2):
        rows = next(order)
        p, noise = theta.sigmoid(), torch.rand(n_masks, 2, 5, generator=generator)
        sums, counts = torch.zeros_like(theta), torch.zeros_like(theta)
        for one in noise:
            z = torch.empty_like(theta)
            for place in torch.cartesian_prod(torch.arange(2), torch.arange(5)).tolist():
                i, q = tuple(place), float(p[tuple(place)])
                low, width = q - q * (1 - q) / 2, q * (1 - q)
                u = float(one[i])
                z[i] = 1.0 if u <= low else 0.0 if u >= low + width else 1 - (u - low) / width
            inside = (z > 0) & (z < 1)
            sums += slopes(kl, z) * inside
            counts += inside
        waited |= bool((counts == 0).any())
        slope = sums / counts.clamp(min=1)
        gradient = torch.where(counts > 0, (slope + penalty) * p * (1 - p), 0.0)
        theta = theta - adam.change(gradient, lr)
    assert waited  # some component had no draw in between
    scores = ugs_scores(
        case.model, data, means, steps=2, lr=lr, n_masks=n_masks, batch_size=n, seed=7
    )
    assert float((scores - START).abs().max()) > lr
    torch.testing.assert_close(scores.double(), theta, rtol=0, atol=2e-3)


def test_the_planted_components_come_out_on_top(planted: Subject) -> None:
    scores = partial(ugs_scores, planted.model, planted.data, planted.means, lr=0.1, batch_size=8)
    trained = scores(steps=30)
    mask = discretise(trained, 0.7, ModelShape.of(planted.model))
    assert names(mask) == PLANTED
    loud = mask.values == 1
    assert float(trained[loud].min()) > START > float(trained[~loud].max())
    assert torch.equal(scores(steps=3), scores(steps=3))
    assert not torch.equal(scores(steps=3), scores(steps=3, seed=1))
