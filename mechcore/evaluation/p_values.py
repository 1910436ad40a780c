"""p-values of paired differences, and their corrections for how many there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from mechcore.errors import InputError
from mechcore.evaluation.clusters import Sample, degrees_of_freedom, drawn_clusters, resampled
from mechcore.evaluation.intervals import mean_errors

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
    differences: Float[np.ndarray, "row example"],
    correction: Correction,
    *,
    answers: bool = False,
    clusters: Any = None,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    """`paired_p` of every row, and the same corrected for how many rows there are.

    Args:
        differences: paired by examples.
        correction: ``"benjamini-hochberg"`` of the false discovery rate; of the familywise error
            rate ``"holm"``, whatever the rows have to do with each other, or ``"westfall-young"``,
            which takes into account that they are correlated, as sets that share components are;
            or ``"none"``.
        answers: see `paired_p`, and ``clusters``, too.
        clusters: see there.
        n_resamples: of examples, for ``"westfall-young"``, drawn with ``seed``; no p is under
            1 / (n_resamples + 1).
        seed: see there.

    Raises:
        InputError: unknown correction.
    """
    how: dict[str, Any] = {"answers": answers, "clusters": clusters}
    p = paired_p(differences, **how)
    if correction == "westfall-young":
        again = step_down_p(differences, **how, n_resamples=n_resamples, seed=seed)
        return p, np.maximum(p, again)
    return p, adjusted_p(p, correction)


def attained_level(alpha: float, draws: int) -> float:
    """How often p is at most ``alpha`` where there is nothing to find, with so many random draws.

    Such a p is a multiple of 1 / (1 + draws), and all of these are equally likely.

    >>> attained_level(0.05, 19), attained_level(0.05, 38)
    (0.05, 0.02564...)
    """
    return math.floor(alpha * (1 + draws) + 1e-9) / (1 + draws)


def step_down_p(
    differences: Float[np.ndarray, "row example"],
    *,
    answers: bool = False,
    clusters: Any = None,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Float[np.ndarray, " row"]:
    """Familywise p-values of every row's mean being 0, by the largest statistic of resamples.

    Step-down maxT (Westfall and Young, Resampling-Based Multiple Testing, 1993, algorithm 2.8): a
    row's t is compared with the largest t among it and all rows of smaller t, in bootstrap
    resamples of the examples, or their clusters, under rows that were shifted to a mean of 0. A row
    of zeros has p 1.
    A resample without spread but with a mean counts as larger than any t. With ``answers`` every t
    is that of `paired_p`, with two examples more.
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
    """An effect among those of random controls.

    ``control_change`` is their mean; 95 % of them are between ``control_low`` and ``control_high``,
    or all of fewer than `FEW_CONTROLS`; ``p_control`` is the share of them and the effect itself
    that is at least as large in size. Missing where there is none.
    """
    n = len(controls)
    if not n:
        return {"n_controls": 0}
    low, high = np.quantile(controls, [0.025, 0.975] if n >= FEW_CONTROLS else [0.0, 1.0])
    figures = {"control_change": float(np.mean(controls)), "control_low": low, "control_high": high}
    return figures | {"n_controls": n, "p_control": p_among(abs(value), np.abs(controls))}


def paired_p(
    differences: Float[np.ndarray, "row example"], *, answers: bool = False, clusters: Any = None
) -> Float[np.ndarray, " row"]:
    """Two-sided p of a paired t test that every row's mean is 0.

    Rows without any spread get the sign test's p, 2 to the 1 - n, of clusters; those that do not
    differ from 0 by more than rounding, see `RESOLUTION`, have p 1. A single example has p 1, too.
    Other rows of fewer clusters than intervals need have none: NaN. With ``answers``, the test has
    the two examples more of `mean_intervals`: where answers of a rare label count much and few of
    them changed, their own spread is far too small.
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


def only_rounding(differences: Float[np.ndarray, "row example"]) -> Bool[np.ndarray, " row"]:
    """Whether a row's differences are no more than those of rounding, see `RESOLUTION`."""
    return np.asarray(np.sqrt((differences**2).mean(1)) < RESOLUTION)


def adjusted_p(p: Float[np.ndarray, " row"], correction: Correction) -> Float[np.ndarray, " row"]:
    """p-values corrected for how many are known, by a correction that needs nothing else.

    Raises:
        InputError: unknown correction.
    """
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

    At a level alpha, R of m components are selected by Benjamini-Hochberg on their Simes p, and
    within each of them Benjamini-Hochberg at alpha R / m selects changes. The corrected p is the
    least alpha at which a change is selected; the smallest of a component is that of the component
    (Benjamini and Bogomolov, J. R. Stat. Soc. B 76, 2014). Those not measured are NaN, and stay so.
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
