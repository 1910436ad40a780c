"""Losses without each component alone, against `evaluate`, closed forms and SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import Cases
from pruning.oracles import Subject, encoded_for
from pruning.test_attribution import adding_model, two_words

from mechcore import evaluate
from mechcore.bench.rankings import optimal_constants, optimal_scores, singles_scores
from mechcore.components import Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.masking.means import MeanActivations

N = 6


def losses(model: Any, data: EncodedExamples, constants: MeanActivations) -> torch.Tensor:
    """KL without each component alone, by `evaluate`; ``constants`` stand in."""
    shape = ModelShape.of(model)
    full = evaluate(model, data, in_domain=False).logits.double().log_softmax(-1)
    kl = torch.zeros(shape.n_layers, shape.columns, dtype=torch.float64)
    for component in shape.components:
        mask = Mask.full(model).without(component)
        logits = evaluate(model, data, mask=mask, means=constants, in_domain=False).logits
        got = logits.double().log_softmax(-1)
        kl[shape.index(component)] = (full.exp() * (full - got)).sum(-1).mean()
    return kl


@pytest.mark.parametrize("architecture", ["bert", "gpt2-lm"])
def test_singles_are_evaluations_of_each_component(cases: Cases, architecture: str) -> None:
    model, data = cases.get(architecture).model, encoded_for(architecture, N)
    means = MeanActivations.compute(model, data, n_samples=0)
    expected = losses(model, data, means)
    assert float(expected.min()) > 1e-5
    for batch_size in (1, 4):
        scores = singles_scores(model, data, means, batch_size=batch_size)
        torch.testing.assert_close(scores.double(), expected, rtol=1e-3, atol=1e-6)


# -- the best constants ---------------------------------------------------------------------------


@pytest.mark.hooked
def test_a_constant_output_is_found_where_it_is_read() -> None:
    # At B of "A B", where the answer is read, both heads are at 1/2, and the mean over both
    # positions is (3/4 | 1/4). With 1/2 in its place nothing is lost.
    model, data = adding_model(attn_only=True), two_words([[0, 1]])
    means = MeanActivations.compute(model, data, n_samples=0)
    assert means.z.flatten().tolist() == [0.75, 0.25]
    constants, scores = optimal_constants(model, data, means, steps=150, lr=0.1, batch_size=1)
    assert constants.z.flatten().tolist() == pytest.approx([0.5, 0.5], abs=1e-3)
    assert float(scores.max()) < 1e-6
    # (1/2, 3/2) has the log-odds 1; with a mean in place of one head's 1/2, they are 3/4.
    q, p = (1 / (1 + np.exp(-x)) for x in (0.75, 1.0))
    kl = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    assert singles_scores(model, data, means).flatten().tolist() == pytest.approx(
        [kl, kl], rel=1e-4
    )


def test_constants_stand_in_as_means_do_and_never_do_more_harm(loud: Subject) -> None:
    model, few = loud.model, loud.data.part(range(10))
    singles = singles_scores(model, few, loud.means, batch_size=5)
    # A rate that leads astray: most components keep their means.
    for lr, n_kept in ((0.02, (0, 3)), (30.0, (5, 10))):
        options: dict[str, Any] = {"steps": 4, "lr": lr, "batch_size": 5, "seed": 1}
        constants, scores = optimal_constants(model, few, loud.means, **options)
        assert bool((scores <= singles).all())
        expected = losses(model, few, constants)
        torch.testing.assert_close(scores.double(), expected, rtol=1e-3, atol=1e-6)
        kept = scores == singles
        assert n_kept[0] <= int(kept.sum()) <= n_kept[1]
        for layer, head in kept[:, :4].nonzero().tolist():
            assert torch.equal(constants.z[layer, head], loud.means.z[layer, head])
        again = optimal_scores(model, few, loud.means, **options)
        assert torch.equal(scores, again)
    assert not loud.means.z.requires_grad
