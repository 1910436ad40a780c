"""Examples that go together in clusters: errors, intervals, p-values, folds."""

import numpy as np
import pytest
import torch
from scipy import stats

from mechcore.data.examples import ALL
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import Evaluation, paired_change
from mechcore.evaluation.intervals import (
    FEWEST,
    Sample,
    degrees_of_freedom,
    mean_errors,
    mean_intervals,
    ratio_intervals,
    share_interval,
)
from mechcore.evaluation.p_values import corrected, paired_p
from mechcore.evaluation.recalibration import FOLDS, decompose, folds_of

RNG = np.random.default_rng(0)
SKEWED = RNG.exponential(size=(3, 24)) - 0.4
ANSWERS = RNG.choice([-1.0, 0.0, 1.0], size=(3, 24), p=[0.1, 0.6, 0.3])
TEN = np.repeat(np.arange(24), 10)
"""Clusters of ten copies of 24 examples."""


def ends(intervals: list) -> np.ndarray:
    return np.array([(interval.mean, interval.low, interval.high) for interval in intervals])


def test_errors_and_degrees_of_freedom_are_those_of_bell_and_mccaffrey() -> None:
    """Against their matrices, written out: clusters of 2 to 9, the largest sizes last."""
    sizes = np.array([2, 2, 3, 4, 4, 5, 7, 9, 9])
    clusters = np.repeat(np.arange(9), sizes)
    n, values = len(clusters), RNG.normal(size=(1, len(clusters)))
    residuals, error = values[0] - values[0].mean(), 0.0
    for cluster in range(9):
        rows = clusters == cluster
        hat = np.full((rows.sum(), rows.sum()), 1 / n)
        roots, vectors = np.linalg.eigh(np.eye(rows.sum()) - hat)
        adjusted = vectors / np.sqrt(roots) @ vectors.T @ residuals[rows]
        error += adjusted.sum() ** 2 / n**2
    shuffled = RNG.permutation(n)
    errors = mean_errors(values[:, shuffled], clusters=clusters[shuffled])
    assert errors == pytest.approx([np.sqrt(error)])
    w = sizes / n
    root = np.diag(w / np.sqrt(1 - w)) @ (np.eye(9) - np.outer(np.ones(9), w))
    form = root @ root.T
    df = np.trace(form) ** 2 / np.trace(form @ form)
    assert degrees_of_freedom(sizes.astype(float)) == pytest.approx(df)
    assert degrees_of_freedom(np.full(12, 5.0)) == pytest.approx(11)


def test_copies_given_as_clusters_say_no_more_than_the_examples() -> None:
    again = {"clusters": TEN}
    for figure in (mean_intervals, paired_p, mean_errors):
        np.testing.assert_allclose(
            *(
                ends(result) if figure is mean_intervals else result
                for result in (figure(SKEWED[:, TEN], **again), figure(SKEWED))
            )
        )
    shares = [ratio_intervals(SKEWED[:1], SKEWED[1:2])]
    shares.append(ratio_intervals(SKEWED[:1, TEN], SKEWED[1:2, TEN], **again))
    np.testing.assert_allclose(ends(shares[1]), ends(shares[0]))
    for correction in ("westfall-young", "holm"):
        np.testing.assert_allclose(
            corrected(SKEWED[:, TEN], correction, **again), corrected(SKEWED, correction)
        )
    # The two examples more of answers are two among ten times as many.
    once, ten = ends(mean_intervals(ANSWERS, answers=True)), (ANSWERS[:, TEN])
    clustered, alone = (
        ends(mean_intervals(ten, answers=True, **options)) for options in (again, {})
    )
    for i in range(3):
        assert np.diff(clustered[i, 1:]) == pytest.approx(np.diff(once[i, 1:]), rel=0.25)
        assert np.diff(alone[i, 1:]) < 0.4 * np.diff(once[i, 1:])


def test_a_share_of_clusters_is_that_of_as_many_examples_as_say_as_much() -> None:
    right = (np.arange(24) % 4 > 0)[TEN]
    share = share_interval(right, clusters=TEN)
    n, z = 23, stats.t.ppf(0.975, 23)  # p (1 - p) / 23 is the variance of the mean of 24
    middle = (0.75 + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(0.75 * 0.25 / n + z**2 / (4 * n**2))
    assert (share.mean, share.low, share.high) == pytest.approx(
        (0.75, middle - half, middle + half)
    )


@pytest.mark.parametrize("n_clusters", [1, FEWEST - 1, FEWEST])
def test_few_clusters_have_a_figure_and_no_interval(n_clusters: int) -> None:
    clusters = np.arange(24) % n_clusters
    known = n_clusters == FEWEST
    sample = Sample(clusters)
    assert (sample.reason == "") == known
    shares = share_interval(SKEWED[0] > 0, clusters=clusters)
    ratios = ratio_intervals(SKEWED, SKEWED + 2, clusters=clusters)
    for interval in (*mean_intervals(SKEWED, clusters=sample), shares, *ratios):
        assert np.isfinite(interval.mean)
        assert np.isfinite([interval.low, interval.high]).all() == known
    nothing = np.vstack([SKEWED, np.zeros(24)])
    p = paired_p(nothing, clusters=sample)
    assert np.isfinite(p).tolist() == [known] * 3 + [True]
    assert np.isnan(corrected(SKEWED, "benjamini-hochberg", clusters=sample)[1]).all() == (
        not known
    )


def test_clusters_are_one_for_each_example() -> None:
    with pytest.raises(InputError, match=r"shape \(3,\) for 24 examples"):
        mean_intervals(SKEWED, clusters=[1, 2, 3])


def test_strata_do_not_count_how_they_differ() -> None:
    strata = np.repeat(["a", "b"], [16, 8])
    values = SKEWED[:1] + np.where(strata == "a", 100, 0)
    parts = [SKEWED[0, strata == name] for name in "ab"]
    variance = sum((len(x) / 24) ** 2 * x.var(ddof=1) / len(x) for x in parts)
    errors = mean_errors(values, clusters=Sample(strata=strata))
    assert errors == pytest.approx([np.sqrt(variance)])
    assert mean_errors(values)[0] > 5 * errors[0]
    assert mean_errors(SKEWED, clusters=Sample(strata=np.full(24, ALL))) == pytest.approx(
        mean_errors(SKEWED)
    )


def made_up(population: str, clusters: np.ndarray | None) -> tuple[Evaluation, Evaluation]:
    """Answers to examples in two subsets, of which the second loses many more."""
    subsets = np.repeat(np.array(["a", "b"], dtype=object), 120)
    correct = torch.ones(240, 1).bool() & torch.tensor([True, False])
    wrong = (np.arange(240) % 10 < np.where(subsets == "a", 1, 6)).astype(float)
    logits = [torch.tensor(np.stack([1 - x, x], 1)) for x in (0 * wrong, wrong)]
    full, other = (Evaluation(rows, correct, subsets, "", clusters, population) for rows in logits)
    return full, other


def test_the_population_decides_what_an_interval_is_for() -> None:
    widths = {}
    for population, clusters in (("texts", None), ("clusters", TEN), ("texts", TEN)):
        interval = paired_change(*made_up(population, clusters))
        assert interval.mean == pytest.approx(-0.35)
        widths[population, clusters is None] = interval.high - interval.low
    # Clusters of ten lose all alike one or six; strata leave out how the subsets differ.
    assert widths["texts", False] < widths["texts", True] < widths["clusters", False]
    full, _ = made_up("clusters", TEN)
    part = full.part(np.arange(120, 160))
    assert part.samples()[""].reason.startswith("4 clusters")
    assert [*full.samples()] == ["", "other_"]


def test_a_cluster_is_in_one_fold_and_labels_are_in_all() -> None:
    label = np.repeat([0, 1], [300, 120])
    for clusters in (np.arange(420) // 12, np.arange(420) % 30):
        folds = folds_of(label, 3, clusters)
        assert all(len(np.unique(folds[clusters == unit])) == 1 for unit in np.unique(clusters))
        counts = np.histogram2d(label, folds, (2, FOLDS))[0]
        assert (counts.max(1) - counts.min(1) <= [36, 36]).all()
        assert (counts > 0).all()
        assert not np.array_equal(folds, folds_of(label, 4, clusters))


def test_a_label_in_one_cluster_has_a_figure_and_no_interval() -> None:
    rng, label = np.random.default_rng(2), np.repeat([0, 1], 100)
    logits = rng.normal(size=(2, 200, 2)) + 2 * np.eye(2)[label]
    correct, one = np.eye(2, dtype=bool)[label], np.where(label == 0, 0, np.arange(200))
    parts, plain = (
        decompose(logits[0], logits[1:], correct, clusters=ids).information for ids in (one, None)
    )
    np.testing.assert_allclose(parts.changes, plain.changes)
    assert np.isnan(parts.intervals()[0].low)
    assert np.isnan(parts.p_values()[0])
    assert np.isfinite(parts.drawn(Sample(strata=label)).intervals()[0].low)
