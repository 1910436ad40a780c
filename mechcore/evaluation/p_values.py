"""p-values of paired differences, and their corrections for how many there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from mechcore.errors import InputError
from mechcore.evaluation.intervals import (
    ByRow,
    Rows,
    Sample,
    degrees_of_freedom,
    drawn_clusters,
    mean_errors,
    resampled,
)

Correction: TypeAlias = Literal["benjamini-hochberg", "holm", "westfall-young", "none"]

N_RESAMPLES = 2000
"""Of the largest statistic, for Westfall and Young's correction."""

ROUNDING = 1e-9
"""What equal effects, summed in another order, differ by at most."""

FEW_CONTROLS = 40
"""Controls under which a twentieth of them is less than one on either side."""

RESOLUTION = 1e-4
"""Root mean square of differences, in nats or shares, under which they are those of rounding."""


def corrected(
    differences: Rows,
    correction: Correction,
    *,
    answers: bool = False,
    clusters: Any = None,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> tuple[ByRow, ByRow]:
    """`paired_p` of every row, and the same corrected for how many rows there are.

    The correction is of the false discovery rate (``"benjamini-hochberg"``), of the familywise
    error rate for any rows (``"holm"``) or, by ``n_resamples`` of the examples, for correlated ones
    (``"westfall-young"``), or ``"none"``; an `InputError` for another.
    """
    how: dict[str, Any] = {"answers": answers, "clusters": clusters}
    p = paired_p(differences, **how)
    if correction == "westfall-young":
        again = step_down_p(differences, **how, n_resamples=n_resamples, seed=seed)
        return p, np.maximum(p, again)
    return p, adjusted_p(p, correction)


def attained_level(alpha: float, draws: int) -> float:
    """How often p is at most ``alpha`` where there is nothing to find, with so many random draws.

    >>> attained_level(0.05, 19), attained_level(0.05, 38)
    (0.05, 0.02564...)
    """
    return math.floor(alpha * (1 + draws) + 1e-9) / (1 + draws)


def step_down_p(
    differences: Rows,
    *,
    answers: bool = False,
    clusters: Any = None,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> ByRow:
    """Familywise p-values of every row's mean being 0, by the largest statistic of resamples.

    Step-down maxT (Westfall and Young, Resampling-Based Multiple Testing, 1993, algorithm 2.8) in
    bootstrap resamples of the examples, or their clusters, of rows shifted to a mean of 0.
    """
    sums, sizes = Sample.of(clusters, differences.shape[1]).totals(differences)
    counts = drawn_clusters(np.random.default_rng(seed), len(sizes), n_resamples).astype(float)
    _, variance = resampled(sums, sizes, np.ones((len(sizes), 1)))
    n, n_again = sizes.sum(), sizes @ counts
    observed = _size_of_t(differences.mean(1, keepdims=True), variance, n, answers)[:, 0]
    # Resamples of clusters differ in size.
    shrunk = np.sqrt(n_again / n)
    again = _size_of_t(*resampled(sums, sizes, counts), n_again, answers) * shrunk
    order = np.argsort(-observed, kind="stable")
    largest = np.maximum.accumulate(again[order][::-1])[::-1]
    exceeded = (largest >= observed[order, None]).sum(1)
    p = np.empty(len(differences))
    p[order] = np.maximum.accumulate((1 + exceeded) / (1 + n_resamples))
    return np.where(observed == 0, 1.0, p)


def _size_of_t(mean: np.ndarray, variance: np.ndarray, n: Any, answers: bool) -> np.ndarray:
    """|t| up to a factor that all share; infinite where there is no spread but a mean."""
    if answers:  # with the two examples more of `covariance`, per example
        variance = variance + 1 / n + 2 * mean**2 / (n + 2)
    spread = np.sqrt(np.where(variance > 1e-20, variance, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.abs(mean) > 1e-12, np.abs(mean) / spread, 0.0)


def p_among(value: float, others: Sequence[float] | np.ndarray) -> float:
    """The share of a value and others, drawn by chance, that is at least as large as the value.

    >>> p_among(0.3, [0.1 + 0.2, 0.2, 0.4])
    0.75
    """
    return (1 + int((np.asarray(others) >= value - ROUNDING).sum())) / (1 + len(others))


def among_controls(value: float, controls: Sequence[float] | np.ndarray) -> dict[str, float]:
    """An effect among random controls: their mean, range (95 %, or all of few), and two-sided p."""
    n = len(controls)
    if not n:
        return {"n_controls": 0}
    low, high = np.quantile(controls, [0.025, 0.975] if n >= FEW_CONTROLS else [0.0, 1.0])
    figures = {"control_change": float(np.mean(controls)), "control_low": low, "control_high": high}
    return figures | {"n_controls": n, "p_control": p_among(abs(value), np.abs(controls))}


def paired_p(differences: Rows, *, answers: bool = False, clusters: Any = None) -> ByRow:
    """Two-sided p of a paired t test that every row's mean is 0, consistent with `mean_intervals`.

    Rows without any spread get the sign test's p, 2 to the 1 - n, of clusters; those of rounding
    (`RESOLUTION`) and a single example have p 1; too few clusters give NaN.
    """
    n, sample = differences.shape[1], Sample.of(clusters, differences.shape[1])
    if n == 1 or sample.reason:
        unknown = np.nan if sample.reason else 1.0
        return np.where(only_rounding(differences), 1.0, unknown)
    sizes = sample.totals(differences)[1]
    mean = differences.sum(1) / (n + (2 if answers else 0))
    error = mean_errors(differences, answers=answers, clusters=sample)
    constant = error * np.sqrt(n) <= 1e-12 * np.maximum(1, np.abs(mean))
    p = 2 * stats.t.sf(np.abs(mean) / np.where(constant, 1, error), degrees_of_freedom(sizes))
    p = np.where(constant, 2.0 ** (1 - len(sizes)), p)
    return np.where(only_rounding(differences), 1.0, p)


def only_rounding(differences: Rows) -> Bool[np.ndarray, " row"]:
    """Whether a row's differences are no more than those of rounding, see `RESOLUTION`."""
    return np.asarray(np.sqrt((differences**2).mean(1)) < RESOLUTION)


def adjusted_p(p: ByRow, correction: Correction) -> ByRow:
    """p-values corrected for how many are known; raises an InputError for another correction."""
    if correction == "none":
        return p
    if (unknown := np.isnan(p)).any():
        adjusted = p.copy()
        adjusted[~unknown] = adjusted_p(p[~unknown], correction) if not unknown.all() else ()
        return adjusted
    if correction == "benjamini-hochberg":
        return stats.false_discovery_control(p)
    if correction != "holm":
        known = ", ".join(map(repr, get_args(Correction)))
        raise InputError(f"correction is {correction!r}; expected one of {known}")
    order = np.argsort(p)
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1)
    return adjusted


def selective_p(p: Float[np.ndarray, "component change"]) -> Float[np.ndarray, "component change"]:
    """The p of every change, corrected for the changes of its component and for the components.

    The least alpha at which Benjamini-Hochberg selects R of m components by their Simes p, and,
    at alpha R / m, the change within its component (Benjamini and Bogomolov, JRSS B 76, 2014).
    """
    within = np.array([adjusted_p(row, "benjamini-hochberg") for row in p])
    simes = np.nanmin(np.where(np.isnan(within), np.inf, within), axis=1)
    ordered = np.sort(simes[np.isfinite(simes)])
    if not len(ordered):
        return within
    share = np.arange(1, len(ordered) + 1) / len(ordered)
    reached = np.minimum.accumulate((ordered / share)[::-1])[::-1]
    corrected: np.ndarray = np.maximum(within[..., None] / share, reached).min(-1)
    return np.minimum(corrected, 1)
