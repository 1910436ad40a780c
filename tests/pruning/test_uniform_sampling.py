"""Uniform gradient sampling: its draws, its steps a second time, and what it finds."""

from __future__ import annotations

from functools import partial

import torch
from helpers import Cases
from pruning.oracles import (
    PLANTED,
    Adam,
    Subject,
    encoded_for,
    full_logits,
    names,
    plain_kl,
    slopes,
)

from mechcore.components import ModelShape
from mechcore.masking.means import MeanActivations
from mechcore.pruning import discretise
from mechcore.pruning.attribution import START, ugs_scores
from mechcore.pruning.teacher import example_order


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
    found = ugs_scores(
        case.model, data, means, steps=2, lr=lr, n_masks=n_masks, batch_size=n, seed=7
    )
    assert float((found - START).abs().max()) > lr
    torch.testing.assert_close(found.double(), theta, rtol=0, atol=2e-3)


def test_the_planted_components_come_out_on_top(planted: Subject) -> None:
    scores = partial(ugs_scores, planted.model, planted.data, planted.means, lr=0.1, batch_size=8)
    found = scores(steps=30)
    mask = discretise(found, 0.7, ModelShape.of(planted.model))
    assert names(mask) == PLANTED
    loud = mask.values == 1
    assert float(found[loud].min()) > START > float(found[~loud].max())
    assert torch.equal(scores(steps=3), scores(steps=3))
    assert not torch.equal(scores(steps=3), scores(steps=3, seed=1))
