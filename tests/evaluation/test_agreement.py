"""Agreement of rankings: by hand, against scipy and plain loops, and where nothing can differ."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mechcore.evaluation.agreement import (
    halved,
    jaccard,
    jaccard_by_chance,
    largest,
    partial_values,
    rank_values,
    resampled,
    spearman,
    spearman_brown,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_rank_correlations_are_those_of_scipy() -> None:
    first = rng(1).integers(0, 5, (12, 7)).astype(float)  # with ties
    second = rng(2).normal(size=(12, 7))
    wanted = [stats.spearmanr(a, b).statistic for a, b in zip(first.T, second.T, strict=True)]
    assert spearman(first, second).tolist() == pytest.approx(wanted)
    one = [stats.spearmanr(a, second[:, 0]).statistic for a in first.T]
    assert spearman(first, second[:, :1]).tolist() == pytest.approx(one)


def test_twice_the_examples() -> None:
    assert spearman_brown(0.5) == pytest.approx(2 / 3)
    assert (spearman_brown(0), spearman_brown(1)) == (0, 1)
    assert np.isnan(spearman_brown(-0.1))


def test_the_jaccard_index_by_hand() -> None:
    assert jaccard(np.array([0, 1, 2]), 2, 3).tolist() == [0, 0.25, pytest.approx(2 / 3)]
    assert jaccard(0, 0, 0) == 1


@pytest.mark.parametrize(("n", "k"), [(3, 1), (5, 2), (6, 3), (4, 4)])
def test_the_jaccard_index_by_chance_is_that_of_all_pairs(n: int, k: int) -> None:
    choices = [set(choice) for choice in itertools.combinations(range(n), k)]
    every = [Fraction(len(a & b), len(a | b)) for a in choices for b in choices]
    assert jaccard_by_chance(n, k) == pytest.approx(float(sum(every) / len(every)))


def test_ties_are_broken_anew_in_every_column() -> None:
    values = np.zeros((4, 2000))
    values[0] = 1
    flags = largest(values, 2, rng())
    assert flags[0].all()
    assert (flags.sum(0) == 2).all()
    assert flags[1:].mean(1).tolist() == pytest.approx([1 / 3] * 3, abs=0.05)


def test_resamples_are_drawn_with_replacement() -> None:
    drawn = resampled(np.eye(5), 1000, rng())  # how often each example is there
    assert drawn.shape == (5, 1000)
    assert (drawn.sum(0) == 5).all()
    # Each is left out of (4 / 5) ** 5 of them.
    assert (drawn == 0).mean() == pytest.approx(0.8**5, abs=0.02)
    assert drawn.mean(1).tolist() == pytest.approx([1] * 5, abs=0.1)


@pytest.mark.parametrize("n", [6, 7])
def test_halves_have_every_example_once(n: int) -> None:
    first, second = halved(np.eye(n), 200, rng())
    assert set(np.unique(first)) == {0, 1}
    assert (first + second == 1).all()
    assert (first.sum(0) == n // 2).all()
    assert first.mean(1).tolist() == pytest.approx([(n // 2) / n] * n, abs=0.15)


def test_sums_are_those_of_the_examples_drawn() -> None:
    values = rng(5).normal(size=(3, 9))
    counts, (first, second) = resampled(np.eye(9), 70, rng(1)), halved(np.eye(9), 70, rng(2))
    drawn, halves = resampled(values, 70, rng(1)), halved(values, 70, rng(2))
    for sums, times in ((drawn, counts), (halves[0], first), (halves[1], second)):
        wanted = [[sum(v * c for v, c in zip(row, col)) for col in times.T] for row in values]  # noqa: B905
        np.testing.assert_allclose(sums, wanted, atol=1e-12)


def test_a_ranking_by_noise_agrees_with_its_resamples_but_not_between_halves() -> None:
    noise = rng(3).normal(size=(400, 200))
    first, second = halved(noise - noise.mean(1, keepdims=True), 1, rng(4))
    assert spearman(first, second)[0] < -0.9  # what one half has, the other lacks
    noise = rng(5).normal(size=(400, 200))
    assert abs(spearman(*halved(noise, 50, rng(6))).mean()) < 0.1
    rho = spearman(resampled(noise, 50, rng(7)), noise.sum(1, keepdims=True)).mean()
    assert rho == pytest.approx(6 / np.pi * np.arcsin(np.sqrt(0.5) / 2), abs=0.05)  # 0.69


# -- correlations as means ------------------------------------------------------------------------


@pytest.fixture
def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = rng()
    x = draw.integers(0, 4, 120).astype(float)  # with ties
    return x, x + draw.normal(size=(2, 120)), x + draw.exponential(size=120)


def weighted(statistic: Any, i: int, *columns: np.ndarray, times: int = 60) -> float:
    """What one more copy of example i beside ``times`` of each changes, for a weight of 1."""
    before = statistic(*(np.repeat(column, times) for column in columns))
    more = (np.append(np.repeat(column, times), column[i]) for column in columns)
    return (statistic(*more) - before) * (times * len(columns[0]) + 1)


def rho(x: np.ndarray, y: np.ndarray) -> float:
    return float(stats.spearmanr(x, y)[0])


def partial(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> float:
    """Of ranks, as the correlation of the residuals of two regressions."""
    x, y, z = (stats.rankdata(part) for part in (x, y, z))
    left = [part - np.polyval(np.polyfit(z, part, 1), z) for part in (x, y)]
    return float(np.corrcoef(*left)[0, 1])


def test_means_are_rho_and_spreads_its_influences(drawn: Any) -> None:
    x, y, _ = drawn
    values = rank_values(x, y)
    np.testing.assert_allclose(values.mean(1), [rho(x, row) for row in y])
    for i in (0, 7, 50):
        assert values[1, i] - values[1].mean() == pytest.approx(weighted(rho, i, x, y[1]), abs=5e-3)


def test_partial_correlations_are_those_of_residuals(drawn: Any) -> None:
    x, y, z = drawn
    values = partial_values(rank_values(x, y), rank_values(x, z[None]), rank_values(z, y))
    np.testing.assert_allclose(values.mean(1), [partial(x, row, z) for row in y])
    for i in (0, 7, 50):
        expected = weighted(partial, i, x, y[0], z)
        assert values[0, i] - values[0].mean() == pytest.approx(expected, abs=5e-3)


def test_what_does_not_vary_has_none(drawn: Any) -> None:
    x, y, _ = drawn
    assert np.isnan(rank_values(np.ones(120), y)).all()
    assert np.isnan(rank_values(x, 0 * y)).all()
    np.testing.assert_allclose(rank_values(x, x[None]), 1)
