"""How far two rankings agree, and how far other examples would give the same ranking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from mechcore.evaluation.p_values import p_among

Values: TypeAlias = Float[np.ndarray, "row thing"]
OfThings: TypeAlias = Float[np.ndarray, " thing"]
ByExample: TypeAlias = Float[np.ndarray, "thing example"]
Columns: TypeAlias = Float[np.ndarray, "thing column"]

_BLOCK = 64  # draws of examples that are multiplied at once

SHUFFLES = 9999
"""Random permutations that a rho is compared with: no p is under 1 / 10,000."""


def spearman(first: Columns, second: Columns) -> Float[np.ndarray, " column"]:
    """Spearman's rho of every column with that of the other, or its one; NaN for a constant."""
    a, b = (stats.rankdata(part, axis=0) - (len(part) + 1) / 2 for part in (first, second))
    with np.errstate(invalid="ignore"):
        rho: np.ndarray = (a * b).sum(0) / np.sqrt((a**2).sum(0) * (b**2).sum(0))
    return rho


def rank_values(x: OfThings, y: Values) -> Values:
    """Spearman's rho of ``x`` with every row plus the influence of each thing on it (Hampel, 1974).

    Their mean is rho, and its interval and p are those of a mean. NaN for a constant.
    """
    a, above_x = _ranked(x)
    aa = a * a + 2 * above_x(a)
    rows = []
    for row in y:
        b, above_y = _ranked(row)
        ab, bb = a * b + above_x(b) + above_y(a), b * b + 2 * above_y(b)
        with np.errstate(divide="ignore", invalid="ignore"):  # all have means of thrice a moment
            scale = np.sqrt(aa.mean() * bb.mean())
            rho = ab.mean() / scale
            rows.append(rho + 3 * (ab / scale - rho / 2 * (aa / aa.mean() + bb / bb.mean())))
    return np.array(rows).reshape(y.shape)


def partial_values(xy: Values, xz: Values, yz: Values) -> Values:
    """Those of the partial correlations of x and y given z, from those of three correlations."""
    r, a, b = (part.mean(1, keepdims=True) for part in (xy, xz, yz))
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = np.sqrt((1 - a**2) * (1 - b**2))
        partial = (r - a * b) / rest
        of_a = partial * a / (1 - a**2) - b / rest
        of_b = partial * b / (1 - b**2) - a / rest
        return np.asarray(partial + (xy - r) / rest + of_a * (xz - a) + of_b * (yz - b))


def _ranked(values: OfThings) -> tuple[OfThings, Callable[[OfThings], OfThings]]:
    """Ranks about 0 as shares, and sums of weights over the things above each, ties by half."""
    n, number = len(values), np.unique(values, return_inverse=True)[1].reshape(-1)

    def above(weights: OfThings) -> OfThings:
        totals = np.bincount(number, weights)
        return np.asarray((totals[::-1].cumsum()[::-1] - totals / 2)[number] / n)

    return (stats.rankdata(values) - (n + 1) / 2) / n, above


def permuted_within(first: OfThings, second: OfThings, groups: np.ndarray) -> float:
    """Two-sided p of Spearman's rho, among `SHUFFLES` random permutations within groups."""
    generator, (x, y) = np.random.default_rng(0), map(stats.rankdata, (first, second))
    observed, mean, drawn = x @ y, 0.0, np.zeros(SHUFFLES)
    for group in np.unique(groups):
        here = groups == group
        mean += x[here].sum() * y[here].mean()
        drawn += generator.permuted(np.tile(y[here], (SHUFFLES, 1)), axis=1) @ x[here]
    return p_among(abs(observed - mean), np.abs(drawn - mean))


def spearman_brown(rho: float) -> float:
    """What halves of the examples that agree so far predict for all; NaN below 0."""
    return 2 * rho / (1 + rho) if rho >= 0 else float("nan")


def jaccard(shared: Any, first: Any, second: Any) -> Float[np.ndarray, " *sets"]:
    """Jaccard index of two sets, or of many, from their sizes and what they share; 1 of none."""
    either = np.asarray(first + second - shared)
    return np.where(either > 0, shared / np.where(either > 0, either, 1), 1.0)


def jaccard_by_chance(n: int, k: int) -> float:
    """Mean Jaccard index of two random sets of ``k`` of ``n`` things; exact."""
    shared = np.arange(k + 1)
    return float(stats.hypergeom.pmf(shared, n, k, k) @ jaccard(shared, k, k))


def largest(
    values: Columns, k: int, generator: np.random.Generator
) -> Bool[np.ndarray, "thing column"]:
    """Which things are the ``k`` largest of every column, with ties broken at random in each."""
    order = np.lexsort((generator.random(values.shape), values), axis=0)
    flags = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(flags, order[len(values) - k :], True, axis=0)
    return flags


def resampled(values: ByExample, n_resamples: int, generator: np.random.Generator) -> Columns:
    """Sums over bootstrap resamples of the examples; of whole numbers they are exact."""
    n = values.shape[1]
    even = np.full(n, 1 / n)
    return _sums(values, n_resamples, lambda size: generator.multinomial(n, even, size))


def halved(
    values: ByExample, n_splits: int, generator: np.random.Generator
) -> tuple[Columns, Columns]:
    """Sums over two random halves of the examples, drawn one by one, split again and again."""
    n = values.shape[1]
    first = np.arange(n) < n // 2
    sums = _sums(
        values, n_splits, lambda size: generator.permuted(np.tile(first, (size, 1)), axis=1)
    )
    return sums, values.sum(1, keepdims=True) - sums


def _sums(values: ByExample, n: int, draw: Callable[[int], np.ndarray]) -> Columns:
    """Sums with examples counted as often as each of ``n`` draws [draw, example] has them."""
    sizes = (min(_BLOCK, n - start) for start in range(0, n, _BLOCK))
    return np.concatenate([values @ draw(size).T.astype(float) for size in sizes], axis=1)
