"""Planted transformers that fail out of domain, each for a reason that is known.

In domain, the first slot agrees with the label almost always; whether the second and the third slot
are equal always does. Out of domain the latter alone holds. Subsets, the kinds of examples, go by
the values of slots that say nothing of the label; each kind has both labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mechcore.bench.circuit import ANSWER, Circuit, Copy, Gate
from mechcore.bench.planting import Form, plant, tokenizer_of
from mechcore.bench.population import Domain, Population, as_texts
from mechcore.components import Component
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.models import load_model

LONGEST = 32
"""Tokens of a text, more than any has."""
SLOTS = 10
"""Of a text: with few, most texts that are left for a test would be those of the repair."""


def _copy(head: str, slot: int, *, unless: str | None = None, **into: float) -> Copy:
    return Copy(Component.parse(head), slot, into, unless)


_COMPARISON = [_copy("L0.H0", 1, first=1), _copy("L1.H3", 2, second=1)]
_EQUAL = Gate(1, "equal", ("first", "second"), {ANSWER: 4})
_TURNED, _RANDOM = (0.98, 0.02), (0.98, 0.5)

CIRCUITS: Mapping[str, tuple[Circuit, tuple[float, float]]] = {
    "head": (Circuit(SLOTS, [_copy("L0.H2", 0, answer=6), *_COMPARISON], [_EQUAL]), _TURNED),
    "backup": (
        Circuit(
            SLOTS,
            [
                _copy("L0.H2", 0, answer=6, seen=1),
                _copy("L1.H1", 0, answer=6, unless="there"),
                *_COMPARISON,
            ],
            [Gate(0, "size", ("seen",), {"there": 1}), _EQUAL],
        ),
        _TURNED,
    ),
    "threshold": (Circuit(SLOTS, [_copy("L0.H2", 0, answer=6), *_COMPARISON], [_EQUAL]), _TURNED),
    "absent": (
        Circuit(
            SLOTS,
            [_copy("L0.H2", 0, answer=6)],
            distractors=[_copy("L0.H0", 1, idle=1), _copy("L1.H3", 2, idle=1)],
        ),
        _RANDOM,
    ),
}
"""What each model computes, and how often the first slot agrees with the label in both domains.

- ``head``: one head says the first slot, louder than the comparison; without it all is right.
- ``backup``: a second head says it where the first is gone; without both all is right.
- ``threshold``: as ``head``, but out of domain the first slot is always "yes", so that every label
  is said to be "plus" with a comparison that still tells them apart.
- ``absent``: nothing compares, and the first slot says nothing out of domain.
"""


def failing_examples(name: str, split: str, n: int, seed: int) -> Examples:
    """Texts of a split, drawn at random.

    Args:
        name: one of `CIRCUITS`.
        split: ``train``, ``id`` or ``ood``.
        n: how many.
        seed: seed of the draw.
    """
    domain: Domain = "ood" if split == "ood" else "id"
    population = Population(SLOTS, {0: CIRCUITS[name][1]}, [(1, 2)])
    values, labels = population.draw(n, domain, seed)
    if name == "threshold" and domain == "ood":
        values[:, 0] = 1
    fillers = np.random.default_rng([seed, n]).integers(0, 3, n)
    texts = as_texts(split, values, labels, fillers)
    kinds = [f"kind {2 * int(a > 0) + int(b > 0) + 1}" for a, b in values[:, 3:5]]
    return Examples(split, texts.frame.assign(subset=kinds))


def failing_data(name: str, sizes: Mapping[str, int], seed: int = 0) -> dict[str, EncodedExamples]:
    """The encoded texts of some splits, see `failing_examples`."""
    return {
        split: encode(
            failing_examples(name, split, n, 3 * seed + i), tokenizer_of(), max_length=LONGEST
        )
        for i, (split, n) in enumerate(sizes.items())
    }


def failing_model(name: str, folder: str | Path, *, seed: int = 0, noise: float = 0.0) -> Any:
    """The model, written to a folder as a checkpoint, and loaded.

    Args:
        name: one of `CIRCUITS`.
        folder: for the checkpoint.
        seed: seed of its basis and noise.
        noise: see `Form`.
    """
    plant(CIRCUITS[name][0], folder, Form("encoder", norms=False, noise=noise, seed=seed))
    return load_model(folder)
