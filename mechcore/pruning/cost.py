"""What it costs to find a subnetwork, counted while it is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass
class Cost:
    """Passes of single texts through a whole model.

    One example under one mask is one pass, and one for each beginning where answers have several
    tokens. Divide by the number of examples for passes per example.

    Attributes:
        forwards: forward passes.
        backwards: backward passes.
    """

    forwards: int = 0
    backwards: int = 0


@contextmanager
def counted(model: Any) -> Iterator[Cost]:
    """Count the passes of a model inside the block, whatever it is that runs it.

    >>> with counted(model) as cost:  # doctest: +SKIP
    ...     METHODS["ugs"](request)
    >>> cost.forwards / len(request.data)  # doctest: +SKIP
    """
    cost = Cost()

    def backward(gradient: Tensor) -> None:
        cost.backwards += len(gradient)

    def forward(module: Any, given: Any, logits: Tensor) -> None:
        cost.forwards += len(logits)
        if logits.requires_grad:
            logits.register_hook(backward)

    handle = model.register_forward_hook(forward)
    try:
        yield cost
    finally:
        handle.remove()
