"""How often lost information, shifted thresholds and the roles of components are identified.

Answers are drawn from models of known truth. Coverage: a model that differs only in its biases and
in noise of the same size loses no information; one whose margins get more noise, symmetrically,
moves no threshold. Roles: the logit of a model is a sum of outputs of planted components; others
are idle, so ablating one of them only adds noise.

    python benchmarks/roles.py
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import torch

from mechcore.ablation import Ablations, ComponentSet, component_roles, information_table
from mechcore.ablation.effects.roles import BOTH, HARMFUL_OUT, IN_ONLY, NONE, OUT_ONLY, THRESHOLD
from mechcore.evaluation.evaluate import Evaluation
from mechcore.evaluation.intervals import mean_intervals
from mechcore.evaluation.recalibration import decompose

# -- coverage -------------------------------------------------------------------------------------


def jitter(rng: np.random.Generator, noise: np.ndarray, kept: float = 0.8) -> np.ndarray:
    """Noise of the same distribution, with correlation ``kept`` to ``noise``."""
    return kept * noise + (1 - kept**2) ** 0.5 * rng.normal(size=noise.shape)


def biased(rng: np.random.Generator, signal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a model, and of one with different biases."""
    noise, biases = rng.normal(size=signal.shape), np.array([0, 1.5, -1.0])[: signal.shape[1]]
    return 2 * (signal + noise), 2 * (signal + jitter(rng, noise)) + biases


def noisier(rng: np.random.Generator, signal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a model, and of one with more noise."""
    logits = 2 * (signal + rng.normal(size=signal.shape))
    return logits, logits + 2 * rng.normal(size=signal.shape)


def skewed(rng: np.random.Generator, signal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `biased`, but some examples of the first label have scores far on the wrong side."""
    full, other = biased(rng, signal)
    fooled = (signal[:, :1] > 0) & (rng.random((len(signal), 1)) < 0.1)
    far = np.where(fooled, np.arange(signal.shape[1]) * 10.0, 0.0)
    return full + far, other + far


DESIGNS: dict[str, tuple[str, Callable]] = {
    "other biases": ("information", biased),
    "other biases, skewed": ("information", skewed),
    "more noise": ("threshold", noisier),
}


def coverage(name: str, n_labels: int, per_label: int, n_samples: int, seed: int = 0) -> float:
    """Share of samples whose 95 % interval for the zero change contains 0."""
    figure, draw = DESIGNS[name]
    rng, inside = np.random.default_rng(seed), 0
    label = np.repeat(np.arange(n_labels), per_label)
    correct = np.eye(n_labels, dtype=bool)[label]
    for start in range(0, n_samples, 50):  # samples of a block share their resamples
        rows = []
        for i in range(start, min(start + 50, n_samples)):
            full, other = draw(rng, 1.2 * correct)
            parts = decompose(full, other[None], correct, seed=i)
            rows.append(getattr(parts, figure).values[0])
        intervals = mean_intervals(np.stack(rows), answers=True)
        inside += sum(interval.low <= 0 <= interval.high for interval in intervals)
    return inside / n_samples


# -- roles ----------------------------------------------------------------------------------------

PLANTED = {
    "L0.H0": HARMFUL_OUT,
    "L0.H1": IN_ONLY,
    "L0.H2": OUT_ONLY,
    "L0.H3": BOTH,
    "L0.H4": THRESHOLD,
}


def planted(
    rng: np.random.Generator,
    n: int,
    n_idle: int,
    *,
    ood: bool,
    kept: float = 0.98,
    rarest: float = 0.5,
    all_effects: bool = False,
) -> Ablations:
    """Answers of a model with planted components and without each; the second label is rarer.

    With ``all_effects``, every planted component changes information and threshold in both domains.
    """
    label = (np.arange(n) % round(1 / rarest) == 1).astype(int)
    sign = 2 * label - 1

    def clue(right: float) -> np.ndarray:
        return np.where(rng.random(n) < right, sign, -sign)

    written = {
        "L0.H0": 1.2 * clue(0.5 if ood else 0.9),  # a heuristic
        "L0.H1": 1.2 * clue(0.9) * (not ood),  # its input is missing out of domain
        "L0.H2": 1.2 * clue(0.9) * ood,
        "L0.H3": 1.2 * clue(0.9),
        "L0.H4": np.full(n, -1.2),
    }
    if all_effects:
        written = {name: 0.6 * clue(0.8) - 0.6 for name in written}
    noise = rng.normal(size=n)
    signal = sum(written.values()) + 1.2
    margins = {name: signal - part + jitter(rng, noise, kept) for name, part in written.items()}
    for i in range(n_idle):
        margins[f"L{1 + i // 12}.H{i % 12}"] = signal + jitter(rng, noise, kept)
    correct = torch.tensor(np.eye(2, dtype=bool)[label])

    def evaluation(margin: np.ndarray) -> Evaluation:
        logits = torch.tensor(np.stack([np.zeros(n), margin], axis=1))
        return Evaluation(logits, correct, np.full(n, "all", dtype=object), "")

    without = {ComponentSet.of([name]): evaluation(margin) for name, margin in margins.items()}
    full = evaluation(signal + noise)
    return Ablations.of(full, without, "planted", "ood" if ood else "id")


def judged(
    n: int,
    n_idle: int,
    n_draws: int,
    *,
    kept: float = 0.98,
    rarest: float = 0.5,
    all_effects: bool = False,
    seed: int = 0,
) -> Iterator[pd.DataFrame]:
    """The roles in each draw."""
    options = {"kept": kept, "rarest": rarest, "all_effects": all_effects}
    for draw in range(n_draws):
        rng = np.random.default_rng([seed, draw])
        answers = (planted(rng, n, n_idle, ood=ood, **options) for ood in (False, True))
        yield component_roles(*(information_table(a, n_resamples=2, seed=draw) for a in answers))


def false_discoveries(table: pd.DataFrame) -> tuple[float, float]:
    """Share of idle components among those with a role, and with a role among idle ones."""
    has_role = table["role"] != NONE
    idle = ~table["component"].isin(list(PLANTED))
    return float((has_role & idle).sum() / max(1, has_role.sum())), float(has_role[idle].mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=100)
    options = parser.parse_args()
    sizes = (50, 100, 300, 1000)
    print(f"{'coverage':<32}", *(f"{size:<6}" for size in sizes), "examples per label")
    for name in DESIGNS:
        for n_labels in (2, 3):
            shares = (coverage(name, n_labels, size, options.samples) for size in sizes)
            title = f"{name}, {n_labels} labels"
            print(f"{title:<32}", *(f"{share:<6.3f}" for share in shares), flush=True)
    designs: tuple[tuple[int, dict[str, float]], ...] = (
        (3000, {"kept": 0.98}),
        (3000, {"kept": 0.9}),
        (3000, {"kept": 0.9, "all_effects": True}),
        (2000, {"kept": 0.9, "rarest": 0.025}),
    )
    for n, design in designs:
        tables = list(judged(n, 67, options.draws, **design))
        print(f"\nroles, {n} examples,", *(f"{key} {value}" for key, value in design.items()))
        for component, wanted in PLANTED.items():
            roles = Counter(table.set_index("component")["role"][component] for table in tables)
            print(f"{component} {wanted:<28}", dict(roles))
        idle, wrong = np.mean([false_discoveries(table) for table in tables], axis=0)
        print(f"idle among those with a role {idle:.4f}, with a role among idle ones {wrong:.5f}")
