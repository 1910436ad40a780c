"""The answer to a question: its headline, its tables and its figure, in a notebook or a script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING

import pandas as pd

from mechcore.analyses.base import Analysis
from mechcore.errors import InputError
from mechcore.report.blocks import Block, Drawing
from mechcore.report.run_folder import RunFolder
from mechcore.showing import Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Answer(Shown):
    """What an analysis found.

    Attributes:
        kind: the analysis.
        run: its tables, and those of the analyses that it needed.
    """

    kind: type[Analysis]
    run: RunFolder

    @property
    def headline(self) -> str:
        """What was found, in a sentence or a few; empty where there is nothing to say."""
        return " ".join(self.kind.headlines(self.run))

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Its own tables by name, as files have them."""
        names = (schema.name for schema in self.kind.schemas)
        return {name: self.run.tables[name] for name in names if name in self.run.tables}

    @property
    def table(self) -> pd.DataFrame:
        """The first of its tables."""
        return next(iter(self.tables.values()))

    def plot(self) -> Figure:
        """Its first figure, which can be saved as SVG, PDF or PNG.

        Raises:
            InputError: it has none.
        """
        for block in self._blocks:
            if isinstance(block, Drawing):
                return block.figure
        raise InputError(
            f"{self.kind.kind}: has no figure; its tables are {', '.join(self.tables)}"
        )

    @cached_property
    def _blocks(self) -> list[Block]:
        return [block for section in self.kind.sections(self.run) for block in section.blocks]

    def _summary(self) -> str:
        return self.headline or f"tables {', '.join(self.tables)}"

    def _rows(self) -> pd.DataFrame:
        return self.table

    def _repr_html_(self) -> str:
        drawn = next((block for block in self._blocks if isinstance(block, Drawing)), None)
        picture = "" if drawn is None else f"{_svg(drawn)}<p>{escape(drawn.caption)}</p>"
        return f"{super()._repr_html_()}{picture}"


def _svg(drawing: Drawing) -> str:
    """A picture inside the page, apart from its ids and styles."""
    from mechcore.report.blocks import as_svg
    from mechcore.report.embedding import SVG, data_uri

    return f'<img alt="{escape(drawing.alt)}" src="{data_uri(as_svg(drawing.figure), SVG)}">'
