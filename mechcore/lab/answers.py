"""The answer to a question: headline, figure and tables, in a notebook or a script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING

import pandas as pd

from mechcore.analyses.base import Analysis
from mechcore.errors import InputError
from mechcore.report.run_folder import RunFolder
from mechcore.showing import Shown, as_html
from mechcore.wording import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mechcore.report.blocks import Block, Drawing


@dataclass(frozen=True, eq=False, repr=False)
class Answer(Shown):
    """The results of an analysis, with the tables of those it needed."""

    kind: type[Analysis]
    run: RunFolder

    @property
    def headline(self) -> str:
        """The main result in one sentence; empty if there is none."""
        return next(iter(self.kind.headlines(self.run)), "")

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Its own tables by name, as in the run's files."""
        names = (schema.name for schema in self.kind.schemas)
        return {name: self.run.tables[name] for name in names if name in self.run.tables}

    @property
    def table(self) -> pd.DataFrame:
        """The first of its tables."""
        return next(iter(self.tables.values()))

    def plot(self) -> Figure:
        """Its first figure; raises `InputError` if the analysis has none."""
        if self._drawing is not None:
            return self._drawing.figure
        raise InputError(f"{self.kind.kind} has no figure; its tables are {', '.join(self.tables)}")

    @cached_property
    def _blocks(self) -> list[Block]:
        return [block for section in self.kind.sections(self.run) for block in section.blocks]

    @property
    def _drawing(self) -> Drawing | None:
        from mechcore.report.blocks import Drawing

        return next((block for block in self._blocks if isinstance(block, Drawing)), None)

    @property
    def _listed(self) -> str:
        return ", ".join(f"{name} ({count(len(t), 'row')})" for name, t in self.tables.items())

    def _summary(self) -> str:
        parts = (f"{self.kind.kind}:", self.headline, f"Tables: {self._listed}")
        return " ".join(filter(None, parts))

    def _repr_html_(self) -> str:
        from mechcore.report.blocks import SVG, Table, as_svg, data_uri

        parts = [f"<b>{escape(self.kind.title)}</b>", *map(escape, self.kind.headlines(self.run))]
        drawing = self._drawing
        if drawing is not None:
            uri = data_uri(as_svg(drawing.figure), SVG)
            parts += [f'<img alt="{escape(drawing.alt)}" src="{uri}">', escape(drawing.caption)]
        block = next((block for block in self._blocks if isinstance(block, Table)), None)
        if block is not None:
            shown = as_html(pd.DataFrame(block.rows, columns=list(block.header)))
            parts += [f"{escape(block.caption)}:", shown]
        else:
            parts.append(as_html(self.table))
        parts.append(f"Full tables in <code>.tables</code>: {escape(self._listed)}")
        return "".join(f"<div>{part}</div>" for part in parts)
