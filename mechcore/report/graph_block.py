"""Components as nodes from layer to layer, and what one reads of another as an edge."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

LEAST_DRAWN = 0.03
"""Share of the largest effect under which an edge is not drawn."""
_STAGGER = 28.0  # percent of a column's room, so that few edges run through nodes between
_WIDEST, _NARROWEST = 8.0, 1.0  # pixels
_COLUMN, _ROW = 64, 46  # pixels of a column and of a node's room


@dataclass(frozen=True)
class Node:
    """A component before it has a place; ``look`` is the CSS class of its colour.

    Of columns, each with its heading, the larger comes further to the right.
    """

    name: str
    column: tuple[Hashable, ...]
    heading: str
    look: str
    words: str


@dataclass(frozen=True)
class Edge:
    """What changes where ``receiver`` does not see ``sender``, with the ends of its interval."""

    sender: str
    receiver: str
    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def look(self) -> str:
        """CSS classes: whether it is for the worse, and whether that is sure."""
        sure = self.low > 0 or self.high < 0
        return ("worse" if self.value < 0 else "better") + ("" if sure else " unsure")


@dataclass(frozen=True)
class Spot:
    """A node at its place, in percent."""

    node: Node
    x: float
    y: float


@dataclass(frozen=True)
class Line:
    """An edge at its place, in percent, and its width in pixels."""

    edge: Edge
    start: Spot
    end: Spot
    width: float


@dataclass(frozen=True)
class Graph:
    """The drawing; ``width`` and ``height`` are pixels that it needs."""

    caption: str
    headings: Sequence[tuple[float, str]]
    spots: Sequence[Spot]
    lines: Sequence[Line]
    legend: Sequence[tuple[str, str]]
    width: int
    height: int


def graph(
    caption: str, nodes: Sequence[Node], edges: Sequence[Edge], legend: Sequence[tuple[str, str]]
) -> Graph:
    """Place every node in its column, and draw the edges that are not too small to see.

    Nodes that matter most come first, as the keyboard goes; ``legend`` says what CSS classes mean.
    How many edges are left out is added to the caption.
    """
    columns = sorted({node.column for node in nodes})
    by_column = [[node for node in nodes if node.column == column] for column in columns]
    places: dict[str, Spot] = {}
    headings = []
    for i, members in enumerate(by_column):
        x = round(100 * (i + 0.5) / len(columns), 2)
        headings.append((x, members[0].heading))
        shift = 0.0 if i == len(columns) - 1 else _STAGGER * (i % 3 - 1)
        for j, node in enumerate(members):
            y = (100 * (j + 0.5) + shift) / len(members)
            places[node.name] = Spot(node, x, round(y, 2))
    most = max((abs(edge.value) for edge in edges), default=0.0)
    drawn = [edge for edge in edges if abs(edge.value) >= LEAST_DRAWN * most > 0]
    if left := len(edges) - len(drawn):
        caption += (
            f" {left} of {len(edges)} paths are not drawn: each changes less than "
            f"{100 * LEAST_DRAWN:.0f} % of what the largest does."
        )
    per_effect = (_WIDEST - _NARROWEST) / most if most else 0.0
    lines = []
    for edge in sorted(drawn, key=lambda edge: -abs(edge.value)):
        width = round(_NARROWEST + per_effect * abs(edge.value), 1)
        lines.append(Line(edge, places[edge.sender], places[edge.receiver], width))
    rows = max(map(len, by_column), default=1)
    size = (_COLUMN * len(columns), max(300, _ROW * rows))
    return Graph(caption, headings, [places[n.name] for n in nodes], lines, legend, *size)
