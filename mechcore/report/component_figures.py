"""Components as dots: a scatter plot, and a graph of paths from layer to layer."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mechcore.report.drawing import GREY, VERMILION, legend_below, new_figure, styled

LEAST_DRAWN = 0.03
"""Paths below this share of the largest effect are not drawn."""
BETTER = "#00795a"
_STAGGER = 0.28  # share of a column's width, so that few paths cross other nodes
_WIDEST, _NARROWEST = 6.0, 0.75  # points
_COLUMN, _ROW = 0.75, 0.5  # inches per column and per node
_SIDES = (
    *((6, 4, "left"), (-6, 4, "right"), (6, -10, "left"), (-6, -10, "right")),
    *((0, 7, "center"), (0, -13, "center"), (7, -3, "left"), (-7, -3, "right")),
)
"""Candidate positions of a name, in points from its dot; first those off the intervals."""


@dataclass(frozen=True)
class Reading:
    """A number with the ends of its interval, which may be missing."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Dot:
    """A component on two axes; hollow if not ``sure``, named if ``labelled`` and there is room."""

    name: str
    words: str
    x: Reading
    y: Reading
    colour: str
    sure: bool
    labelled: bool


@dataclass(frozen=True)
class Node:
    """A component in a column with a heading; larger columns are further right."""

    name: str
    words: str
    column: tuple[Hashable, ...]
    heading: str
    colour: str


@dataclass(frozen=True)
class Edge:
    """The change from cutting the path from ``sender`` to ``receiver``."""

    sender: str
    receiver: str
    change: Reading


@styled
def scatter(
    titles: tuple[str, str], dots: Sequence[Dot], legend: Sequence[tuple[str, str]]
) -> Figure:
    """Every component as a dot with its intervals; the first dots are drawn on top."""
    figure = new_figure(8.6, 3.9)
    ax = figure.subplots()
    for rank, dot in reversed([*enumerate(dots)]):
        line: dict[str, Any] = {"color": dot.colour, "lw": 1.2}
        line["alpha"] = 0.5 if dot.labelled else 0.2
        ax.plot((dot.x.low, dot.x.high), (dot.y.value, dot.y.value), **line)
        ax.plot((dot.x.value, dot.x.value), (dot.y.low, dot.y.high), **line)
        fill = dot.colour if dot.sure else "white"
        look: dict[str, Any] = {"s": 42, "facecolors": fill, "edgecolors": dot.colour, "zorder": 3}
        ax.scatter(dot.x.value, dot.y.value, gid=f"spot-{rank}", **look)
    ax.axvline(0, color=GREY, lw=0.9)
    ax.axhline(0, color=GREY, lw=0.9)
    ax.grid()
    ax.set(xlabel=titles[0], ylabel=titles[1])
    legend_below(figure, [_mark(*entry) for entry in legend], columns=3)
    _write_names(ax, dots)
    return figure


def _write_names(ax: Axes, dots: Sequence[Dot]) -> None:
    figure: Any = ax.figure
    figure.draw_without_rendering()  # fixes the positions of the dots
    named = [dot for dot in dots if dot.labelled]
    places = ax.transData.transform([(dot.x.value, dot.y.value) for dot in named] or [(0, 0)])
    taken: list[Any] = []
    for dot in named:
        for dx, dy, side in _SIDES:
            at = (dot.x.value, dot.y.value)
            look: dict[str, Any] = {"ha": side, "size": 8.5, "weight": "bold", "zorder": 4}
            text = ax.annotate(dot.name, at, (dx, dy), textcoords="offset points", **look)
            box = text.get_window_extent()
            inside = ax.bbox.contains(*box.min) and ax.bbox.contains(*box.max)
            if inside and not box.count_overlaps(taken) and not box.count_contains(places):
                taken.append(box)
                break
            text.remove()


@styled
def graph(
    nodes: Sequence[Node], edges: Sequence[Edge], legend: Sequence[tuple[str, str]]
) -> Figure:
    """Nodes in their columns, in keyboard order, and the paths that are large enough to see."""
    columns = [[n for n in nodes if n.column == at] for at in sorted({n.column for n in nodes})]
    rows = max(map(len, columns), default=1)
    size = (max(6.7, _COLUMN * len(columns)), max(3.2, _ROW * rows) + 0.9)
    figure = new_figure(*size)
    ax = figure.subplots()
    places: dict[str, tuple[float, float]] = {}
    for i, members in enumerate(columns):
        shift = 0.0 if i == len(columns) - 1 else _STAGGER * (i % 3 - 1)
        for j, node in enumerate(members):
            places[node.name] = (i, (j + 0.5 + shift) / len(members))
    rank = {node.name: i for i, node in enumerate(nodes)}
    drawn = drawn_of(edges)
    for edge in drawn:
        value, low, high = edge.change.value, edge.change.low, edge.change.high
        ends = zip(places[edge.sender], places[edge.receiver], strict=True)
        share = abs(value / drawn[0].change.value)
        look: dict[str, Any] = {"color": VERMILION} if value < 0 else {"color": BETTER, "ls": "--"}
        look |= {"lw": _NARROWEST + (_WIDEST - _NARROWEST) * share}
        look |= {"alpha": 0.75 if low > 0 or high < 0 else 0.3}
        ax.plot(*ends, gid=f"edge-{rank[edge.sender]}-{rank[edge.receiver]}", **look)
    for node in nodes:
        at = places[node.name]
        ax.scatter(*at, s=95, color=node.colour, zorder=3, gid=f"spot-{rank[node.name]}")
        look = {"ha": "center", "size": 8.5, "weight": "bold", "zorder": 4}
        ax.annotate(node.name, at, (0, 8), textcoords="offset points", **look)
    ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(1, -0.06), yticks=[])
    ax.set_xticks(range(len(columns)), [members[0].heading for members in columns])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    paths = [
        Line2D([], [], color=VERMILION, lw=3, label="worse when cut"),
        Line2D([], [], color=BETTER, lw=3, ls="--", label="better when cut"),
        Line2D([], [], color=GREY, lw=3, alpha=0.5, label="faint: the interval includes 0"),
    ]
    legend_below(figure, [*(_mark(*entry) for entry in legend), *paths], columns=3)
    return figure


def drawn_of(edges: Sequence[Edge]) -> list[Edge]:
    """The edges of a graph that are drawn, the largest first."""
    by_size = sorted(edges, key=lambda edge: -abs(edge.change.value))
    least = LEAST_DRAWN * abs(by_size[0].change.value) if by_size else 0.0
    return [edge for edge in by_size if abs(edge.change.value) >= least > 0]


def _mark(colour: str, text: str) -> Line2D:
    return Line2D([], [], color=colour, label=text, lw=0, marker="o")
