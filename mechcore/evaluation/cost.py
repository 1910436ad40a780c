"""What a method costs, in passes through the model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor


@dataclass
class Cost:
    """Passes of the whole model for each example.

    A resumed forward pass counts in full, and a backward pass through a backward pass twice.
    """

    forwards: float = 0.0
    backwards: float = 0.0

    def __str__(self) -> str:
        return f"{self.forwards:g} forward and {self.backwards:g} backward passes per example"


_watching: weakref.WeakKeyDictionary[Any, list[Callable[[Tensor, int], None]]] = (
    weakref.WeakKeyDictionary()
)


@contextmanager
def counted(model: Any, n_examples: int) -> Iterator[Cost]:
    """Count the passes of a model for each of ``n_examples`` inside the block.

    One text (or beginning of an answer) under one mask is one pass. Layers that are called by
    themselves, as in sweeps, are not counted, but those of masks in training (`count_passes`) are.
    """
    cost = Cost()

    def count(logits: Tensor, n_rows: int) -> None:
        def backward(gradient: Tensor) -> None:
            cost.backwards += n_rows / n_examples

        cost.forwards += n_rows / n_examples
        if logits.requires_grad:
            logits.register_hook(backward)

    handle = model.register_forward_hook(lambda module, given, logits: count(logits, len(logits)))
    watching = _watching.setdefault(model, [])
    watching.append(count)
    try:
        yield cost
    finally:
        handle.remove()
        watching.remove(count)


def count_passes(model: Any, logits: Float[Tensor, "mask batch out"]) -> None:
    """Count passes of a model that were run through a copy of its layers, and gave ``logits``."""
    for count in _watching.get(model, ()):
        count(logits, logits.shape[:2].numel())
