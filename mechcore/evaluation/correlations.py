"""Rank correlations as means over examples, so that their intervals and p are those of means.

The influence of an example on a statistic is what a little more weight on it changes; it averages 0
(Hampel, Journal of the American Statistical Association 69, 1974). The statistic plus influences
are values whose mean is the statistic and whose spread, for many examples, is its spread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from scipy import stats

Values: TypeAlias = Float[np.ndarray, "row example"]
OfExamples: TypeAlias = Float[np.ndarray, " example"]


def rank_values(x: OfExamples, y: Values) -> Values:
    """Values whose means are Spearman's rho of ``x`` with every row; NaN where one is constant.

    Ties share their mean rank. That ranks depend on the other examples is part of the influence.
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


def _ranked(values: OfExamples) -> tuple[OfExamples, Callable[[OfExamples], OfExamples]]:
    """Ranks about 0 as shares, and sums of weights over the examples above each, ties by half."""
    n, number = len(values), np.unique(values, return_inverse=True)[1].reshape(-1)

    def above(weights: OfExamples) -> OfExamples:
        totals = np.bincount(number, weights)
        return np.asarray((totals[::-1].cumsum()[::-1] - totals / 2)[number] / n)

    return (stats.rankdata(values) - (n + 1) / 2) / n, above
