"""Figures of what heads do in a run on the cognitive task: what is lost without them, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mechcore.papers.cognitive.report.arms import (
    arm_look,
    arm_name,
    arms_of,
    fills_of,
    models_of,
    over_seeds,
)
from mechcore.papers.cognitive.svm import SVM
from mechcore.report.drawing import (
    BLACK,
    LIGHT_GREY,
    MAX_WIDTH,
    SERIES_MARKERS,
    Dots,
    GridShape,
    draw_dots,
    draw_grid,
    intervals,
    legend_below,
    new_figure,
    offsets,
    shorten,
    styled,
)
from mechcore.report.seeds import in_order
from mechcore.wording import ALL, number

TARGETS = ("choice", "correct", "congruent", "condition")
SURE = "centre_significant"
"""The column with the centre of those heads alone whose drop has an interval above 0."""
_SMALLEST_CELL = 0.06
_MAP = 0.45
"""Room for the labels of a map beside others, in inches."""


# -- maps of heads ------------------------------------------------------------------------------


def _shape(table: pd.DataFrame, abreast: int) -> GridShape:
    return GridShape.of(table, abreast, _SMALLEST_CELL)


def _map_axes(
    shape: GridShape, rows: int, columns: int, *, bars_below: bool
) -> tuple[Figure, np.ndarray]:
    """Empty panels for maps of heads, rows by columns."""
    width = columns * max(shape.cell * shape.width + _MAP, 1.35) + (0.7 if bars_below else 1.5)
    height = rows * (shape.cell * shape.n_layers + _MAP) + (1.3 if bars_below else 0.6)
    figure = new_figure(max(width, 4.0), height, square_cells=True)
    return figure, figure.subplots(rows, columns, squeeze=False)


@styled
def head_drops(ablation: pd.DataFrame) -> Figure:
    """Drop without each head, mean over seeds: layer x head by arm and way of ablating."""
    arms, fills = arms_of(ablation), fills_of(ablation)
    shape = _shape(ablation, len(arms))
    means = over_seeds(ablation, ["fill", "component", "layer", "head"], ["drop"])
    palette = matplotlib.colormaps["RdBu_r"]
    figure, axes = _map_axes(shape, len(fills), len(arms), bars_below=False)
    for row, fill in zip(axes, fills, strict=True):
        of_fill = means[means["fill"] == fill]
        most = float((100 * of_fill["drop"]).abs().max())
        norm = Normalize(-(most or 1.0), most or 1.0)
        for ax, arm in zip(row, arms, strict=True):
            part = of_fill[of_fill["arm"] == arm].assign(drop=lambda t: 100 * t["drop"])
            _draw_map(ax, shape, part, "drop", palette, norm, 0 if most >= 10 else 1)
        row[0].set_ylabel(f"{shorten(fill, 12)} ablation\n\nlayer")
        scale = ScalarMappable(norm, palette)
        figure.colorbar(scale, ax=row, label="drop (points)", fraction=0.04, aspect=18)
    _name_maps(axes, [arm_name(arm) for arm in arms])
    return figure


def _draw_map(
    ax: Axes,
    shape: GridShape,
    part: pd.DataFrame,
    column: str,
    palette: matplotlib.colors.Colormap,
    norm: Normalize,
    digits: int,
) -> None:
    """One map of heads; heads without a value are grey."""
    values = part[column]
    colours = [palette(norm(v)) if np.isfinite(v) else LIGHT_GREY for v in values]
    texts = [number(v, digits) if np.isfinite(v) else "" for v in values]
    draw_grid(ax, shape, part, colours, texts, {})
    ax.set_xlabel("")
    ax.set_ylabel("")


def _name_maps(axes: np.ndarray, titles: Sequence[str]) -> None:
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title)
    for ax in axes[-1]:
        ax.set_xlabel("head")


@styled
def head_decoding(svm: pd.DataFrame) -> Figure:
    """Accuracy of decoding from each head, mean over seeds: layer x head by arm and target.

    Colours go from chance to the best head of a target; heads without a value are grey.
    """
    arms, targets = arms_of(svm), in_order(svm["target"], TARGETS)
    shape = _shape(svm, len(targets))
    keys = ["target", "component", "layer", "head"]
    means = over_seeds(svm, keys, ["accuracy", "chance"])
    palette = matplotlib.colormaps["Blues"]
    figure, axes = _map_axes(shape, len(arms), len(targets), bars_below=True)
    for j, target in enumerate(targets):
        of_target = means[means["target"] == target]
        chance, best = (100 * of_target["chance"].min(), 100 * of_target["accuracy"].max())
        chance = chance if np.isfinite(chance) else 0.0
        norm = Normalize(chance, max(best, chance + 5) if np.isfinite(best) else 100)
        for ax, arm in zip(axes[:, j], arms, strict=True):
            part = of_target[of_target["arm"] == arm]
            part = part.assign(accuracy=100 * part["accuracy"])
            _draw_map(ax, shape, part, "accuracy", palette, norm, 0)
            if len(part) == 0:
                ax.set_visible(False)
        scale = ScalarMappable(norm, palette)
        bar = figure.colorbar(scale, ax=axes[:, j], location="bottom", fraction=0.05, aspect=14)
        ends = (chance, norm.vmax or 100.0) if np.isfinite(best) else ()
        bar.set_ticks(ends, labels=[f"{end:.3g}" for end in ends])
        bar.set_label("accuracy (%)" if ends else "too few examples")
    for row, arm in zip(axes, arms, strict=True):
        row[0].set_ylabel(f"{arm_name(arm)}\n\nlayer")
    _name_maps(axes, [target_name(target) for target in targets])
    return figure


def target_name(target: str) -> str:
    """What is decoded from heads, in words."""
    return shorten(SVM["target"].show(target), 18)


# -- centres of mass ----------------------------------------------------------------------------


@styled
def centres(mass: pd.DataFrame, n_layers: int | None = None) -> Figure:
    """Centre of mass over layers with its interval: a row per model, a panel per subset.

    The last panel is of heads alone whose drop has an interval above 0.
    """
    models, fills = models_of(mass), fills_of(mass)
    subsets = in_order(mass["subset"], [ALL])
    row_of = {model: i for i, model in enumerate(models)}
    mass = mass.assign(row=[row_of[pair] for pair in zip(mass["arm"], mass["seed"], strict=True)])
    figure = new_figure(min(2.2 + 2.6 * (len(subsets) + 1), MAX_WIDTH), 1.35 + 0.3 * len(models))
    axes = figure.subplots(1, len(subsets) + 1, sharex=True, sharey=True)
    labels = [f"{arm_name(arm)}, seed {number(seed, 0)}" for arm, seed in models]
    panels = [(subset, "centre") for subset in subsets] + [(subsets[0], SURE)]
    for ax, (subset, column) in zip(axes, panels, strict=True):
        part = mass[mass["subset"] == subset]
        series = [
            _centre_dots(part[(part["arm"] == arm) & (part["fill"] == fill)], i, j, shift, column)
            for i, arm in enumerate(arms_of(mass))
            for j, (fill, shift) in enumerate(zip(fills, offsets(len(fills), 0.3), strict=True))
        ]
        draw_dots(ax, series, labels if ax is axes[0] else None)
        sure = "\nonly heads with a drop above 0" if column == SURE else ""
        ax.set_title(f"{shorten(subset, 24)} trials{sure}")
        ax.set_xlabel("layer")
        ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    if n_layers is not None:
        axes[0].set_xlim(-0.04 * n_layers - 0.05, (n_layers - 1) + 0.04 * n_layers + 0.05)
    legend_below(figure, [_fill_handle(fill, j) for j, fill in enumerate(fills)])
    return figure


def _centre_dots(part: pd.DataFrame, i: int, j: int, shift: float, column: str) -> Dots:
    arm = part["arm"].iloc[0] if len(part) else ""
    rows = part["row"].to_numpy()
    ends = ("significant_low", "significant_high") if column == SURE else ("low", "high")
    low, high = (part.get(end, part[column]).where(part[column].notna()) for end in ends)
    return Dots(
        "",
        arm_look(arm, i)[0],
        SERIES_MARKERS[j % len(SERIES_MARKERS)],
        rows,
        part[column].to_numpy(),
        intervals(rows, low, high),
        np.full(len(part), j > 0),
        shift,
    )


def _fill_handle(fill: str, j: int) -> Line2D:
    look: dict[str, Any] = {
        "marker": SERIES_MARKERS[j % len(SERIES_MARKERS)],
        "ls": "none",
        "color": BLACK,
    }
    return Line2D(
        [], [], mfc="white" if j else BLACK, label=f"{shorten(fill, 24)} ablation", **look
    )
