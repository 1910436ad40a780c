"""What a page lets its reader choose from, as a figure for notebooks and files."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mechcore.report.blocks import Block, Drawing
from mechcore.report.drawing import BLUE, GREY, VERMILION, legend_below, new_figure, styled
from mechcore.report.graph_block import Graph
from mechcore.report.scatter_block import WIDE, Scatter

_COLOURS = {
    "both": "#1c2128",
    "harmful-out": "#a0278a",
    "in": BLUE,
    "out": "#b84700",
    "harmful-in": "#00795a",
    "threshold": "#a37800",
    "none": "#8a939d",
    "worse": VERMILION,
    "better": "#00795a",
    "unsure": GREY,
}
"""Of CSS classes, as in ``report.css`` on white."""
_PIXELS = 96


def still(block: Block) -> Drawing | None:
    """The figure of a block; None if it is no drawing."""
    if isinstance(block, Scatter):
        return Drawing(_scatter(block), "scatter", block.caption, block.caption)
    if isinstance(block, Graph):
        return Drawing(_graph(block), "graph", block.caption, block.caption)
    return block if isinstance(block, Drawing) else None


@styled
def _scatter(block: Scatter) -> Figure:
    figure = new_figure(*(side / _PIXELS * 1.1 for side in WIDE))
    ax = figure.subplots()
    for dot in reversed(block.dots):
        colour, faint = _COLOURS[dot.spot.look], 0.25 if dot.spot.look == "none" else 0.5
        for x1, y1, x2, y2 in dot.lines:
            ax.plot((x1, x2), (y1, y2), color=colour, lw=1.2, alpha=faint)
        fill = colour if dot.spot.sure else "white"
        ax.scatter(dot.x, dot.y, s=30, facecolors=fill, edgecolors=colour, zorder=3)
        if (label := dot.label) is not None:
            _name(ax, dot.spot.name, (dot.x, dot.y), (label.dx, -label.dy), label.anchor)
    ax.axvline(block.x.zero, color=GREY, lw=0.8)
    ax.axhline(block.y.zero, color=GREY, lw=0.8)
    ax.set(xlim=(0, 100), ylim=(100, 0), xlabel=block.x.title, ylabel=block.y.title)
    ax.set_xticks([x for x, _ in block.x.ticks], [text for _, text in block.x.ticks])
    ax.set_yticks([y for y, _ in block.y.ticks], [text for _, text in block.y.ticks])
    ax.grid()
    _legend(figure, block.legend)
    return figure


@styled
def _graph(block: Graph) -> Figure:
    figure = new_figure(max(block.width, 640) / _PIXELS, (block.height + 60) / _PIXELS)
    ax = figure.subplots()
    for line in block.lines:
        look, *unsure = line.edge.look.split()
        ends = (line.start.x, line.end.x), (line.start.y, line.end.y)
        dashes = "--" if look == "better" else "-"
        alpha = 0.3 if unsure else 0.75
        ax.plot(*ends, dashes, color=_COLOURS[look], lw=0.75 * line.width, alpha=alpha)
    for spot in block.spots:
        ax.scatter(spot.x, spot.y, s=80, color=_COLOURS[spot.node.look], zorder=3)
        _name(ax, spot.node.name, (spot.x, spot.y), (0, 9), "middle")
    ax.set(xlim=(0, 100), ylim=(100, -5), yticks=[])
    ax.set_xticks([x for x, _ in block.headings], [text for _, text in block.headings])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    _legend(figure, block.legend)
    return figure


def _name(ax: Any, name: str, at: tuple[float, float], by: tuple[float, float], side: str) -> None:
    """Write a name beside a dot; pixels of a page are three quarters of a point."""
    place = tuple(0.75 * shift for shift in by)
    align = {"start": "left", "middle": "center", "end": "right"}[side]
    ax.annotate(name, at, place, textcoords="offset points", ha=align, size=8, zorder=4)


def _legend(figure: Figure, legend: Any) -> None:
    handles = []
    for look, text in legend:
        is_line = look in ("worse", "better", "unsure")
        marks: dict[str, Any] = {"lw": 3} if is_line else {"lw": 0, "marker": "o"}
        handles.append(Line2D([], [], color=_COLOURS[look], label=text, **marks))
    legend_below(figure, handles, columns=3)
