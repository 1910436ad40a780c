"""Whether intervals have their nominal coverage, and tests their nominal error rates.

A planted transformer with noise in all weights answers all possible texts, with and without its
components, so the truth about all texts is known exactly; fresh samples of texts then give
intervals. In a second one, without noise, some components answer by chance: ablating them changes
texts, but no more for the worse than for the better, so every discovery there is false.

    python benchmarks/calibration.py
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechcore.ablation import (
    Ablations,
    ComponentSet,
    ablate,
    ablation_table,
    dividends,
    interactions,
    sets,
    shapley,
)
from mechcore.ablation.paths.dependence import Readers, core_dependence_table, readers_of
from mechcore.bench.circuit import ANSWER, Circuit, Copy, Gate
from mechcore.bench.planting import Form, plant, tokenizer_of
from mechcore.bench.population import Population, as_texts
from mechcore.components import Component, Mask, ModelShape
from mechcore.data.encoding import encode
from mechcore.data.examples import ALL
from mechcore.evaluation.evaluate import CLASS_METRICS
from mechcore.evaluation.p_values import Correction, corrected
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.subnetworks.core import heuristic_core
from mechcore.tables import write_tables

H = Component
NOISE = 0.02
TINY = 1e-4
"""Rounding error, in nats."""
LEVEL = 0.05
FREE = (6, 7, 8)
CIRCUIT = Circuit(
    9,
    [
        Copy(H(0, 0), 0, {ANSWER: 2}),
        Copy(H(0, 1), 2, {"a": 1}),
        Copy(H(0, 2), 3, {"b": 1}),
        Copy(H(0, 3), FREE[0], {ANSWER: 1}),
        Copy(H(1, 0), 1, {ANSWER: 1}),
        Copy(H(1, 1), 4, {"c": 1}),
        Copy(H(1, 2), 5, {"d": 1}),
        Copy(H(1, 3), 0, {ANSWER: -0.5}),
        Copy(H(1, 4), FREE[1], {ANSWER: 0.5}),
        *(Copy(H(2, i), FREE[i // 2], {f"free {i}": 1}) for i in range(6)),
    ],
    [
        Gate(0, "or", ("a", "b"), {ANSWER: 2}),
        Gate(1, "and", ("c", "d"), {ANSWER: 2}),
        *(Gate(2, "or", (f"free {i}", f"free {5 - i}"), {ANSWER: 1.5}) for i in range(3)),
    ],
)
CUES = {0: 0.97, 1: 0.8, 2: 0.9, 3: 0.9, 4: 0.75, 5: 0.75}
POPULATION = Population(9, {slot: (right, right) for slot, right in CUES.items()})
TOGETHER = [H(0, 0), H(0, 1), H(0, 2), H(1, 1)]
"""Components for dividends and Shapley values."""
BY_CHANCE = [H(0, 3), H(1, 4), *(H(2, i) for i in range(6)), H(2)]
"""Components that read slots unrelated to the label."""
MEASURED = [*TOGETHER, H(0), H(2, 0)]
"""Components whose changes and interactions get intervals."""
SENDERS, RECEIVERS = [H(0, 1), H(0, 2)], [H(0), H(1, 1), H(2)]
"""Heads whose paths to readers are cut, and the readers."""


@dataclass(frozen=True)
class Answered:
    """Answers to every text, and how often each text occurs."""

    ablations: Ablations
    readers: Readers
    chance: Float[np.ndarray, " text"]

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Ablations, Readers]:
        """Answers to ``n`` random texts."""
        rows, whole = rng.choice(len(self.chance), n, p=self.chance), self.readers
        without = {c: answers.part(rows) for c, answers in whole.without.items()}
        blind = {c: answers.part(rows) for c, answers in whole.blind.items()}
        readers = Readers(whole.full.part(rows), without, blind, [], whole.data, whole.split)
        return self.ablations.part(rows), readers

    def true_mean(self, values: Float[np.ndarray, " text"], subset: str) -> float:
        """Mean over all texts of a subset."""
        weights = self.chance * ((self.ablations.full.subsets == subset) | (subset == ALL))
        return float(values @ weights / weights.sum())


@cache
def answered(noise: float, *, chosen: bool = True) -> Answered:
    """Answers of the transformer with this noise.

    Args:
        noise: see `Form`.
        chosen: whether to ablate pairs of `MEASURED`, otherwise of all components by chance.
    """
    values, labels, chance = POPULATION.every("id")
    texts = encode(
        as_texts("every text", values, labels, np.zeros(len(values), int)),
        tokenizer_of(),
        max_length=32,
    )
    form = Form(norms=bool(noise), noise=noise, n_heads=6, d_model=108)
    with tempfile.TemporaryDirectory() as folder:
        plant(CIRCUIT, folder, form)
        model = load_model(folder)
    means = MeanActivations.compute(model, texts, n_samples=0)
    parts = MEASURED if chosen else sorted({*BY_CHANCE, *TOGETHER})
    wanted = [ComponentSet((c,)) for c in parts]
    wanted += [ComponentSet.of(pair) for pair in itertools.combinations(parts, 2)]
    wanted += sets.subsets(TOGETHER) if chosen else []
    options: dict[str, Any] = {"split": "id", "batch_size": 256}
    ablations = ablate(model, list(dict.fromkeys(wanted)), texts, means, **options)
    readers = readers_of(model, SENDERS, texts, means, receivers=RECEIVERS, **options)
    return Answered(ablations, readers, chance)


def truths(known: Answered) -> dict[tuple[str, str, str, str], float]:
    """The true value for every interval, by figure, set, subset and metric."""
    every, truth = known.ablations, dict[tuple[str, str, str, str], float]()
    subsets = [*every.full.subset_names, ALL]
    changes = {
        (str(cut), metric): every.changes(cut, metric)
        for cut in every.sets
        for metric in CLASS_METRICS
    }
    for subset, metric in itertools.product(subsets, CLASS_METRICS):
        value = {
            name: known.true_mean(values, subset)
            for (name, of), values in changes.items()
            if of == metric
        }
        for cut in every.sets:
            name, names = str(cut), [str(c) for c in cut.components]
            truth["change", name, subset, metric] = value[name]
            if len(cut) > 1:
                pair = value[name] - sum(value[c] for c in names)
                truth["interaction", name, subset, metric] = pair
        for name, size in _dividends(value).items():
            truth["dividend", name, subset, metric] = size
        for component in TOGETHER:
            shares = [
                size / len(name.split("+"))
                for name, size in _dividends(value).items()
                if str(component) in name.split("+")
            ]
            truth["Shapley value", str(component), subset, metric] = sum(shares)
        for receiver in RECEIVERS:
            alone, blind = (
                known.true_mean(
                    answers[receiver].values(metric) - known.readers.full.values(metric), subset
                )
                for answers in (known.readers.without, known.readers.blind)
            )
            truth["change when blind", str(receiver), subset, metric] = blind
            truth["dependence", str(receiver), subset, metric] = blind / alone
    return truth


def _dividends(changes: Mapping[str, float]) -> dict[str, float]:
    """Dividends of all subsets of `TOGETHER`, by inclusion and exclusion."""
    terms = {}
    for size in range(1, len(TOGETHER) + 1):
        for members in itertools.combinations(sorted(TOGETHER), size):
            terms["+".join(map(str, members))] = sum(
                (-1) ** (size - n) * changes["+".join(map(str, part))]
                for n in range(1, size + 1)
                for part in itertools.combinations(members, n)
            )
    return terms


def intervals(ablations: Ablations, readers: Readers, seed: int) -> Iterator[tuple[Any, ...]]:
    """Figure, set, subset, metric, low and high of all intervals of a sample."""
    singles = ablation_table(ablations, seed=seed)
    for metric in CLASS_METRICS:
        bounds = [f"{metric}_change_low", f"{metric}_change_high"]
        for row in singles[["set", "subset", *bounds]].itertuples(index=False):
            yield "change", row[0], row[1], metric, *row[2:]
    for figure, table in (
        ("interaction", interactions(ablations, seed=seed)),
        ("dividend", dividends(ablations, TOGETHER, seed=seed)),
        ("Shapley value", shapley(ablations, TOGETHER, seed=seed)),
    ):
        columns = ["set", "subset", "metric", "low", "high"]
        for row in table[columns].itertuples(index=False):
            yield figure, *row
    table = core_dependence_table(readers, seed=seed)
    table = table[table["metric"].isin(CLASS_METRICS)]
    for figure, column in (("change when blind", "blind_change"), ("dependence", "share")):
        columns = ["receiver", "subset", "metric", f"{column}_low", f"{column}_high"]
        for row in table[columns].dropna().itertuples(index=False):
            yield figure, *row


def coverage(n: int, n_samples: int, seed: int = 0) -> pd.DataFrame:
    """Shares of intervals that contain the truth.

    Returns:
        Columns figure, metric, texts (of the subset, on average), coverage, lowest (of any set).
    """
    known = answered(NOISE)
    true, counts = truths(known), defaultdict(list)
    for number in range(n_samples):
        rng = np.random.default_rng([seed, n, number])
        for figure, name, subset, metric, low, high in intervals(*known.sample(n, rng), number):
            inside = low - TINY <= true[figure, name, subset, metric] <= high + TINY
            counts[figure, metric, n if subset == ALL else n // 2, name, subset].append(inside)
    rows = [(*key[:3], np.mean(inside), len(inside)) for key, inside in counts.items()]
    table = pd.DataFrame(rows, columns=["figure", "metric", "texts", "coverage", "n"])
    often = table[table["n"] >= n_samples / 2]  # a dependence is reported where there is a change
    return often.groupby(["figure", "metric", "texts"], as_index=False).agg(
        coverage=("coverage", "mean"), lowest=("coverage", "min"), figures=("n", "size")
    )


def errors(n: int, n_samples: int, correction: Correction, seed: int = 0) -> dict[str, float]:
    """False discoveries at 5 %, on the margin, among single components and among pairs.

    Returns:
        For both kinds, the mean share of false ones among discoveries, the share of samples with
        any, and the share of true ones discovered.
    """
    known, shares = answered(0.0, chosen=False), dict[str, float]()
    for kind, size in (("singles", 1), ("pairs", 2)):
        of = [cut for cut in known.ablations.sets if len(cut) == size]
        is_true = (
            np.abs([known.true_mean(row, ALL) for row in _effects(known.ablations, of)]) > TINY
        )
        false, power = [], []
        for number in range(n_samples):
            sample, _ = known.sample(n, np.random.default_rng([seed, n, number]))
            said = corrected(_effects(sample, of), correction, seed=number)[1] <= LEVEL
            false.append((said & ~is_true).sum() / max(1, said.sum()))
            power.append(said[is_true].mean())
        shares |= {
            f"{kind}: false": float(np.mean(false)),
            f"{kind}: any false": float(np.mean(np.array(false) > 0)),
            f"{kind}: found": float(np.mean(power)),
        }
    return shares


def _effects(ablations: Ablations, chosen: Sequence[ComponentSet]) -> Float[np.ndarray, "set text"]:
    """Changes in margin, or interactions of pairs."""
    changes = {cut: ablations.changes(cut, "margin") for cut in ablations.sets}
    alone = {
        cut: sum(changes[ComponentSet((c,))] for c in cut.components) if len(cut) > 1 else 0
        for cut in chosen
    }
    return np.stack([changes[cut] - alone[cut] for cut in chosen])


def core_p(n_samples: int, seed: int = 0) -> dict[str, float]:
    """How often cores of random subnetworks have p-values of at most 5 and 20 %.

    Each subnetwork keeps 3 to 9 random heads of every layer. Sizes of cores
    are whole numbers, so p-values are below 5 % in at most 5 % of the draws.
    """
    shape, rng = ModelShape(4, 12, has_mlps=False), np.random.default_rng(seed)
    p = []
    for _ in range(n_samples):
        kept = rng.integers(3, 10, (3, shape.n_layers))
        masks = [
            Mask.full(shape).only(
                [H(layer, int(h)) for layer, n in enumerate(row) for h in rng.permutation(12)[:n]]
            )
            for row in kept
        ]
        p.append(heuristic_core(masks).p_value)
    return {f"p at most {level}": float(np.mean(np.array(p) <= level)) for level in (0.05, 0.2)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--sizes", default="60,200", help="Texts per sample, separated by commas.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="Folder for the tables.")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    with ProcessPoolExecutor(len(sizes)) as pool:
        jobs = [pool.submit(coverage, n, options.samples, options.seed) for n in sizes]
        covered = pd.concat([job.result() for job in jobs])
    tested = pd.DataFrame(
        {"correction": name, "texts": n} | errors(n, options.samples, name, options.seed)
        for name in get_args(Correction)
        for n in sizes
    )
    print(covered.to_string(index=False), tested.to_string(index=False), sep="\n\n")
    print("\ncores of random subnetworks:", core_p(options.samples, options.seed))
    if options.out:
        write_tables(options.out, {"coverage": covered, "errors": tested})
