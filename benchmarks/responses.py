"""How often the feature of texts that an effect depends on is named, and how often a wrong one.

Planted: a transformer that runs a circuit. One head copies a slot, two others and an MLP compare
two slots; the features are the values of all slots and whether these two are equal. Simulated:
components whose changes in margin grow with a feature, follow only the full model's margin, which
itself follows a feature, or are noise; examples form clusters, which share noise.

    python benchmarks/responses.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import takewhile
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch

from mechcore.ablation import Ablations, ComponentSet, ablate, sets
from mechcore.ablation.effects.responses import COMPONENT, response_rows, strongest, with_adjusted_p
from mechcore.bench.circuit import ANSWER, Circuit, Copy, Gate
from mechcore.bench.planting import Form, plant, tokenizer_of
from mechcore.bench.population import Population, as_texts
from mechcore.components import Component
from mechcore.data.encoding import encode
from mechcore.data.examples import Examples
from mechcore.data.features import FEATURES, feature_table, words_in
from mechcore.evaluation.evaluate import Evaluation
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.wording import ALL, SIGNIFICANT

N_SLOTS = 6
CIRCUIT = Circuit(
    N_SLOTS,
    [
        Copy(Component.parse("L0.H2"), 0, {ANSWER: 2}),
        Copy(Component.parse("L0.H0"), 1, {"first": 1}),
        Copy(Component.parse("L1.H3"), 2, {"second": 1}),
    ],
    [Gate(1, "equal", ("first", "second"), {ANSWER: 2})],
    [Copy(Component.parse("L1.H0"), 4, {"idle": 1})],
)
PLANTED = {"L0.H2": "slot 1", **dict.fromkeys(("L0.H0", "L1.H3", "L1.MLP"), "slots 2 and 3 equal")}

SIMULATED = {f"L0.H{i}": f"feature {i}" for i in range(5)}


def slot(examples: Examples, i: int) -> np.ndarray:
    """1 if the word of a slot is yes, else 0."""
    return np.array([words_in(text)[i] == "yes" for text in examples.frame["text_a"]], float)


def equal(examples: Examples) -> np.ndarray:
    """1 if the second and the third slot are equal, else 0."""
    return (slot(examples, 1) == slot(examples, 2)).astype(float)


@contextmanager
def slot_features() -> Iterator[None]:
    """The features of slots beside mechcore's own."""
    features = {f"slot {i + 1}": partial(slot, i=i) for i in range(N_SLOTS)}
    with ExitStack() as stack:
        for name, feature in (features | {"slots 2 and 3 equal": equal}).items():
            FEATURES.register(name)(feature)
            stack.callback(FEATURES.remove, name)
        yield


def planted(seed: int, n: int = 200, noise: float = 0.01) -> pd.DataFrame:
    """Responses of a planted transformer's components."""
    population = Population(N_SLOTS, {0: (0.8, 0.8)})
    with TemporaryDirectory() as folder, slot_features():
        plant(CIRCUIT, folder, Form(norms=False, noise=noise, seed=seed))
        model, data = load_model(folder), []
        for i in range(2):
            texts = as_texts("id", *population.draw(n, "id", 2 * seed + i), np.arange(n) % 3)
            data.append(encode(texts, tokenizer_of(), max_length=32))
        means = MeanActivations.compute(model, data[0], n_samples=0)
        ablations = ablate(model, sets.singles(model), data[1], means, split="ood")
        examples = data[1].examples
        labels, features = examples.frame["label"].tolist(), feature_table(examples)
    return responses(ablations, features, labels)


def responses(ablations: Ablations, features: pd.DataFrame, labels: list[str]) -> pd.DataFrame:
    """The table without shares of variance, which take most time."""
    kinds = dict.fromkeys(ablations.sets, COMPONENT)
    rows = response_rows(ablations, kinds, features, labels, n_resamples=2)
    return with_adjusted_p([*takewhile(lambda row: row["label"] != ALL, rows)])


def simulated(seed: int, n: int = 400, n_clusters: int = 60, shared: float = 0.3) -> pd.DataFrame:
    """Responses of five components with one each, five that follow the margin, and ten idle."""
    rng = np.random.default_rng(seed)
    cluster = rng.integers(n_clusters, size=n)

    def noise() -> np.ndarray:
        of_cluster = rng.normal(size=n_clusters)[cluster]
        return shared**0.5 * of_cluster + (1 - shared) ** 0.5 * rng.normal(size=n)

    features = pd.DataFrame({f"feature {i}": noise() for i in range(8)})
    margin = features["feature 0"].to_numpy() + noise() + 1
    changes = {f"L0.H{i}": -0.5 * features[f"feature {i}"].to_numpy() for i in range(5)}
    changes |= {f"L1.H{i}": -0.5 * margin for i in range(5)}
    changes |= {f"L2.H{i}": np.zeros(n) for i in range(10)}
    correct = torch.tensor(np.eye(2, dtype=bool)[np.arange(n) % 2])

    def evaluation(margin: np.ndarray) -> Evaluation:
        logits = torch.where(correct, torch.tensor(margin)[:, None], torch.tensor(0.0))
        return Evaluation(logits, correct, np.full(n, "all", dtype=object), "", cluster)

    without = {
        ComponentSet.of([name]): evaluation(margin + change + noise())
        for name, change in changes.items()
    }
    ablations = Ablations.of(evaluation(margin), without, "simulated", "id")
    return responses(ablations, features, ["no", "yes"] * (n // 2))


def scores(table: pd.DataFrame, truth: dict[str, str]) -> tuple[float, float]:
    """Shares of components of ``truth`` whose feature is first, and of wrong responses shown."""
    first = strongest(table[table["kind"] == COMPONENT]).set_index("set")["feature"]
    shown = table[(table["kind"] == COMPONENT) & (table["p_adjusted"] < SIGNIFICANT)]
    wrong = shown["set"].map(truth) != shown["feature"]
    right = [first.get(name) == feature for name, feature in truth.items()]
    return float(np.mean(right)), float(wrong.mean()) if len(shown) else 0.0


def main() -> None:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=100)
    draws = range(parser.parse_args().draws)
    right = np.array([scores(planted(seed), PLANTED)[0] for seed in draws])
    print(f"planted: right feature first {right.mean():.3f}, of all in {(right == 1).mean():.3f}")
    for shared in (0.0, 0.3):
        shares = np.array([scores(simulated(seed, shared=shared), SIMULATED) for seed in draws])
        right, wrong = shares.T
        print(f"simulated, clusters share {shared}: right feature first {right.mean():.3f}", end="")
        print(f", of all in {(right == 1).mean():.3f}; wrong among those shown {wrong.mean():.4f}")


if __name__ == "__main__":
    main()
