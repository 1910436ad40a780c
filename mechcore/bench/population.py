"""Texts of planted transformers: how slots depend on labels, and exact results over all texts."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from mechcore.bench.circuit import Circuit, Means
from mechcore.bench.planting import CLASSES, MOST_FILLERS, token_values
from mechcore.components import Component
from mechcore.data.examples import Examples

Domain: TypeAlias = Literal["id", "ood"]
WORDS: Mapping[int, str] = {1: "yes", -1: "no"}


@dataclass(frozen=True)
class Population:
    """How slots depend on the label, "plus" or "minus" with equal probability.

    Attributes:
        cues: slots that agree with the label with these probabilities, in and out of domain.
        agreeing: pairs of slots whose values are equal where the label is "plus" and differ where
            it is "minus", each value at random.
    """

    n_slots: int
    cues: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    agreeing: Collection[tuple[int, int]] = ()

    def draw(
        self, n: int, domain: Domain, seed: int
    ) -> tuple[Int[np.ndarray, "text slot"], Int[np.ndarray, " text"]]:
        """Slot values and labels, each 1 or -1, of random texts."""
        rng = np.random.default_rng(seed)
        labels = rng.choice([1, -1], n)
        values = rng.choice([1, -1], (n, self.n_slots))
        for slot, chances in self.cues.items():
            values[:, slot] = np.where(rng.random(n) < chances[domain == "ood"], labels, -labels)
        for first, second in self.agreeing:
            values[:, second] = values[:, first] * labels
        return values, labels

    def every(self, domain: Domain) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All slot values [text, slot], with labels and probabilities [text]."""
        rows = itertools.product([1, -1], repeat=self.n_slots + 1)
        labels, values = np.split(np.array(list(rows)), [1], axis=1)
        agrees = values == labels
        chance = np.full(len(values), 0.5 ** (self.n_slots + 1))
        for slot, chances in self.cues.items():
            right = chances[domain == "ood"]
            chance *= 2 * np.where(agrees[:, slot], right, 1 - right)
        for first, second in self.agreeing:
            chance *= 2 * (values[:, second] == values[:, first] * labels[:, 0])
        return values, labels[:, 0], chance


def as_texts(name: str, values: np.ndarray, labels: np.ndarray, n_fillers: np.ndarray) -> Examples:
    """Texts with these slot values [text, slot]; the subset is the label's name."""
    texts = [" ".join(words) for words in _words(values, n_fillers)]
    names = [CLASSES[int(label > 0)] for label in labels]
    frame = {"text_a": texts, "text_b": "", "label": names, "subset": names}
    return Examples(name, pd.DataFrame(frame))


def _words(values: np.ndarray, n_fillers: np.ndarray) -> list[list[str]]:
    return [
        [*(WORDS[int(value)] for value in row), *["well"] * int(n), "so"]
        for row, n in zip(values, n_fillers, strict=True)
    ]


@dataclass(frozen=True)
class Oracle:
    """Exact answers of a circuit over a whole population, with any parts ablated."""

    circuit: Circuit
    population: Population
    causal: bool

    @cached_property
    def means(self) -> Means:
        """Mean outputs of components in domain."""
        values, _, chance = self.population.every("id")
        tokens, lengths, chance = self._texts(values, chance)
        return self.circuit.means(tokens, lengths, causal=self.causal, weights=chance)

    def _texts(
        self, values: np.ndarray, chance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every text with every number of fillers: token values, lengths, probabilities."""
        fillers = np.repeat(np.arange(MOST_FILLERS + 1), len(values))
        many = np.tile(values, (MOST_FILLERS + 1, 1))
        words = _words(many, fillers)
        lengths = np.array([len(row) + 1 for row in words])
        return token_values(words), lengths, np.tile(chance, MOST_FILLERS + 1) / (MOST_FILLERS + 1)

    def margins(
        self, domain: Domain, without: Collection[Component] = ()
    ) -> tuple[Float[np.ndarray, " text"], Float[np.ndarray, " text"]]:
        """Log-odds of the right class of every text, in nats, and the texts' probabilities."""
        values, labels, chance = self.population.every(domain)
        tokens, lengths, chance = self._texts(values, chance)
        log_odds = self.circuit.answers(
            tokens, lengths, causal=self.causal, without=without, means=self.means
        )
        return log_odds * np.tile(labels, MOST_FILLERS + 1), chance

    def margin(self, domain: Domain, without: Collection[Component] = ()) -> float:
        """Mean log-odds of the right class, in nats."""
        margins, chance = self.margins(domain, without)
        return float(margins @ chance)

    def accuracy(self, domain: Domain, without: Collection[Component] = ()) -> float:
        """Share of right answers; answers without a preference count as half."""
        margins, chance = self.margins(domain, without)
        right = np.where(np.abs(margins) < NOTHING, 0.5, margins > 0)
        return float(right @ chance)

    def change(self, domain: Domain, without: Collection[Component]) -> float:
        """Change in margin without these components, in nats; negative is worse."""
        return self.margin(domain, without) - self.margin(domain)

    def interaction(self, domain: Domain, a: Component, b: Component) -> float:
        """Joint change minus the two single changes, in nats; 0 if below a thousandth."""
        joint, *alone = (self.change(domain, parts) for parts in ([a, b], [a], [b]))
        interaction = joint - alone[0] - alone[1]
        return interaction if abs(interaction) > _LEAST else 0.0


NOTHING = 1e-6
"""Rounding error, in nats."""
_LEAST = 1e-3  # least nats of an interaction: attention is not exactly one-hot
