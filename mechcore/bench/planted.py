"""Planted transformers by name: circuit, form and truth."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import get_args

import numpy as np

from mechcore.ablation.sets import ComponentSet
from mechcore.bench.case import Case, Truth
from mechcore.bench.circuit import ANSWER, Circuit, Copy, Gate, GateKind, Relay
from mechcore.bench.planting import Family, Form, plant, tokenizer_of
from mechcore.bench.population import Domain, Oracle, Population, as_texts
from mechcore.components import Component
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.models import load_model

LONGEST = 32
"""Upper bound on the tokens of a text."""
SIZES = {"train": 400, "id": 400, "ood": 400}
"""Texts of each split."""
_FAITHFUL = 0.02
"""In-domain accuracy that a subnetwork may lose and still be faithful."""
_NEEDED = 0.05  # accuracy lost without a needed component


@dataclass(frozen=True)
class Planted:
    """A circuit, its texts, and the transformer that runs it."""

    circuit: Circuit
    population: Population
    form: Form = field(default_factory=Form)

    @cached_property
    def oracle(self) -> Oracle:
        """Exact answers of the circuit in its population."""
        return Oracle(self.circuit, self.population, self.form.family == "decoder")

    @property
    def domains(self) -> list[Domain]:
        """The distinct domains."""
        same = all(before == after for before, after in self.population.cues.values())
        return ["id"] if same else ["id", "ood"]

    def truth(self) -> Truth:
        """The truth about the noiseless transformer; interactions are those in domain."""
        parts = sorted(self.circuit.components)
        pairs = itertools.combinations(parts, 2)
        sizes = {ComponentSet((a, b)): self.oracle.interaction("id", a, b) for a, b in pairs}
        interactions = {pair: size for pair, size in sizes.items() if size}
        given = (self._smallest(parts), self._generalising(parts))
        return Truth(frozenset(parts), interactions, *given)

    def _smallest(self, parts: list[Component]) -> frozenset[Component] | None:
        """The smallest subnetwork that is faithful in domain, if unique."""
        wanted = self.oracle.accuracy("id") - _FAITHFUL
        for size in range(len(parts) + 1):
            kept = [
                frozenset(some)
                for some in itertools.combinations(parts, size)
                if self.oracle.accuracy("id", set(parts) - set(some)) >= wanted
            ]
            if kept:
                return kept[0] if len(kept) == 1 else None
        return None

    def _generalising(self, parts: list[Component]) -> frozenset[Component] | None:
        """Components needed out of domain only."""
        if self.domains == ["id"]:
            return None

        def lost(part: Component, domain: Domain) -> float:
            return self.oracle.accuracy(domain) - self.oracle.accuracy(domain, [part])

        return frozenset(
            part for part in parts if lost(part, "ood") > _NEEDED and lost(part, "id") <= _NEEDED
        )

    def case(self, name: str, folder: str | Path, *, seed: int = 0, device: str = "cpu") -> Case:
        """The transformer, written to a folder and loaded, with texts drawn by ``seed``."""
        plant(self.circuit, folder, self.form)
        data: dict[str, EncodedExamples] = {}
        for i, split in enumerate(["train", *self.domains]):
            domain: Domain = "ood" if split == "ood" else "id"
            values, labels = self.population.draw(SIZES[split], domain, seed * len(SIZES) + i)
            fillers = np.random.default_rng([seed, i]).integers(0, 3, len(values))
            texts = as_texts(split, values, labels, fillers)
            data[split] = encode(texts, tokenizer_of(), max_length=LONGEST)
        return Case(name, load_model(folder, device=device), data, self.truth())


def copy(head: str, slot: int, *, unless: str | None = None, **into: float) -> Copy:
    """A named head that copies a slot, with weights by feature."""
    return Copy(Component.parse(head), slot, into, unless)


_FREE = copy("L1.H0", 3, idle=1.0)  # A head that attends sharply and does nothing


def _cued(
    cues: Sequence[int], heads: Sequence[Copy | Relay], *gates: Gate, free: Copy = _FREE
) -> tuple[Circuit, Population]:
    """A circuit with a distractor, and texts where each of these slots is right in 95 %."""
    n_slots = free.slot + 1
    population = Population(n_slots, dict.fromkeys(cues, (0.95, 0.95)))
    return Circuit(n_slots, heads, gates, [free]), population


_TWO = [copy("L0.H1", 0, first=1), copy("L1.H3", 1, second=1), copy("L2.H2", 2, answer=1)]
_RELAYS = [
    Relay(Component(1, 1), "first", {"second": 1}),
    Relay(Component(2, 2), "second", {ANSWER: 2}),
]
_FALLBACK = [copy("L0.H2", 0, answer=2, seen=1), copy("L1.H1", 0, answer=2, unless="there")]
_SEEN = Gate(0, "size", ("seen",), {"there": 1})
_COMPARED = [copy("L0.H2", 0, answer=4), copy("L0.H0", 1, first=1), copy("L1.H3", 2, second=1)]
_MIXED = [
    copy("L0.H0", 0, first=1),
    copy("L0.H3", 1, second=1),
    copy("L0.H2", 2, answer=2, seen=1),
    copy("L1.H1", 2, answer=2, unless="there"),
    copy("L2.H1", 0, answer=-1),
    copy("L2.H3", 3, answer=1),
]


def _gate(layer: int, kind: GateKind, size: float) -> Gate:
    return Gate(layer, kind, ("first", "second"), {ANSWER: size})


_CIRCUITS: dict[str, tuple[Circuit, Population]] = {
    "copies": _cued(
        (0, 1, 2),
        [copy("L0.H1", 0, answer=2), copy("L1.H2", 1, answer=1.5), copy("L2.H0", 2, answer=1)],
    ),
    "and": _cued((0, 1, 2), _TWO, _gate(1, "and", 3)),
    "or": _cued((0, 1, 2), _TWO, _gate(1, "or", 3)),
    "backup": _cued((0, 1), [*_FALLBACK, copy("L2.H3", 1, answer=1)], _SEEN),
    "negative": _cued(
        (0, 1),
        [copy("L0.H0", 0, answer=3), copy("L1.H2", 0, answer=-1), copy("L2.H1", 1, answer=1)],
    ),
    "chain": _cued((0, 1), [copy("L0.H3", 0, first=1), *_RELAYS, copy("L2.H0", 1, answer=1)]),
    "heuristic": (
        Circuit(4, _COMPARED, [_gate(1, "equal", 6)], [_FREE]),
        Population(4, {0: (0.98, 0.02)}, [(1, 2)]),
    ),
    "mixed": _cued(range(4), _MIXED, _gate(1, "or", 3), _SEEN, free=copy("L1.H0", 4, idle=1.0)),
}


def _catalogue() -> dict[str, Planted]:
    """Every circuit as encoder and decoder, half with norms, some with noise."""
    catalogue: dict[str, Planted] = {}
    for i, (name, (circuit, population)) in enumerate(_CIRCUITS.items()):
        for j, family in enumerate(get_args(Family)):
            form = Form(family, norms=(i + j) % 2 == 0, seed=i)
            catalogue[f"{name}-{family}"] = Planted(circuit, population, form)
    for name in ("or-encoder", "backup-decoder", "heuristic-encoder", "mixed-decoder"):
        plain = catalogue[name]
        catalogue[f"{name}-noisy"] = replace(plain, form=replace(plain.form, noise=NOISE))
    return catalogue


NOISE = 0.02
"""Noise of the noisy cases, see `Form`."""
CATALOGUE: Mapping[str, Planted] = _catalogue()
"""Planted transformers by name."""
