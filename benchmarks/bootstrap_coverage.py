"""How often the 95 % percentile bootstrap interval of a mean has the true mean in it.

Differences are drawn from distributions of known mean: skewed ones, as of a margin drop that is
large for few examples (exponential, lognormal), an accuracy drop that is 1 for few examples and 0
for the others, and a normal one. A coverage is the share of samples whose interval has the mean in
it.

    python benchmarks/bootstrap_coverage.py
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np

from mechcore.evaluation.evaluate import bootstrap_means

DRAWS: dict[str, tuple[float, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]]] = {
    "normal": (0.0, lambda rng, size: rng.normal(size=size)),
    "exponential": (1.0, lambda rng, size: rng.exponential(size=size)),
    "lognormal": (math.exp(0.5), lambda rng, size: rng.lognormal(size=size)),
    "accuracy, 5 % drop": (0.05, lambda rng, size: (rng.random(size) < 0.05).astype(float)),
}


def coverage(name: str, n: int, n_samples: int, seed: int, block: int = 50) -> float:
    """Share of ``n_samples`` samples of ``n`` examples whose interval has the mean in it."""
    mean, draw = DRAWS[name]
    rng = np.random.default_rng(seed)
    found = 0
    for start in range(0, n_samples, block):  # samples of a block share their resamples
        samples = draw(rng, (min(block, n_samples - start), n))
        intervals = bootstrap_means(samples, seed=seed + start)
        found += sum(each.low <= mean <= each.high for each in intervals)
    return found / n_samples


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sizes = (20, 50, 100, 200)
    print(f"{'differences':<20}", *(f"n = {n:<5}" for n in sizes))
    for name in DRAWS:
        found = (coverage(name, n, options.samples, options.seed) for n in sizes)
        print(f"{name:<20}", *(f"{share:<9.3f}" for share in found))
