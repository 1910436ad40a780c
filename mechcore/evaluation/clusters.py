"""Examples that go together: templates, premises, near-copies; and what intervals are for.

See docs/concepts/clusters.md. Examples alone are clusters of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from mechcore.errors import InputError
from mechcore.showing import Shown

Rows: TypeAlias = Float[np.ndarray, "row example"]
ByRow: TypeAlias = Float[np.ndarray, " row"]
Sums: TypeAlias = Float[np.ndarray, "row cluster"]
Sizes: TypeAlias = Float[np.ndarray, " cluster"]
Resamples: TypeAlias = Float[np.ndarray, "row resample"]

FEWEST = 8
"""Clusters under which there is no interval: fewer do not show how much clusters differ."""


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
