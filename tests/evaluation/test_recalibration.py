"""Changes taken apart: against written-out answers, scikit-learn, and models of known truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from mechcore.errors import InputError
from mechcore.evaluation.evaluate import Evaluation
from mechcore.evaluation.recalibration import (
    LEAST,
    ONE_LABEL,
    Decomposition,
    decompose,
    fit_biases,
    reason_against,
)

TWO = np.eye(2, dtype=bool)


def of_margins(margin: np.ndarray) -> np.ndarray:
    """Logits of two classes, the second of which has this log-odds."""
    return np.stack([np.zeros_like(margin), margin], axis=-1)


def by_hand() -> Decomposition:
    """100 examples of each label, by the full model all right at margins of 1.

    Without the first set all margins are 5 larger: everything is the second label. Without the
    second, 25 of the second label look like the first. Without the third, both.
    """
    label = np.repeat([0, 1], 100)
    full = np.where(label == 1, 1.0, -1.0)
    confused = full.copy()
    confused[100:125] = -1
    changed = np.stack([full + 5, confused, confused + 5])
    return decompose(of_margins(full), of_margins(changed), TWO[label])


def test_two_labels_by_hand() -> None:
    parts = by_hand()
    # Without moving: all of the first label wrong; 75 of 100 right; all of the first label wrong.
    np.testing.assert_allclose(parts.accuracy.changes, [-0.5, -0.125, -0.5], atol=1e-12)
    # A threshold between the two margins gives 1, (1 + 0.75) / 2 and the same.
    np.testing.assert_allclose(parts.information.changes, [0, -0.125, -0.125], atol=1e-12)
    np.testing.assert_allclose(parts.threshold.changes, [-0.5, 0, -0.375], atol=1e-12)
    # Of the pairs 75 % are in order and 25 % are ties: 0.75 + 0.25 / 2.
    assert parts.auc is not None
    np.testing.assert_allclose(parts.auc.changes, [0, -0.125, -0.125], atol=1e-12)
    # The first label is no longer said; an eighth of the answers go from the second to the first.
    np.testing.assert_allclose(parts.shift.changes, [-0.5, -0.125, -0.5], atol=1e-12)
    for effect in (parts.accuracy, parts.information, parts.auc):
        assert effect.full == pytest.approx(1)
    assert parts.threshold.full == pytest.approx(0)


def test_three_labels_by_hand() -> None:
    # The first set raises the third label by 10; the second makes half of the first label look
    # like the second.
    label = np.repeat([0, 1, 2], 60)
    full = np.eye(3)[label]
    raised, confused = full + np.array([0, 0, 10]), full.copy()
    confused[:30] = [0, 1, 0]
    parts = decompose(full, np.stack([raised, confused]), np.eye(3, dtype=bool)[label])
    np.testing.assert_allclose(parts.accuracy.changes, [-2 / 3, -1 / 6], atol=1e-12)
    np.testing.assert_allclose(parts.information.changes, [0, -1 / 6], atol=1e-12)
    np.testing.assert_allclose(parts.threshold.changes, [-2 / 3, 0], atol=1e-12)
    # The third label is said by two thirds more; a sixth of the answers leave the first.
    np.testing.assert_allclose(parts.shift.changes, [2 / 3, -1 / 6], atol=1e-12)
    assert parts.auc is None


def test_a_threshold_that_gives_what_it_takes_shows_as_a_shift_alone() -> None:
    # Half of each label's examples are sure, the others near the threshold on the right side.
    label = np.repeat([0, 1], 100)
    full = np.where(label == 1, 1.0, -1.0) * np.where(np.arange(200) % 2, 3, 1)
    wrong = np.arange(200) % 4 == 0  # a quarter of the answers are wrong, near the threshold
    full[wrong] *= -1
    parts = decompose(of_margins(full), of_margins(full + 2)[None], TWO[label])
    # Margins -1 turn: of the first label 25 right answers are lost, of the second 25 are won.
    np.testing.assert_allclose(parts.accuracy.changes, [0], atol=1e-12)
    np.testing.assert_allclose(parts.information.changes, [0], atol=1e-12)
    np.testing.assert_allclose(parts.threshold.changes, [0], atol=1e-12)
    np.testing.assert_allclose(parts.shift.changes, [-0.25], atol=1e-12)


def test_labels_of_several_classes_are_answered_as_by_evaluate() -> None:
    # Entailment is class 1; the other label is classes 0 and 2, whose largest logit decides.
    label = np.repeat([0, 1], 80)
    correct = np.array([[True, False, True], [False, True, False]])[label]
    rng = np.random.default_rng(0)
    full, other = rng.normal(size=(2, 160, 3)) + correct
    parts = decompose(full, np.stack([other, full + np.array([0, 3, 0])]), correct)
    accuracies = [
        balanced_accuracy_score(
            label,
            np.where(
                Evaluation(
                    torch.tensor(logits), torch.tensor(correct), np.full(160, "s", dtype=object), ""
                ).correct,
                label,
                1 - label,
            ),
        )
        for logits in (full, other, full + np.array([0, 3, 0]))
    ]
    assert parts.accuracy.full == pytest.approx(accuracies[0])
    np.testing.assert_allclose(parts.accuracy.changes, np.array(accuracies[1:]) - accuracies[0])
    np.testing.assert_allclose(parts.information.changes[1], 0, atol=1e-12)
    assert parts.accuracy.changes[1] < -0.05


def test_classes_that_are_never_correct_are_wrong_answers_and_no_information() -> None:
    label = np.repeat([0, 1], 60)
    full = 3 * np.eye(3)[label]
    correct = np.eye(3, dtype=bool)[label]
    parts = decompose(full, (full + np.array([0, 0, 9]))[None], correct)
    np.testing.assert_allclose(parts.accuracy.changes, [-1])
    np.testing.assert_allclose(parts.information.changes, [0], atol=1e-12)


def random_case(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    label = np.repeat([0, 1], [60, 240])
    full = of_margins(rng.normal(size=300) + label)
    other = full + of_margins(rng.normal(size=(3, 300)) + 1)
    return full, other, label


def test_values_have_the_mean_and_the_spread_of_a_mean_over_labels() -> None:
    full, other, label = random_case()
    effect = decompose(full, other, TWO[label]).accuracy
    right = [(logits.argmax(-1) == label).astype(float) for logits in (full, *other)]
    for values, changed in zip(effect.values, right[1:], strict=True):
        changes = [(changed - right[0])[label == i] for i in (0, 1)]
        assert values.mean() == pytest.approx(np.mean([change.mean() for change in changes]))
        variance = sum(change.var() / len(change) for change in changes) / 4
        assert values.var() / len(values) == pytest.approx(variance)


def test_the_auc_is_scikit_learns_and_its_spread_delongs() -> None:
    full, other, label = random_case()
    full, other = np.round(full, 1), np.round(other, 1)  # with ties
    parts = decompose(full, other, TWO[label])
    assert parts.auc is not None
    margins = [logits[:, 1] - logits[:, 0] for logits in (full, *other)]
    areas = np.array([roc_auc_score(label, margin) for margin in margins])
    assert parts.auc.full == pytest.approx(areas[0])
    np.testing.assert_allclose(parts.auc.changes, areas[1:] - areas[0], atol=1e-12)
    # Variance by DeLong, from all pairs.
    won = []
    for margin in margins[:2]:
        pairs = margin[label == 1][:, None] - margin[label == 0]
        won.append((pairs > 0) + 0.5 * (pairs == 0))
    better = won[0] - won[1]
    variance = better.mean(1).var() / better.shape[0] + better.mean(0).var() / better.shape[1]
    assert parts.auc.values[0].var() / len(label) == pytest.approx(variance)


def test_the_bias_is_the_maximum_of_the_smoothed_balanced_accuracy() -> None:
    rng = np.random.default_rng(3)
    label = np.repeat([0, 1], [150, 350])
    margin = 2 * rng.normal(size=500) + 3 * label - 4
    biases = fit_biases(of_margins(margin)[None], label)
    weight = 1 / np.bincount(label)[label]
    middle = np.average(-margin, weights=weight)
    width = np.sqrt(np.average((-margin - middle) ** 2, weights=weight)) * 500 ** (-1 / 5)
    grid = np.linspace(-5, 12, 2001)
    side = np.where(label == 1, 1, -1)
    smoothed = [(weight * norm.cdf(side * (margin + bias) / width)).sum() for bias in grid]
    assert biases[0, 0] == 0
    assert biases[0, 1] == pytest.approx(grid[np.argmax(smoothed)], abs=width / 4)


@pytest.mark.parametrize("n_labels", [2, 3, 4])
def test_other_biases_change_nothing_but_the_biases_found(n_labels: int) -> None:
    rng = np.random.default_rng(0)
    label = np.arange(600) % n_labels
    scores = 2 * (np.eye(n_labels)[label] + rng.normal(size=(600, n_labels)))
    added = rng.normal(size=n_labels) * 3
    first, second = fit_biases(np.stack([scores, scores + added]), label)
    np.testing.assert_allclose((second - second[0]) + (added - added[0]), first - first[0])
    # The labels are alike, so the best biases are equal: they cost less than a point.
    right = ((scores + first).argmax(-1) == label).mean()
    assert right > (scores.argmax(-1) == label).mean() - 0.01


def test_overconfident_scores_lose_no_accuracy_by_recalibration() -> None:
    # Half of the first label looks like the second: at best, (0.5 + 1) / 2 are right. The bias of
    # largest likelihood makes both labels equally frequent among the answers, at a cost.
    rng = np.random.default_rng(0)
    label = np.repeat([0, 1], 1000)
    fooled = (label == 1) | (np.arange(2000) % 2 == 0)
    margin = np.where(fooled, 6.0, -6.0) + rng.normal(size=2000)
    parts = decompose(of_margins(margin), of_margins(margin)[None], TWO[label])
    assert parts.information.full == pytest.approx(0.75, abs=0.002)
    likeliest = brentq(lambda bias: expit(margin + bias).sum() - 1000, -20, 20)
    assert balanced_accuracy_score(label, margin + likeliest > 0) < 0.71


def test_sets_are_independent_of_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    full, other, label = random_case()
    together = decompose(full, other, TWO[label])
    monkeypatch.setattr("mechcore.evaluation.recalibration._BLOCK", 1)
    alone = decompose(full, other, TWO[label])
    np.testing.assert_array_equal(together.information.values, alone.information.values)


@pytest.mark.parametrize(
    ("correct", "reason"),
    [
        (TWO[[0] * 200], ONE_LABEL),
        (np.array([[1, 1, 0], [0, 1, 1]], dtype=bool)[[0, 1] * 100], "labels overlap"),
        (TWO[np.repeat([0, 1], [LEAST, LEAST - 1])], f"too few examples: {LEAST - 1}"),
    ],
)
def test_what_cannot_be_taken_apart(correct: Any, reason: str) -> None:
    assert reason_against(correct).startswith(reason)
    logits = np.zeros(correct.shape)
    with pytest.raises(InputError, match=reason):
        decompose(logits, logits[None], correct)
