"""Random draws for made-up worlds, reproducible from a seed in every Python version."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def pick(options: Sequence[T], rng: random.Random) -> T:
    """One of the options.

    Only ``Random.random`` is used: its sequence for a seed is the one Python guarantees to keep.
    """
    return options[int(rng.random() * len(options))]
