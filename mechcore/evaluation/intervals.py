"""Intervals of means over examples that hold what they say with few examples, too.

The percentile bootstrap does not: it is too short for skewed values, and where none of 30 answers
changes it says that none ever does. Coverage of all of these: ``benchmarks/interval_coverage.py``.

Examples may go together in clusters, see `mechcore.evaluation.clusters`; each is its own where
none are given. Under 8 clusters there is no interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from mechcore.errors import InputError
from mechcore.evaluation.clusters import (
    Sample,
    covariance,
    degrees_of_freedom,
    drawn_clusters,
    resampled,
)

_BLOCK = 64
"""Bootstrap resamples that are multiplied at once."""

_WIDEST = 3
"""Times Student's t that an end of the bootstrap may be away: resamples of ties have no spread."""


class Statistics(TypedDict, total=False):
    """Options of intervals, see `mean_intervals`: resamples, level and seed."""

    n_resamples: int
    level: float
    seed: int


@dataclass(frozen=True)
class Interval:
    """A mean with an interval.

    The ends are NaN where no interval is known: one example does not say how much examples differ,
    and a few clusters do not say how much clusters do.
    """

    mean: float
    low: float
    high: float

    def columns(self, name: str) -> dict[str, float]:
        """The mean in the column ``name``, and the ends in those that begin with it."""
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}


def mean_intervals(
    values: Float[np.ndarray, "row example"],
    *,
    answers: bool = False,
    clusters: Any = None,
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> list[Interval]:
    """Intervals of the means of several rows, from the same resamples of examples.

    For paired intervals of differences, pass the differences example by example. A single example
    has no interval: its ends are NaN.

    - Measured values: at each end the wider of Student's t and of the bootstrap-t, which takes
      skewness into account (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
      section 12.5), but at most three times the former.
    - Differences of answers that are right (1) or wrong (0): Student's t after two more examples,
      half of one for, half of one against, and one that is neither (Agresti and Min, Statistics in
      Medicine 24, 2005). Of clusters, whose sums are skewed as measured values are, again the wider
      of this and of the bootstrap-t.

    Args:
        values: one per example, in any unit.
        answers: which of the two.
        clusters: of every example, under any names; or a `Sample`.
        n_resamples: bootstrap resamples, drawn with ``seed``.
        level: of the intervals.
        seed: see there.

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


def mean_errors(
    values: Float[np.ndarray, "row example"], *, answers: bool = False, clusters: Any = None
) -> Float[np.ndarray, " row"]:
    """Standard errors of the means of several rows, those that their intervals are made of.

    For answers they are those after the two examples more of `mean_intervals`: that none of a few
    answers changed does not say that none ever does. NaN of fewer clusters than intervals need.
    """
    sample = Sample.of(clusters, values.shape[1])
    if sample.reason:
        return np.full(len(values), np.nan)
    sums, sizes = sample.totals(values)
    return np.sqrt(covariance(sums, sums, sizes, answers=answers))


def share_interval(
    right: Bool[np.ndarray, " example"], *, clusters: Any = None, level: float = 0.95
) -> Interval:
    """A share with Wilson's score interval (JASA 22, 1927).

    That of clusters is the one of as many examples, drawn one by one, as say as much.

    Raises:
        InputError: there is no example, or the level is not between 0 and 1.
    """
    n = len(right)
    _check(level, n)
    share, sample = float(np.mean(right)), Sample.of(clusters, n)
    if n == 1 or sample.reason:
        return Interval(share, np.nan, np.nan)
    effective, reach = float(n), float(stats.norm.ppf((1 + level) / 2))
    if sample.clusters is not None or sample.strata is not None:
        sums, sizes = sample.totals(np.asarray(right, dtype=float)[None])
        variance = covariance(sums, sums, sizes)[0]
        # Clusters without any difference say as much as their number.
        effective = share * (1 - share) / variance if variance > 0 else float(len(sizes))
        reach = float(stats.t.ppf((1 + level) / 2, degrees_of_freedom(sizes)))
    more = reach**2 / effective
    half = reach * np.sqrt(share * (1 - share) / effective + more / (4 * effective)) / (1 + more)
    middle = (share + more / 2) / (1 + more)
    low, high = float(middle - half), float(middle + half)
    return Interval(share, max(0.0, min(low, share)), min(1.0, max(high, share)))  # up to rounding


def share_at_most(n_found: int, n: int, *, level: float = 0.95) -> float:
    """Upper bound of a share of which ``n_found`` were found among ``n`` drawn at random.

    One-sided, by Clopper and Pearson (Biometrika 26, 1934); missing where none were drawn.

    Raises:
        InputError: the level is not between 0 and 1.
    """
    _check(level)
    if n == 0:
        return float("nan")
    return 1.0 if n_found == n else float(stats.beta.ppf(level, n_found + 1, n - n_found))


def weighted_sum(intervals: Sequence[Interval], weights: Sequence[float]) -> Interval:
    """The weighted sum of independent estimates, with an interval from their own.

    (Zou and Donner, Statistics in Medicine 27, 2008.)

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
    values: Float[np.ndarray, "row example"],
    over: Float[np.ndarray, "row example"],
    *,
    answers: bool = False,
    clusters: Any = None,
    level: float = 0.95,
) -> list[Interval]:
    """Intervals of the ratios of two means over the same examples, by Fieller's theorem.

    A ratio r is in the interval if 0 is in that of the mean of ``values - r * over`` (Fieller,
    Journal of the Royal Statistical Society B 16, 1954), which is Student's, for answers after the
    additions of `mean_intervals` to both. Where the mean of ``over`` may be 0, there is none: its
    ends are NaN.

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


def _check(level: float, n: int = 1, n_resamples: int = 1) -> None:
    if not 0 < level < 1:
        raise InputError(f"interval: level is {level}; expected a share such as 0.95")
    if n_resamples < 1:
        raise InputError(f"interval: n_resamples is {n_resamples}; expected at least 1")
    if n == 0:
        raise InputError("interval: no example; at least one is needed")


def _ends(
    values: Float[np.ndarray, "row example"],
    sample: Sample,
    answers: bool,
    n_resamples: int,
    level: float,
    seed: int,
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
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


def _t(
    sums: Float[np.ndarray, "row cluster"],
    sizes: Float[np.ndarray, " cluster"],
    n_resamples: int,
    seed: int,
) -> Float[np.ndarray, "row resample"]:
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
