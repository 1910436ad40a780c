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
        forwards: forward passes. One that begins where another has been, as in sweeps, counts in
            full.
        backwards: backward passes. One through a backward pass counts twice, as it goes back
            through the forward pass, too.
    """

    forwards: float = 0.0
    backwards: float = 0.0

    def __str__(self) -> str:
        return f"{self.forwards:g} forward and {self.backwards:g} backward passes per example"


@contextmanager
def counted(model: Any, n_examples: int) -> Iterator[Cost]:
    """Count the passes of a model inside the block, whatever it is that calls the model.

    One text under one mask is one pass; so is each beginning that is asked for where answers have
    several tokens. Layers that are called by themselves, as by the sharing engines of sweeps, are
    not counted.

    Args:
        model: any TransformerLens model.
        n_examples: that the cost is shared by.

    >>> with counted(model, len(request.data)) as cost:  # doctest: +SKIP
    ...     METHODS["ugs"](request)
    >>> print(cost)  # doctest: +SKIP
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
