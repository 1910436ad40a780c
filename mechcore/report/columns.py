"""What a table of a run must have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Columns:
    """The columns a table must have, by how they are read; ``optional`` are numbers it may lack."""

    text: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """All that it must have."""
        return [*self.text, *self.numbers, *self.flags]
