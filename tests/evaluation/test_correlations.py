"""Rank correlations as means, against scipy, resamples and examples that count a little more."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from mechcore.evaluation.correlations import partial_values, rank_values
from mechcore.evaluation.intervals import mean_intervals


@pytest.fixture
def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 4, 120).astype(float)  # with ties
    return x, x + rng.normal(size=(2, 120)), x + rng.exponential(size=120)


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


def test_intervals_hold_the_rho_of_all_texts() -> None:
    """Of a normal pair rho is 6 / pi * arcsin(r / 2); 18 clusters share half of the variance."""
    inside = {True: 0, False: 0}
    for seed in range(200):
        rng = np.random.default_rng(seed)
        cluster = np.repeat(np.arange(18), 8)
        a, b = (rng.normal(size=(2, 18))[:, cluster] + rng.normal(size=(2, 144))) / 2**0.5
        values = rank_values(a, (0.6 * a + 0.8 * b)[None])
        for clusters in (cluster, None):
            [end] = mean_intervals(values, clusters=clusters, n_resamples=60, seed=seed)
            inside[clusters is None] += end.low <= 6 / np.pi * np.arcsin(0.3) <= end.high
    assert inside[False] >= 0.91 * 200
    assert inside[True] < 0.85 * 200  # as if texts of a cluster had nothing in common
