"""What a method costs, in passes through the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Passes of the whole model for each example.

    Attributes:
        forwards: forward passes. One that begins where another has been, as in sweeps, counts in
            full.
        backwards: backward passes. One through a backward pass counts twice, as it goes back
            through the forward pass, too.
    """

    forwards: float
    backwards: float = 0.0

    def __str__(self) -> str:
        return f"{self.forwards:g} forward and {self.backwards:g} backward passes per example"
