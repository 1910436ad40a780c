"""Intervals of means over examples, or their clusters (docs/concepts/clusters.md), also of few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

from mechcore.errors import InputError
from mechcore.showing import Shown

Rows: TypeAlias = Float[np.ndarray, "row example"]
ByRow: TypeAlias = Float[np.ndarray, " row"]
Sums: TypeAlias = Float[np.ndarray, "row cluster"]
Sizes: TypeAlias = Float[np.ndarray, " cluster"]
Resamples: TypeAlias = Float[np.ndarray, "row resample"]

FEWEST = 8
"""Clusters under which there is no interval: fewer do not show how much clusters differ."""

LEVEL = 0.95

_BLOCK = 64  # bootstrap resamples that are multiplied at once

_WIDEST = 3
"""Times Student's t that an end of the bootstrap may be away: resamples of ties have no spread."""


@dataclass(frozen=True, eq=False, repr=False)
class Sample(Shown):
    """How some examples were drawn.

    Attributes:
        clusters: number of the cluster of every example, from 0; None: each is its own.
        strata: what every other sample has as often, such as subsets; None: nothing.
    """

    clusters: Int[np.ndarray, " example"] | None = None
    strata: np.ndarray | None = None

    @classmethod
    def of(cls, clusters: Any, n: int) -> Sample:
        """From a sample, or the clusters of ``n`` examples under any names; None: each its own."""
        if clusters is None or isinstance(clusters, Sample):
            return clusters or cls()
        names = np.asarray(clusters)
        if names.shape != (n,):
            raise InputError(
                f"clusters: found an array of shape {names.shape} for {n} examples; expected one "
                "cluster per example"
            )
        return cls(np.unique(names, return_inverse=True)[1].reshape(-1))

    @property
    def reason(self) -> str:
        """Why there is no interval; empty if there is one."""
        n = FEWEST if self.clusters is None else len(np.unique(self.clusters))
        if n >= FEWEST:
            return ""
        return f"{n} cluster{'s' * (n != 1)}: an interval for others needs at least {FEWEST}"

    def totals(self, values: Rows) -> tuple[Sums, Sizes]:
        """Sums over clusters, and their sizes; of strata without the differences between these."""
        if self.strata is not None:
            values = _within(values, self.strata)
        if self.clusters is None:
            return values, np.ones(values.shape[1])
        order = np.argsort(self.clusters, kind="stable")
        _, starts, sizes = np.unique(self.clusters[order], return_index=True, return_counts=True)
        return np.add.reduceat(values[:, order], starts, axis=1), sizes.astype(float)


def degrees_of_freedom(sizes: Sizes) -> float:
    """Of the error of a mean over clusters of these sizes, if clusters differ (Satterthwaite)."""
    w = sizes / sizes.sum()
    a, s = w**2 / (1 - w), (w**2).sum()
    trace = (a * (1 - 2 * w + s)).sum()
    between = s**2 * a.sum() ** 2 + 2 * a.sum() * (a * w**2).sum() + 2 * (a * w).sum() ** 2
    between -= 4 * s * a.sum() * (a * w).sum()
    own = (a**2 * ((1 + s - 2 * w) ** 2 - (s - 2 * w) ** 2)).sum()
    return float(trace**2 / (between + own))


def covariance(
    first: Sums, second: Sums, sizes: Sizes, *, answers: bool = False, same: bool = True
) -> ByRow:
    """Covariances of two means over the same examples, from `Sample.totals`.

    They are those of clusters' sums (Liang and Zeger, Biometrika 73, 1986), each corrected for its
    own share of the mean (CR2: Bell and McCaffrey, Survey Methodology 28, 2002). With ``answers``,
    two examples more count: half of one for, half of one against, one neither, for both values
    where they are the ``same``.
    """
    n = sizes.sum()
    more = 2 if answers else 0
    a, b = (sums.sum(1, keepdims=True) / (n + more) for sums in (first, second))
    correction = (1 - 1 / n) / (1 - sizes / n)
    products = ((first - sizes * a) * (second - sizes * b) * correction).sum(1)
    if not answers:
        return products / (n * (n - 1))
    return (products + same + 2 * (a * b)[:, 0]) / (n + 2) ** 2


def resampled(
    sums: Sums, sizes: Sizes, counts: Float[np.ndarray, "cluster resample"]
) -> tuple[Resamples, Resamples]:
    """Means of resamples less that of all, and the variances about them, of one example."""
    residuals = sums - sizes * (sums.sum(1, keepdims=True) / sizes.sum())
    n = sizes @ counts
    drawn = residuals @ counts
    means = drawn / n
    crossed = drawn if (sizes == 1).all() else (residuals * sizes) @ counts
    squares = residuals**2 @ counts - 2 * means * crossed + means**2 * (sizes**2 @ counts)
    return means, squares / n


def drawn_clusters(
    generator: np.random.Generator, n: int, n_resamples: int
) -> Int[np.ndarray, "cluster resample"]:
    """How often each of ``n`` clusters is in each resample of as many."""
    draws = [np.bincount(generator.integers(n, size=n), minlength=n) for _ in range(n_resamples)]
    return np.stack(draws, axis=1)


def _within(values: Rows, strata: np.ndarray) -> Rows:
    """Values of the same means that differ as those of each stratum differ."""
    number = np.unique(strata.astype(str), return_inverse=True)[1].reshape(-1)
    alike = np.empty(values.shape)
    mean = values.mean(1, keepdims=True)
    for stratum in range(number.max() + 1):
        rows = number == stratum
        n = int(rows.sum())
        part = values[:, rows]
        scale = np.sqrt(n / max(1, n - 1) * (1 - 1 / len(number)))
        alike[:, rows] = mean + (part - part.mean(1, keepdims=True)) * scale
    return alike


# -- intervals -------------------------------------------------------------------------------------


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

    The ends are NaN where the mean of ``over`` may be 0. Raises as `mean_intervals`.
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
