"""What a method costs, in passes through the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass
class Cost:
    """Passes of the whole model for each example.

    Attributes:
        forwards: forward passes, one for each mask. One that begins where another has been, as in
            sweeps, counts in full.
        backwards: backward passes. One through a backward pass counts twice, as it goes back
            through the forward pass, too.
    """

    forwards: float = 0.0
    backwards: float = 0.0

    def __str__(self) -> str:
        return f"{self.forwards:g} forward and {self.backwards:g} backward passes per example"


@contextmanager
def counted(model: Any, n_examples: int) -> Iterator[Cost]:
    """Count the passes of a model inside the block, whatever it is that runs it.

    The engines of sweeps run layers by themselves, and do not count.

    Args:
        model: the model.
        n_examples: that passes are divided by.

    >>> with counted(model, len(request.data)) as cost:  # doctest: +SKIP
    ...     METHODS["ugs"](request)
    """
    cost = Cost()

    def backward(gradient: Tensor) -> None:
        cost.backwards += len(gradient) / n_examples

    def forward(module: Any, given: Any, logits: Tensor) -> None:
        cost.forwards += len(logits) / n_examples
        if logits.requires_grad:
            logits.register_hook(backward)

    handle = model.register_forward_hook(forward)
    try:
        yield cost
    finally:
        handle.remove()
