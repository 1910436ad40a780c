"""Intervals of means over examples, or over clusters of them, that hold with few examples, too.

``benchmarks/interval_coverage.py`` measures their coverage. Under 8 clusters there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Bool
from scipy import stats

from mechcore.errors import InputError
from mechcore.evaluation.clusters import (
    ByRow,
    Resamples,
    Rows,
    Sample,
    Sizes,
    Sums,
    covariance,
    degrees_of_freedom,
    drawn_clusters,
    resampled,
)

LEVEL = 0.95

_BLOCK = 64  # bootstrap resamples that are multiplied at once

_WIDEST = 3
"""Times Student's t that an end of the bootstrap may be away: resamples of ties have no spread."""


class Statistics(TypedDict, total=False):
    """Options of intervals, see `mean_intervals`: resamples, level and seed."""

    n_resamples: int
    level: float
    seed: int


@dataclass(frozen=True)
class Interval:
    """A mean with an interval; its ends are NaN for one example, or too few clusters."""

    mean: float
    low: float
    high: float

    def columns(self, name: str) -> dict[str, float]:
        """The mean in the column ``name``, and the ends in those that begin with it."""
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}


def mean_intervals(
    values: Rows,
    *,
    answers: bool = False,
    clusters: Any = None,
    n_resamples: int = 1000,
    level: float = LEVEL,
    seed: int = 0,
) -> list[Interval]:
    """Intervals of the means of several rows, from the same bootstrap resamples of examples.

    - Measured values: at each end the wider of Student's t and of the bootstrap-t (Efron and
      Tibshirani, 1993, section 12.5), but at most three times the former.
    - Differences of ``answers``, right (1) or wrong (0): Student's t after two more examples, half
      of one for, half of one against, and one that is neither (Agresti and Min, Statistics in
      Medicine 24, 2005); over clusters the wider of this and of the bootstrap-t.

    ``clusters`` are those of the examples, under any names, or a `Sample`.

    Raises:
        InputError: there is no value or resample, or the level is not between 0 and 1.
    """
    values = np.asarray(values, dtype=float)
    n = values.shape[1]
    _check(level, n, n_resamples)
    means, sample = values.mean(1), Sample.of(clusters, n)
    if n == 1 or sample.reason:
        return [Interval(float(mean), np.nan, np.nan) for mean in means]
    low, high = _ends(values, sample, answers, n_resamples, level, seed)
    return [Interval(*map(float, row)) for row in zip(means, low, high, strict=True)]


def mean_errors(values: Rows, *, answers: bool = False, clusters: Any = None) -> ByRow:
    """Standard errors of `mean_intervals`; NaN for fewer clusters than intervals need."""
    sample = Sample.of(clusters, values.shape[1])
    if sample.reason:
        return np.full(len(values), np.nan)
    sums, sizes = sample.totals(values)
    return np.sqrt(covariance(sums, sums, sizes, answers=answers))


def share_interval(right: Bool[np.ndarray, " example"], *, clusters: Any = None) -> Interval:
    """A share with Wilson's 95 % score interval (JASA 22, 1927); InputError without an example.

    That of clusters is the one of as many examples, drawn one by one, as say as much.
    """
    n = len(right)
    _check(LEVEL, n)
    share, sample = float(np.mean(right)), Sample.of(clusters, n)
    if n == 1 or sample.reason:
        return Interval(share, np.nan, np.nan)
    effective, reach = float(n), float(stats.norm.ppf((1 + LEVEL) / 2))
    if sample.clusters is not None or sample.strata is not None:
        sums, sizes = sample.totals(np.asarray(right, dtype=float)[None])
        variance = covariance(sums, sums, sizes)[0]
        # Clusters without any difference say as much as their number.
        effective = share * (1 - share) / variance if variance > 0 else float(len(sizes))
        reach = float(stats.t.ppf((1 + LEVEL) / 2, degrees_of_freedom(sizes)))
    more = reach**2 / effective
    half = reach * np.sqrt(share * (1 - share) / effective + more / (4 * effective)) / (1 + more)
    middle = (share + more / 2) / (1 + more)
    low, high = float(middle - half), float(middle + half)
    return Interval(share, max(0.0, min(low, share)), min(1.0, max(high, share)))  # up to rounding


def share_at_most(n_found: int, n: int) -> float:
    """One-sided 95 % bound of a share, ``n_found`` of ``n`` drawn (Clopper and Pearson, 1934)."""
    if n == 0:
        return float("nan")
    return 1.0 if n_found == n else float(stats.beta.ppf(LEVEL, n_found + 1, n - n_found))


def weighted_sum(intervals: Sequence[Interval], weights: Sequence[float]) -> Interval:
    """The weighted sum of independent estimates (Zou and Donner, Statistics in Medicine 27, 2008).

    >>> weighted_sum([Interval(5, 2, 9), Interval(1, -2, 5)], [1, -1])
    Interval(mean=4.0, low=-1.0, high=9.0)
    """
    total, below, above = 0.0, 0.0, 0.0
    for of, weight in zip(intervals, weights, strict=True):
        low, high = (of.low, of.high) if weight > 0 else (of.high, of.low)
        total += weight * of.mean
        below = math.hypot(below, weight * (of.mean - low))
        above = math.hypot(above, weight * (high - of.mean))
    return Interval(total, total - below, total + above)


def ratio_intervals(
    values: Rows, over: Rows, *, answers: bool = False, clusters: Any = None, level: float = LEVEL
) -> list[Interval]:
    """Intervals of ratios of two means over the same examples (Fieller, JRSS B 16, 1954).

    The ends are NaN where the mean of ``over`` may be 0.

    Raises:
        InputError: there is no value, or the level is not between 0 and 1.
    """
    top, bottom = (np.asarray(part, dtype=float) for part in (values, over))
    n = top.shape[1]
    _check(level, n)
    sample = Sample.of(clusters, n)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = top.mean(1) / bottom.mean(1)
    if n == 1 or sample.reason:
        return [Interval(float(ratio), np.nan, np.nan) for ratio in ratios]
    (top, sizes), (bottom, _) = sample.totals(top), sample.totals(bottom)
    x, y = (sums.sum(1) / (n + (2 if answers else 0)) for sums in (bottom, top))
    xx, yy, xy = (
        covariance(*pair, sizes, answers=answers, same=pair[0] is pair[1])
        for pair in ((bottom, bottom), (top, top), (top, bottom))
    )
    reach = stats.t.ppf((1 + level) / 2, degrees_of_freedom(sizes)) ** 2
    a, b, c = x**2 - reach * xx, x * y - reach * xy, y**2 - reach * yy
    with np.errstate(divide="ignore", invalid="ignore"):
        half = np.where(a > 0, np.sqrt(np.maximum(b**2 - a * c, 0)) / a, np.nan)
        middle = b / a
    ends = zip(ratios, middle - half, middle + half, strict=True)
    return [Interval(*map(float, row)) for row in ends]


def _check(level: float, n: int, n_resamples: int = 1) -> None:
    if not 0 < level < 1:
        raise InputError(f"interval: level is {level}; expected a share such as 0.95")
    if n_resamples < 1:
        raise InputError(f"interval: n_resamples is {n_resamples}; expected at least 1")
    if n == 0:
        raise InputError("interval: no example; at least one is needed")


def _ends(
    values: Rows, sample: Sample, answers: bool, n_resamples: int, level: float, seed: int
) -> tuple[ByRow, ByRow]:
    sums, sizes = sample.totals(values)
    centre = sums.sum(1) / (sizes.sum() + (2 if answers else 0))
    error = np.sqrt(covariance(sums, sums, sizes, answers=answers))
    student = stats.t.ppf((1 + level) / 2, degrees_of_freedom(sizes))
    low, high = np.full((2, len(values)), [[-student], [student]])
    if not answers or sample.clusters is not None:
        t = np.clip(_t(sums, sizes, n_resamples, seed), -_WIDEST * student, _WIDEST * student)
        outer = np.quantile(t, [(1 - level) / 2, (1 + level) / 2], axis=1)
        low, high = np.minimum(outer[0], low), np.maximum(outer[1], high)
    low, high = centre - high * error, centre - low * error
    if not answers:
        return low, high
    lowest, highest = np.minimum(values.min(1), -1), np.maximum(values.max(1), 1)
    return np.maximum(low, lowest), np.minimum(high, highest)


def _t(sums: Sums, sizes: Sizes, n_resamples: int, seed: int) -> Resamples:
    """Of resamples of the clusters, about the mean of all."""
    generator, n = np.random.default_rng(seed), len(sizes)
    t = np.empty((len(sums), n_resamples))
    for start in range(0, n_resamples, _BLOCK):
        block = range(start, min(start + _BLOCK, n_resamples))
        counts = drawn_clusters(generator, n, len(block)).astype(float)
        means, variances = resampled(sums, sizes, counts)
        error = np.sqrt(np.maximum(variances, 0) * n / (n - 1) / (sizes @ counts))
        with np.errstate(divide="ignore", invalid="ignore"):
            t[:, block.start : block.stop] = np.where(means == 0, 0, means / error)
    return t
