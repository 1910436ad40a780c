"""Intervals of means over examples that hold what they say with few examples, too.

The percentile bootstrap does not: it is too short for skewed values, and where none of 30 answers
changes it says that none ever does. Coverage of all of these: ``benchmarks/interval_coverage.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

from mechcore.errors import InputError

_BLOCK = 64
"""Bootstrap resamples that are multiplied at once."""

_WIDEST = 3
"""Times Student's t that an end of the bootstrap may be away: resamples of ties have no spread."""


@dataclass(frozen=True)
class Interval:
    """A mean with an interval.

    The ends are NaN where no interval is known: one example does not say how much examples differ.
    """

    mean: float
    low: float
    high: float


def mean_interval(
    values: Float[np.ndarray, " example"],
    *,
    answers: bool = False,
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Interval of the mean of ``values`` over examples, see `mean_intervals`.

    For a paired interval of a difference, pass the differences example by example. A single
    example has no interval: its ends are NaN.

    Args:
        values: one per example, in any unit.
        answers: whether they are made of answers that are right or wrong.
        n_resamples: bootstrap resamples.
        level: of the interval.
        seed: of the resamples.

    Raises:
        InputError: there is no value or resample, or the level is not between 0 and 1.
    """
    row = np.asarray(values, dtype=float)[None]
    (found,) = mean_intervals(row, answers=answers, n_resamples=n_resamples, level=level, seed=seed)
    return found


def mean_intervals(
    values: Float[np.ndarray, "row example"],
    *,
    answers: bool = False,
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> list[Interval]:
    """Intervals of the means of several rows, from the same resamples of examples.

    - Measured values: at each end the wider of Student's t and of the bootstrap-t, which takes
      skewness into account (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
      section 12.5), but at most three times the former.
    - Differences of answers that are right (1) or wrong (0): Student's t after two more examples,
      half of one for, half of one against, and one that is neither (Agresti and Min, Statistics in
      Medicine 24, 2005).

    Args:
        values: one per example, in any unit.
        answers: which of the two.
        n_resamples: bootstrap resamples.
        level: of the intervals.
        seed: of the resamples.

    Raises:
        InputError: there is no value or resample, or the level is not between 0 and 1.
    """
    _check(level, n_resamples)
    values = np.asarray(values, dtype=float)
    n = values.shape[1]
    if n == 0:
        raise InputError("interval: no example; at least one is needed")
    means = values.mean(1)
    if n == 1:
        return [Interval(float(mean), np.nan, np.nan) for mean in means]
    if answers:
        low, high = _of_answers(values, level)
    else:
        low, high = _of_measures(values, n_resamples, level, seed)
    return [Interval(*map(float, each)) for each in zip(means, low, high, strict=True)]


def mean_errors(
    values: Float[np.ndarray, "row example"], *, answers: bool = False
) -> Float[np.ndarray, " row"]:
    """Standard errors of the means of several rows, those that their intervals are made of.

    For answers they are those after the two examples more of `mean_intervals`: that none of a few
    answers changed does not say that none ever does.

    Args:
        values: one per example, in any unit; at least two.
        answers: see `mean_intervals`.
    """
    n = values.shape[1]
    if not answers:
        return values.std(1, ddof=1) / np.sqrt(n)
    centre = values.sum(1) / (n + 2)
    errors: np.ndarray = np.sqrt((((values**2).sum(1) + 1) / (n + 2) - centre**2) / (n + 2))
    return errors


def share_interval(right: Bool[np.ndarray, " example"], *, level: float = 0.95) -> Interval:
    """A share with Wilson's score interval (JASA 22, 1927).

    Args:
        right: one per example, true or false.
        level: of the interval.

    Raises:
        InputError: there is no example, or the level is not between 0 and 1.
    """
    _check(level)
    n = len(right)
    if n == 0:
        raise InputError("interval: no example; at least one is needed")
    found = stats.binomtest(int(np.sum(right)), n).proportion_ci(level, method="wilson")
    ends = (np.nan, np.nan) if n == 1 else (found.low, found.high)
    return Interval(float(np.mean(right)), *map(float, ends))


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


def ratio_intervals(
    values: Float[np.ndarray, "row example"],
    over: Float[np.ndarray, "row example"],
    *,
    answers: bool = False,
    level: float = 0.95,
) -> list[Interval]:
    """Intervals of the ratios of two means over the same examples, by Fieller's theorem.

    A ratio r is in the interval if 0 is in that of the mean of ``values - r * over`` (Fieller,
    Journal of the Royal Statistical Society B 16, 1954), which is Student's, for answers after the
    additions of `mean_intervals` to both. Where the mean of ``over`` may be 0, there is none: its
    ends are NaN.

    Args:
        values: whose means are divided.
        over: by whose means, row by row.
        answers: whether both are differences of answers, right (1) or wrong (0).
        level: of the intervals.

    Raises:
        InputError: there is no value, or the level is not between 0 and 1.
    """
    _check(level)
    top, bottom = (np.asarray(each, dtype=float) for each in (values, over))
    n, more = top.shape[1], 2 if answers else 0
    if n == 0:
        raise InputError("interval: no example; at least one is needed")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = top.mean(1) / bottom.mean(1)
    if n == 1:
        return [Interval(float(ratio), np.nan, np.nan) for ratio in ratios]
    x, y = (each.sum(1) / (n + more) for each in (bottom, top))
    xx, yy, xy = (
        ((a * b).sum(1) + same * more / 2) / (n + more) - a_mean * b_mean
        for a, b, a_mean, b_mean, same in (
            (bottom, bottom, x, x, 1),
            (top, top, y, y, 1),
            (top, bottom, y, x, 0),
        )
    )
    reach = stats.t.ppf((1 + level) / 2, n - 1) ** 2 / (n + more if answers else n - 1)
    a, b, c = x**2 - reach * xx, x * y - reach * xy, y**2 - reach * yy
    with np.errstate(divide="ignore", invalid="ignore"):
        half = np.where(a > 0, np.sqrt(np.maximum(b**2 - a * c, 0)) / a, np.nan)
        middle = b / a
    ends = zip(ratios, middle - half, middle + half, strict=True)
    return [Interval(*map(float, each)) for each in ends]


def bootstrap_weights(
    n: int, n_resamples: int = 1000, seed: int = 0
) -> Float[np.ndarray, "example resample"]:
    """Weights of examples in resamples of them: ``values @ weights`` are the resampled means."""
    return _counts(np.random.default_rng(seed), n, n_resamples) / n


def _check(level: float, n_resamples: int = 1) -> None:
    if not 0 < level < 1:
        raise InputError(f"interval: level is {level}; expected a share such as 0.95")
    if n_resamples < 1:
        raise InputError(f"interval: n_resamples is {n_resamples}; expected at least 1")


def _of_answers(
    values: Float[np.ndarray, "row example"], level: float
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    n = values.shape[1]
    centre = values.sum(1) / (n + 2)
    reach = stats.t.ppf((1 + level) / 2, n - 1) * mean_errors(values, answers=True)
    lowest, highest = np.minimum(values.min(1), -1), np.maximum(values.max(1), 1)
    return np.maximum(centre - reach, lowest), np.minimum(centre + reach, highest)


def _of_measures(
    values: Float[np.ndarray, "row example"], n_resamples: int, level: float, seed: int
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    n_rows, n = values.shape
    generator = np.random.default_rng(seed)
    mean = values.mean(1, keepdims=True)
    centred = values - mean
    squares = centred**2
    t = np.empty((n_rows, n_resamples))
    for start in range(0, n_resamples, _BLOCK):
        block = range(start, min(start + _BLOCK, n_resamples))
        weights = _counts(generator, n, len(block)) / n
        means = centred @ weights
        spread = np.sqrt(np.maximum(squares @ weights - means**2, 0) / (n - 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            t[:, block.start : block.stop] = np.where(means == 0, 0, means / spread)
    student = stats.t.ppf((1 + level) / 2, n - 1)
    clipped = np.clip(t, -_WIDEST * student, _WIDEST * student)
    low, high = np.quantile(clipped, [(1 - level) / 2, (1 + level) / 2], axis=1)
    error = np.sqrt(squares.mean(1) / (n - 1))
    mean = mean[:, 0]
    return mean - np.maximum(high, student) * error, mean - np.minimum(low, -student) * error


def _counts(
    generator: np.random.Generator, n: int, n_resamples: int
) -> Int[np.ndarray, "example resample"]:
    """How often each example is in each resample."""
    draws = [np.bincount(generator.integers(n, size=n), minlength=n) for _ in range(n_resamples)]
    return np.stack(draws, axis=1)
