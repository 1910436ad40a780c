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


def columns(text: str, numbers: str, flags: str = "", optional: str = "") -> Columns:
    """The same from names with spaces between them."""
    return Columns(*(tuple(names.split()) for names in (text, numbers, flags, optional)))
