"""How often 95 % intervals of means contain the true mean.

Values are drawn from distributions of known mean. Measured values: normal; skewed, like a margin
change that is large for few examples (exponential, lognormal); heavy-tailed (Student's t with 3
degrees of freedom); and a change in only one example in ten. Differences of answers: 1 for those
that become wrong, -1 for those that become right, and interactions of two heads, up to 2. Shares:
right answers. mechcore's interval is compared with the percentile bootstrap.

    python benchmarks/interval_coverage.py
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from mechcore.evaluation.intervals import drawn_clusters, mean_intervals, share_interval

Draw: TypeAlias = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
BLOCK = 50
"""Samples that share their resamples."""


@dataclass(frozen=True)
class Design:
    """Values of known mean, and the kind of interval they get."""

    kind: Literal["measured", "answers", "share"]
    mean: float
    draw: Draw


def bootstrap_weights(n: int, n_resamples: int, seed: int) -> np.ndarray:
    """Weights of examples in resamples: ``values @ weights`` are the resampled means."""
    return drawn_clusters(np.random.default_rng(seed), n, n_resamples) / n


def answers(worse: float, better: float = 0.0) -> Design:
    """Answers that become wrong or right with these probabilities."""

    def draw(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
        chance = rng.random(size)
        return (chance < worse).astype(float) - (chance > 1 - better)

    return Design("answers", worse - better, draw)


def share(mean: float) -> Design:
    return Design("share", mean, lambda rng, size: (rng.random(size) < mean).astype(float))


def measured(mean: float, draw: Draw) -> Design:
    return Design("measured", mean, draw)


DESIGNS = {
    "normal": measured(0.0, lambda rng, size: rng.normal(size=size)),
    "exponential": measured(1.0, lambda rng, size: rng.exponential(size=size)),
    "lognormal": measured(math.exp(0.5), lambda rng, size: rng.lognormal(size=size)),
    "heavy tails": measured(0.0, lambda rng, size: rng.standard_t(3, size=size)),
    "one in ten": measured(
        0.3,
        lambda rng, size: (
            (rng.random(size) < 0.1) * rng.exponential(3, size) + rng.normal(0, 0.05, size)
        ),
    ),
    "2 % wrong": answers(0.02),
    "5 % wrong": answers(0.05),
    "5 % wrong, 2 % right": answers(0.05, 0.02),
    "30 % wrong, 10 % right": answers(0.3, 0.1),
    "98 % wrong": answers(0.98),
    "interactions": Design(
        "answers",
        0.01,
        lambda rng, size: rng.choice([2.0, 1.0, -1.0, 0.0], size, p=[0.01, 0.02, 0.03, 0.94]),
    ),
    "50 % right": share(0.5),
    "90 % right": share(0.9),
    "99 % right": share(0.99),
}


def coverage(name: str, n: int, n_samples: int, seed: int = 0) -> tuple[float, float]:
    """Shares of ``n_samples`` samples of ``n`` values whose interval contains the mean.

    Returns:
        The share for mechcore's interval, and for the percentile bootstrap.
    """
    design = DESIGNS[name]
    rng = np.random.default_rng(seed)
    covered, percentile = 0, 0
    for start in range(0, n_samples, BLOCK):
        samples = design.draw(rng, (min(BLOCK, n_samples - start), n))
        if design.kind == "share":
            intervals = [share_interval(row) for row in samples]
        else:
            intervals = mean_intervals(samples, answers=design.kind == "answers", seed=seed + start)
        covered += sum(interval.low <= design.mean <= interval.high for interval in intervals)
        means = samples @ bootstrap_weights(n, 1000, seed + start)
        low, high = np.quantile(means, [0.025, 0.975], axis=1)
        percentile += int(((low <= design.mean) & (design.mean <= high)).sum())
    return covered / n_samples, percentile / n_samples


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sizes = (30, 50, 100, 200)
    print("share of intervals with the mean in them, %: mechcore (percentile bootstrap)")
    print(f"{'':<24}", *(f"n = {n:<11}" for n in sizes))
    for name in DESIGNS:
        cells = (coverage(name, n, options.samples, options.seed) for n in sizes)
        print(
            f"{name:<24}",
            *(f"{100 * own:.1f} ({100 * other:.1f})".ljust(15) for own, other in cells),
        )
