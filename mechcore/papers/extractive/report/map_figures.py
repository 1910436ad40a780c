"""Figures of scores in a study of extractive structures: maps by layer, and two scores compared."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from mechcore.papers.extractive.report.looks import KINDS, SCORES, of, seed_name
from mechcore.papers.extractive.report.maps import Map, head_map, token_columns, token_map
from mechcore.report.drawing import (
    GREY,
    LIGHT_GREY,
    MAX_WIDTH,
    ink,
    new_figure,
    shorten,
    styled,
)
from mechcore.report.scatter import draw_by_layer, layer_bar, layer_norm
from mechcore.report.seeds import in_order, seeds_in
from mechcore.wording import number, small

MOST_SEEDS = 3
"""Seeds whose components are drawn one by one."""
_LETTERS = 14
"""Of the name of a token."""
_SMALLEST, _LARGEST = 0.09, 0.42
_ROOM_FOR_TEXT, _ROOM_FOR_NUMBERS = 0.27, 0.16
"""Least side of a cell with a number in it, and beside it, in inches."""
_NARROWEST = 1.05
"""Least width of a panel, in inches, so that titles stay apart."""
_FEW, _MOST_NUMBERS = 6, 200
_LEAST = 0.02
"""A map without larger values has no numbers, which would be zeros."""
_PALETTE = matplotlib.colormaps["RdBu"].with_extremes(bad=LIGHT_GREY)


# -- maps ---------------------------------------------------------------------------------------


@styled
def token_maps(scores: pd.DataFrame, title: str) -> Figure:
    """MLPs and heads by layer and token, a column of panels per score; rows of one task."""
    kinds, names = in_order(scores["kind"], list(KINDS)), in_order(scores["score"], SCORES)
    columns, n_layers = token_columns(scores), _count(scores["layer"])
    maps = [
        [token_map(of(scores, kind=kind, score=name), columns, n_layers) for name in names]
        for kind in kinds
    ]
    titles = [KINDS.get(kind, shorten(kind, _LETTERS)) for kind in kinds]
    return _draw_maps(title, maps, names, titles, "", upright=False)


@styled
def head_maps(scores: pd.DataFrame, title: str) -> Figure:
    """Heads by layer and number, summed over tokens, a panel per score; rows of one task."""
    names, heads = in_order(scores["score"], SCORES), of(scores, kind="head")
    shape = _count(heads["head"]), _count(scores["layer"])
    maps = [[head_map(of(heads, score=name), *shape) for name in names]]
    return _draw_maps(title, maps, names, ["heads"], "head", upright=True)


def _count(numbers: pd.Series) -> int:
    return int(numbers.max()) + 1


def _draw_maps(
    title: str,
    maps: Sequence[Sequence[Map]],
    scores: Sequence[str],
    kinds: Sequence[str],
    label: str,
    *,
    upright: bool,
) -> Figure:
    """Panels of one size; only the last row names its columns, which are the same in all.

    Every panel has its own scale, which its title gives; the colours are the same.
    """
    n_layers, n_columns = maps[0][0].values.shape
    largest = max(_LARGEST, _NARROWEST / n_columns)
    cell = float(np.clip(((MAX_WIDTH - 1.5) / len(scores) - 0.2) / n_columns, _SMALLEST, largest))
    end = "\n" if cell * n_columns < 2 * _NARROWEST else " "  # of the first line of a title
    names = [shorten(name, _LETTERS) for name in maps[0][0].columns]
    below = 0.45 if upright else 0.15 + 0.065 * max(map(len, names))
    width = len(scores) * (cell * n_columns + 0.3) + 1.5
    height = len(kinds) * (cell * n_layers + 0.3 + 0.15 * (end == "\n")) + below + 0.45
    figure = new_figure(width, height, square_cells=True)
    figure.suptitle(shorten(title), size=10.5)
    axes = figure.subplots(len(kinds), len(scores), squeeze=False, sharex=True, sharey=True)
    for row, kind, line in zip(axes, kinds, maps, strict=True):
        for ax, score, each in zip(row, scores, line, strict=True):
            most = _draw_map(ax, each, cell)
            ax.set_title(f"{shorten(score, _LETTERS)},{end}{kind}: \u00b1{small(most)}", size=8.5)
        row[0].set_ylabel("layer")
    shown = range(0, n_columns, _every(n_columns, cell) if upright else 1)
    for ax in axes[-1]:
        ax.set_xticks(
            shown, labels=[names[i] for i in shown], rotation=0 if upright else 90, size=7
        )
        ax.set_xlabel(label)
    axes[0, 0].set_yticks(range(0, n_layers, _every(n_layers, cell)))
    scale = ScalarMappable(Normalize(-1, 1), _PALETTE)
    bar = figure.colorbar(scale, ax=axes, fraction=0.03, aspect=16, shrink=0.8)
    bar.set_ticks([-1, 0, 1], labels=["hinders", "0", "helps"])
    bar.outline.set_visible(False)
    return figure


def _every(n: int, cell: float) -> int:
    """Of so many numbered rows or columns, one in how many is named."""
    return 1 if cell >= _ROOM_FOR_NUMBERS or n <= _FEW else 4


def _draw_map(ax: Axes, each: Map, cell: float) -> float:
    """One map, with numbers in the cells where there is room; returns the end of its scale."""
    finite = each.values[np.isfinite(each.values)]
    most = float(np.abs(finite).max(initial=0.0)) or 1.0
    norm = Normalize(-most, most)
    # Without interpolation the file holds one pixel per cell, however large it is shown.
    ax.imshow(each.values, cmap=_PALETTE, norm=norm, interpolation="none")
    ax.spines[:].set(visible=True, color=LIGHT_GREY, lw=0.8)
    ax.tick_params(length=0, pad=2)
    if cell >= _ROOM_FOR_TEXT and each.values.size <= _MOST_NUMBERS and most >= _LEAST:
        digits = 1 if most >= 1 else 2
        for (i, j), value in np.ndenumerate(each.values):
            if np.isfinite(value):
                text, shade = number(value, digits), ink(_PALETTE(norm(value)))
                ax.text(j, i, text, ha="center", va="center", size=6, color=shade)
    return most


# -- two scores compared ------------------------------------------------------------------------


@styled
def localization(table: pd.DataFrame, r2: pd.DataFrame | None) -> Figure:
    """Informative against downstream scores, a dot per component: kinds by seeds."""
    kinds, seeds = in_order(table["kind"], list(KINDS)), seeds_in(table)[:MOST_SEEDS]
    layers = layer_norm(table["layer"])
    figure = new_figure(min(1.6 + 2.9 * len(seeds), MAX_WIDTH), 0.5 + 2.6 * len(kinds))
    axes = figure.subplots(len(kinds), len(seeds), squeeze=False)
    for row, kind in zip(axes, kinds, strict=True):
        for ax, seed in zip(row, seeds, strict=True):
            part = of(table, kind=kind, seed=seed)
            ax.axvline(0, color=GREY, lw=0.9)
            ax.axhline(0, color=GREY, lw=0.9)
            draw_by_layer(ax, part["informative"], part["downstream"], part["layer"], layers)
            name = KINDS.get(kind, shorten(kind, _LETTERS))
            ax.set_title(f"{name}, {seed_name(seed)}{_r2_of(r2, kind, seed)}")
        row[0].set_ylabel("downstream")
    for ax in axes[-1]:
        ax.set_xlabel("informative")
    layer_bar(figure, axes, layers)
    return figure


def _r2_of(r2: pd.DataFrame | None, kind: str, seed: float) -> str:
    rows = None if r2 is None else of(r2, kind=kind, seed=seed)
    return "" if rows is None or len(rows) == 0 else f": r\u00b2 = {number(rows['r2'].iloc[0])}"
