"""Results that display themselves: one line when printed, with a table in notebooks."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING, Any

from mechcore.errors import shown

if TYPE_CHECKING:
    import pandas as pd

ROWS = 20


class Shown:
    """Base of results that are dataclasses, with ``repr=False``."""

    def _summary(self) -> str:
        """A one-line summary; by default its fields, with the shapes of tensors and tables."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return ", ".join(f"{k}={_brief(v)}" for k, v in named.items() if not k.startswith("_"))

    def _rows(self) -> pd.DataFrame | None:
        """A table for notebooks; by default the first table among its fields, if any."""
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return next((value for value in values if hasattr(value, "to_html")), None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._summary()})"

    def _repr_html_(self) -> str:
        line = f"<p><b>{type(self).__name__}</b> {escape(self._summary())}</p>"
        table = self._rows()
        return line if table is None else f"{line}{as_html(table)}"


def as_html(table: pd.DataFrame) -> str:
    """The first rows of a table for a notebook, and how many more there are."""
    html = table.head(ROWS).to_html(index=False, border=0, float_format="{:.3f}".format)
    left_out = len(table) - ROWS
    return f"{html}{f'<p>and {left_out} more</p>' if left_out > 0 else ''}"


def _brief(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"[{', '.join(map(str, shape))}]"
    if isinstance(value, Sized) and not isinstance(value, (str, Shown)) and len(value) > 3:
        return f"{type(value).__name__} of {len(value)}"
    return shown(repr(value), 60)
