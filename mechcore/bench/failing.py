"""Planted transformers that fail out of domain, each for a known reason.

In domain the first slot agrees with the label; whether the next two are equal always gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mechcore.bench.circuit import ANSWER, Circuit, Gate
from mechcore.bench.planted import LONGEST, copy
from mechcore.bench.planting import Form, plant, tokenizer_of
from mechcore.bench.population import Population, as_texts
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.models import load_model

SLOTS = 10
"""Slots of a text; with few, most texts left for testing would be those of the repair."""


_COMPARISON = [copy("L0.H0", 1, first=1), copy("L1.H3", 2, second=1)]
_EQUAL = Gate(1, "equal", ("first", "second"), {ANSWER: 4})
_LOUD = Circuit(SLOTS, [copy("L0.H2", 0, answer=6), *_COMPARISON], [_EQUAL])
_TURNED, _RANDOM = (0.98, 0.02), (0.98, 0.5)

CIRCUITS: Mapping[str, tuple[Circuit, tuple[float, float]]] = {
    "head": (_LOUD, _TURNED),
    "backup": (
        Circuit(
            SLOTS,
            [
                copy("L0.H2", 0, answer=6, seen=1),
                copy("L1.H1", 0, answer=6, unless="there"),
                *_COMPARISON,
            ],
            [Gate(0, "size", ("seen",), {"there": 1}), _EQUAL],
        ),
        _TURNED,
    ),
    "threshold": (_LOUD, _TURNED),
    "absent": (
        Circuit(
            SLOTS,
            [copy("L0.H2", 0, answer=6)],
            distractors=[copy("L0.H0", 1, idle=1), copy("L1.H3", 2, idle=1)],
        ),
        _RANDOM,
    ),
}
"""What each model computes, and how often the first slot agrees with the label in both domains.

- ``head``: one head copies the first slot, louder than the comparison; without it all is right.
- ``backup``: a second head copies it where the first is gone; without both all is right.
- ``threshold``: as ``head``, but out of domain the first slot is always "yes", so every answer is
  "plus", though the comparison still separates the labels.
- ``absent``: nothing compares, and the first slot is uninformative out of domain.
"""


def failing_data(name: str, sizes: Mapping[str, int], seed: int = 0) -> dict[str, EncodedExamples]:
    """The given number of texts by split; subsets follow slots that do not reveal the label."""
    population, data = Population(SLOTS, {0: CIRCUITS[name][1]}, [(1, 2)]), {}
    for i, (split, n) in enumerate(sizes.items(), 3 * seed):
        values, labels = population.draw(n, "ood" if split == "ood" else "id", i)
        if name == "threshold" and split == "ood":
            values[:, 0] = 1
        fillers = np.random.default_rng([i, n]).integers(0, 3, n)
        kinds = [f"kind {2 * int(a > 0) + int(b > 0) + 1}" for a, b in values[:, 3:5]]
        frame = as_texts(split, values, labels, fillers).frame.assign(subset=kinds)
        data[split] = encode(Examples(split, frame), tokenizer_of(), max_length=LONGEST)
    return data


def failing_model(name: str, folder: str | Path, *, seed: int = 0, noise: float = 0.0) -> Any:
    """One of `CIRCUITS`, written to a folder as a checkpoint and loaded."""
    plant(CIRCUITS[name][0], folder, Form("encoder", norms=False, noise=noise, seed=seed))
    return load_model(folder)
