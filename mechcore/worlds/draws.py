"""Random draws for made-up worlds, the same for a seed in every version of Python."""

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
