"""Whether intervals and roles have their nominal error rates where examples form clusters.

Coverage: clusters of 50 examples, at a design effect of 3 (mild) and of 20 (examples of a cluster
are mostly redundant); the share of 95 % intervals that contain the true mean over all clusters,
beside that of intervals that treat examples as independent. For information the design effect is
measured, and printed. Roles: the planted models of ``benchmarks/roles.py``, with noise partly
shared within templates, or with ten copies of every example. Halves: how often a component's change
differs at 5 % between two halves of the examples.

    python benchmarks/clusters.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from roles import PLANTED, biased, false_discoveries, noisier, planted
from scipy import stats

from mechcore.ablation import Ablations, component_roles, information_table
from mechcore.evaluation.intervals import (
    Sample,
    degrees_of_freedom,
    mean_errors,
    mean_intervals,
    ratio_intervals,
    share_interval,
)
from mechcore.evaluation.recalibration import decompose

SIZE = 50
"""Examples per cluster."""

BLOCK = 50
"""Samples that share their resamples."""


class Templates:
    """Draws normal numbers that share part of their variance within clusters."""

    def __init__(self, rng: np.random.Generator, clusters: np.ndarray, shared: float) -> None:
        self.rng, self.clusters, self.shared = rng, clusters, shared
        self.random = rng.random

    def normal(self, *, size: Any) -> np.ndarray:
        """Standard normal numbers; the first axis is examples."""
        shape = (size,) if isinstance(size, int) else tuple(size)
        of_cluster = self.rng.normal(size=(self.clusters.max() + 1, *shape[1:]))[self.clusters]
        own = self.rng.normal(size=shape)
        return np.sqrt(self.shared) * of_cluster + np.sqrt(1 - self.shared) * own


# -- coverage -------------------------------------------------------------------------------------


def measured(draw: Callable[..., np.ndarray]) -> Callable[..., tuple[np.ndarray, float]]:
    """Values of mean 0, partly shared within clusters."""

    def values(rng: np.random.Generator, clusters: np.ndarray, shared: float) -> Any:
        of_cluster = draw(rng, clusters.max() + 1)[clusters]
        own = draw(rng, len(clusters))
        return np.sqrt(shared) * of_cluster + np.sqrt(1 - shared) * own, 0.0

    return values


def answers(*chances: tuple[float, float]) -> Callable[..., tuple[np.ndarray, float]]:
    """Values with these chances, else 0; each cluster has its own chances (Dirichlet)."""

    def values(rng: np.random.Generator, clusters: np.ndarray, shared: float) -> Any:
        kinds = np.array([value for value, _ in chances] + [0.0])
        p = np.array([chance for _, chance in chances])
        p = np.append(p, 1 - p.sum())
        own = rng.dirichlet(np.maximum(p * (1 - shared) / shared, 1e-9), clusters.max() + 1)
        drawn = (rng.random((len(clusters), 1)) > own.cumsum(1)[clusters]).sum(1)
        return kinds[np.minimum(drawn, len(p) - 1)], float(kinds @ p)

    return values


DESIGNS: dict[str, tuple[str, Callable[..., tuple[np.ndarray, float]]]] = {
    "margin, normal": ("measured", measured(lambda rng, n: rng.normal(size=n))),
    "margin, exponential": ("measured", measured(lambda rng, n: rng.exponential(size=n) - 1)),
    "accuracy, 30 % wrong, 10 % right": ("answers", answers((1, 0.3), (-1, 0.1))),
    "accuracy, 10 % wrong, 5 % right": ("answers", answers((1, 0.1), (-1, 0.05))),
    "accuracy, 5 % wrong": ("answers", answers((1, 0.05))),
    "interaction of accuracies": ("answers", answers((2, 0.03), (1, 0.1), (-1, 0.08))),
    "share, 70 % right": ("share", answers((1, 0.7))),
    "dependence": ("ratio", measured(lambda rng, n: rng.normal(size=n))),
}


def coverage(name: str, n_clusters: int, effect: float, n_samples: int, seed: int = 0) -> Any:
    """Shares of samples whose interval contains the truth: by cluster, and by example."""
    kind, draw = DESIGNS[name]
    clusters, shared = np.repeat(np.arange(n_clusters), SIZE), (effect - 1) / (SIZE - 1)
    inside = np.zeros(2)
    for start in range(0, n_samples, BLOCK):
        rng = np.random.default_rng([seed, n_clusters, start])
        drawn = [draw(rng, clusters, shared) for _ in range(min(BLOCK, n_samples - start))]
        values, truth = np.stack([value for value, _ in drawn]), drawn[0][1]
        for j, sample in enumerate((clusters, None)):
            options: dict[str, Any] = {"clusters": sample}
            if kind == "share":
                intervals = [share_interval(row == 1, **options) for row in values]
            elif kind == "ratio":
                below = 1 + values[::-1]
                intervals = ratio_intervals(0.5 * below + values, below, **options)
                truth = 0.5
            else:
                options |= {"answers": kind == "answers", "seed": start}
                options["n_resamples"] = 2 if sample is None else 1000
                intervals = mean_intervals(values, **options)
            # A ratio without an interval makes no claim.
            inside[j] += sum(np.isnan(e.low) or e.low <= truth <= e.high for e in intervals)
    return inside / n_samples


def information(n_clusters: int, shared: float, n_samples: int, figure: str, seed: int = 0) -> Any:
    """`coverage` of a zero change, and its design effect; each cluster has one label."""
    clusters = np.repeat(np.arange(n_clusters), SIZE)
    correct = np.eye(2, dtype=bool)[clusters % 2]
    inside, changes, errors = np.zeros(2), [], []
    for i in range(n_samples):
        rng: Any = Templates(np.random.default_rng([seed, i]), clusters, shared)
        full, other = (biased if figure == "information" else noisier)(rng, 1.2 * correct)
        parts = decompose(full, other[None], correct, clusters=clusters, seed=i)
        effect = getattr(parts, figure)
        for j, estimate in enumerate((effect, replace(effect, sample=Sample()))):
            (interval,) = estimate.intervals(n_resamples=500 if j == 0 else 2, seed=i)
            inside[j] += interval.low <= 0 <= interval.high
        changes.append(effect.changes[0])
        errors.append(replace(effect, sample=Sample()).errors()[0])
    return *(inside / n_samples), np.var(changes) / np.mean(np.square(errors))


# -- roles and halves -----------------------------------------------------------------------------


def with_templates(seed: Any, n_clusters: int, shared: float, *, ood: bool) -> Ablations:
    """A planted model whose noise is partly shared within templates, each of one label."""
    n = n_clusters * SIZE
    clusters = 2 * (np.arange(n) // (2 * SIZE)) + np.arange(n) % 2
    rng: Any = Templates(np.random.default_rng(seed), clusters, shared)
    made = planted(rng, n, 67, ood=ood)
    return replace(made, full=replace(made.full, clusters=clusters))


def of_copies(seed: Any, n: int, *, ood: bool) -> Ablations:
    """A planted model with ten copies of ``n`` examples."""
    copies = np.repeat(np.arange(n), 10)
    made = planted(np.random.default_rng(seed), n, 67, ood=ood).part(copies)
    return replace(made, full=replace(made.full, clusters=copies))


def roles(make: Callable[..., Ablations], n_draws: int, *, known: bool, seed: int = 0) -> Any:
    """Share of false roles among those assigned, and of planted components with their role."""
    false, right = [], []
    for draw in range(n_draws):
        both = [make([seed, draw, ood], ood=bool(ood)) for ood in (0, 1)]
        if not known:
            both = [replace(e, full=replace(e.full, clusters=None)) for e in both]
        table = component_roles(*(information_table(e, n_resamples=2, seed=draw) for e in both))
        false.append(false_discoveries(table)[0])
        named = table.set_index("component")["role"]
        right.append(np.mean([named[name] == split for name, split in PLANTED.items()]))
    return float(np.mean(false)), float(np.mean(right))


def differ(first: np.ndarray, second: np.ndarray, clusters: tuple[Any, Any]) -> np.ndarray:
    """Whether means of rows differ between two parts, by Welch's test at 5 %."""
    errors = [
        mean_errors(values, clusters=c) for values, c in zip((first, second), clusters, strict=True)
    ]
    sizes = [np.unique(c, return_counts=True)[1].astype(float) for c in clusters]
    if clusters[0] is None:
        sizes = [np.ones(first.shape[1]), np.ones(second.shape[1])]
    variances = np.square(errors)
    df = [degrees_of_freedom(n) for n in sizes]
    total = variances.sum(0)
    df_of_both = total**2 / (variances**2 / np.array(df)[:, None]).sum(0)
    t = (first.mean(1) - second.mean(1)) / np.sqrt(total)
    return 2 * stats.t.sf(np.abs(t), df_of_both) < 0.05


def halves(values: np.ndarray, clusters: np.ndarray, n_splits: int, seed: int = 0) -> list[float]:
    """How often rows differ between halves.

    Returns:
        Between random halves, by example; between halves of the clusters, by example; and between
        the latter, by cluster.
    """
    rng, shares = np.random.default_rng(seed), []
    numbers = np.unique(clusters)
    for _ in range(n_splits):
        drawn = rng.permutation(values.shape[1]) < values.shape[1] // 2
        chosen = np.isin(clusters, rng.permutation(numbers)[: len(numbers) // 2])
        tests = []
        for part, by in ((drawn, None), (chosen, None), (chosen, clusters)):
            whose = (None, None) if by is None else (by[part], by[~part])
            tests.append(differ(values[:, part], values[:, ~part], whose).mean())
        shares.append(tests)
    return [float(share) for share in np.mean(shares, axis=0)]


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--clusters", default="10,30,60", help="Numbers, separated by commas.")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts, seed = [int(n) for n in options.clusters.split(",")], options.seed
    print("coverage of 95 % intervals, %: by cluster (by example)")
    for effect in (3, 20):
        for name in DESIGNS:
            cells = (coverage(name, n, effect, options.samples, seed) for n in counts)
            texts = (f"{100 * own:.1f} ({100 * alone:.1f})" for own, alone in cells)
            print(f"| {name}, design effect {effect} |", " | ".join(texts), flush=True)
    for figure in ("information", "threshold"):
        for shared in (0.1, 0.7):
            cells = (information(n, shared, options.samples // 4, figure, seed) for n in counts)
            texts = (f"{100 * own:.1f} ({100 * one:.1f}), {d:.1f}" for own, one, d in cells)
            print(f"| {figure}, {shared:.0%} of the noise shared |", " | ".join(texts), flush=True)
    makers: dict[str, Callable[..., Ablations]] = {
        "60 templates": lambda s, ood: with_templates(s, 60, 0.3, ood=ood),
        "ten copies of 300 examples": lambda s, ood: of_copies(s, 300, ood=ood),
        "ten copies of 1000 examples": lambda s, ood: of_copies(s, 1000, ood=ood),
    }
    for name, make in makers.items():
        for known in (True, False):
            false, right = roles(make, options.draws, known=known, seed=seed)
            print(
                f"roles, {name}, given: {known}: false {false:.3f}, right {right:.3f}", flush=True
            )
    made = with_templates([seed], 60, 0.3, ood=True)
    rows = np.stack([made.changes(cut, "margin") for cut in made.sets])
    print("halves differ:", halves(rows, made.full.clusters, 100, seed))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
