"""Rankings of the benchmark by gradients, against those of plain torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import helpers
import pytest
import torch
from helpers import Cases
from pruning.oracles import encoded_for, plain_kl, plain_logits, slopes
from pruning.test_attribution import ONES, N, adding_model, close, prepared, two_words

from mechcore.bench.rankings import eap_ig_scores, gradient_drop_scores, integrated_scores
from mechcore.data.examples import Examples
from mechcore.errors import InputError
from mechcore.masking.counterfactual import paired
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.pruning.attribution import attribution_scores

# -- the path from everything at its mean to the full model ---------------------------------------


@pytest.mark.parametrize(
    ("architecture", "per_position"), [("bert", False), ("bert", True), ("gpt2-lm", False)]
)
def test_integrated_attribution_is_the_mean_slope_along_the_path(
    cases: Cases, architecture: str, per_position: bool
) -> None:
    case, data, means = prepared(cases, architecture, per_position)

    def kl(z: torch.Tensor) -> torch.Tensor:
        return plain_kl(case.reference, means, z, data, range(N))

    # The midpoints of three pieces.
    expected = -sum(slopes(kl, point * ONES) for point in (1 / 6, 3 / 6, 5 / 6)) / 3
    assert float(expected.abs().max()) > 5e-4
    scores = integrated_scores(case.model, data, means, n_points=3)
    assert scores.shape == (2, 5)
    close(scores, expected, 1e-4)


@pytest.mark.parametrize("architecture", ["bert", "gpt2-lm"])
def test_eap_ig_is_the_mean_slope_on_the_path_from_pairs(cases: Cases, architecture: str) -> None:
    case, data, means = prepared(cases, architecture)
    labels = ["entailment", "neutral", "entailment"] * (N // 3)
    data = replace(data, examples=Examples("x", data.examples.frame.assign(label=labels)))
    pairs = paired(data, 2)

    def kl(z: torch.Tensor) -> torch.Tensor:
        return plain_kl(case.reference, means, z, data, range(N), pairs=pairs)

    expected = -sum(slopes(kl, point * ONES) for point in (1 / 4, 3 / 4)) / 2
    assert float(expected.abs().max()) > 5e-4
    scores = eap_ig_scores(case.model, data, means, seed=2, n_points=2, batch_size=4)
    close(scores, expected, 1e-4)
    with pytest.raises(InputError, match="at least two labels; found 'entailment'"):
        eap_ig_scores(case.model, data.part([0, 2]), means)


# -- gradients through one layer after the other dropped ------------------------------------------


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A GPT-2 of three layers, loaded by the package and by Hugging Face alone."""
    path = tmp_path_factory.mktemp("deep")
    model = helpers.gpt2_language_model(n_layer=3)
    model.save_pretrained(path)
    return load_model(path, dtype=torch.float64), model.double()


def test_gradient_drop_is_a_loop_over_layers_that_are_detached(deep: tuple[Any, Any]) -> None:
    model, reference = deep
    data = encoded_for("gpt2-lm", N)
    means = MeanActivations.compute(model, data, n_samples=0)
    expected, plain = torch.zeros(3, 5, dtype=torch.float64), torch.zeros(3, 5)
    for row in range(N):
        for dropped in (None, 0, 1, 2):
            z = torch.ones(3, 5, dtype=torch.float64, requires_grad=True)
            p = plain_logits(reference, means, z, data, row, dropped=dropped).softmax(-1).max()
            (gradient,) = torch.autograd.grad((p / (1 - p)).log(), z)
            if dropped is None:
                plain += gradient.abs() / N
            else:
                assert not gradient[dropped].any()
                expected += gradient.abs() / 2 / N  # L - 1 = 2
    scores = gradient_drop_scores(model, data, means, batch_size=4)
    close(scores, expected)
    close(attribution_scores(model, data, means), plain)
    assert float((scores - plain).abs().max()) > 1e-3
    # The last layer acts directly alone: its score is the plain one.
    close(scores[2], plain[2])


@pytest.mark.hooked
def test_hand_computed_scores() -> None:
    """Of the model of `test_attribution`, at the only midpoint."""
    model = adding_model()
    means = MeanActivations.compute(model, {"input_ids": torch.tensor([[0]])}, n_samples=0)
    # "A B" with every mask value at 1/2, the only midpoint: z = (.75 | .25), x = (.75, 1.25),
    # mlp = (3, 0) + ((0, .75) - (3, 0)) / 2 = (1.5, .375): the logits are (2.25, 1.625), their
    # softmax q = (.651355, .348645). That of (.5, 3) is p = (.075858, .924142). The slope of the
    # KL by the logits is q - p = (.575497, -.575497). Slopes of the logits: head 0 (-.5, 0),
    # head 1 (0, .5 + 1.5 / 2) = (0, 1.25), the MLP's own (0, .75) - (3, 0) = (-3, .75).
    scores = integrated_scores(model, two_words([[0, 1]]), means, n_points=1)
    expected = [0.575497 * 0.5, 0.575497 * 1.25, 0.575497 * 3.75]
    assert scores[0].tolist() == pytest.approx(expected, abs=2e-6)
