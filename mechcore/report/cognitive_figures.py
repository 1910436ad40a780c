"""Figures of a run on the cognitive task: learning, and what heads do. Accuracies in percent."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from mechcore.report.cognitive_arms import (
    arm_look,
    arm_name,
    arms_of,
    in_order,
    models_of,
    modes_of,
    of_model,
    over_seeds,
    seeds_of,
)
from mechcore.report.drawing import (
    BLACK,
    GREY,
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
from mechcore.report.wording import ALL, number, sparsity, whole

CHANCE, CONTEXT_IGNORED = 0.5, 0.75
"""Accuracy by chance, and on all trials of a model that ignores the context."""

_DASH, _DOT = (0, (5, 2)), (0, (1, 1.5))
_SMALLEST_CELL = 0.06
_MOST_TICKS = 9
_MAP = 0.45
"""Room for the labels of a map beside others, in inches."""


# -- learning -----------------------------------------------------------------------------------


@styled
def learning_curves(curve: pd.DataFrame, threshold: float | None = None) -> Figure:
    """Accuracy on all and on incongruent trials by number of samples, mean and seeds of each arm.

    A model that had no samples is a horizontal line.
    """
    figure = new_figure(9.6, 4.4)
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    panels = (("accuracy", "all trials"), ("incongruent", "incongruent trials"))
    handles = {}
    for ax, (column, title) in zip(axes, panels, strict=True):
        for i, arm in enumerate(arms_of(curve)):
            for label, line in _draw_arm(ax, curve[curve["arm"] == arm], arm, i, column):
                handles[label] = line
        ax.set_title(title)
        ax.set_xlabel("training samples")
        ax.grid(axis="y")
        handles |= _references(ax, column, threshold)
    sizes = sorted(curve.loc[curve["n"] > 0, "n"].unique())
    _log_axis(axes[0], sizes)
    least = float(np.nanmin(100 * curve[["accuracy", "incongruent"]].to_numpy()))
    axes[0].set_ylim(min(45.0, least - 3), 102)
    axes[0].set_ylabel("accuracy (%)")
    legend_below(figure, list(handles.values()), columns=3)
    return figure


def _draw_arm(
    ax: Axes, part: pd.DataFrame, arm: str, i: int, column: str
) -> list[tuple[str, Line2D]]:
    """Draw the mean of an arm and its seeds; returns the legend's entries."""
    colour, marker = arm_look(arm, i)
    found = []
    untrained, trained = part[part["n"] == 0], part[part["n"] > 0]
    if len(untrained):
        label = f"{arm_name(arm)}, without samples"
        value = 100 * untrained[column].mean()
        found.append((label, ax.axhline(value, color=colour, lw=1.6, label=label)))
    if len(trained):
        seeds = seeds_of(trained)
        for seed in seeds if len(seeds) > 1 else ():
            one = trained[trained["seed"] == seed].sort_values("n")
            ax.plot(one["n"], 100 * one[column], color=colour, lw=0.8, alpha=0.55)
        mean = trained.groupby("n")[column].mean()
        label = arm_name(arm) + (f", mean of {len(seeds)} seeds" if len(seeds) > 1 else "")
        look = {"color": colour, "marker": marker, "ms": 5, "lw": 2.2, "zorder": 3}
        found += [(label, ax.plot(mean.index, 100 * mean, label=label, **look)[0])]
    return found


def _references(ax: Axes, column: str, threshold: float | None) -> dict[str, Line2D]:
    lines = [(CHANCE, _DOT, "50 %: chance; of incongruent trials, context ignored")]
    if column == "accuracy":
        lines.append((CONTEXT_IGNORED, _DASH, "75 %: context ignored"))
        if threshold is not None and np.isfinite(threshold):
            lines.append((threshold, (0, (5, 1.5, 1, 1.5)), f"{sparsity(threshold)}: threshold"))
    return {
        label: ax.axhline(100 * value, color=BLACK, lw=0.9, ls=dashes, label=label, zorder=1)
        for value, dashes, label in lines
    }


def _log_axis(ax: Axes, sizes: Sequence[float]) -> None:
    """A tick for every size that was tried, of many sizes for some."""
    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    if not sizes:
        ax.set_xlim(1, 10)
        ax.set_xticks([])
        return
    step = -(-len(sizes) // _MOST_TICKS)
    shown = sizes[::-step][::-1]  # the largest is always named
    ax.xaxis.set_major_locator(FixedLocator(shown))
    ax.set_xticks(shown, labels=[whole(size) for size in shown])
    ax.set_xlim(sizes[0] / 1.35, sizes[-1] * 1.35)


# -- what heads do ------------------------------------------------------------------------------


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
    arms, modes = arms_of(ablation), modes_of(ablation)
    shape = _shape(ablation, len(arms))
    means = over_seeds(ablation, ["mode", "component", "layer", "head"], ["drop"])
    palette = matplotlib.colormaps["RdBu_r"]
    figure, axes = _map_axes(shape, len(modes), len(arms), bars_below=False)
    for row, mode in zip(axes, modes, strict=True):
        of_mode = means[means["mode"] == mode]
        most = float((100 * of_mode["drop"]).abs().max())
        norm = Normalize(-(most or 1.0), most or 1.0)
        for ax, arm in zip(row, arms, strict=True):
            part = of_mode[of_mode["arm"] == arm].assign(drop=lambda t: 100 * t["drop"])
            _draw_map(ax, shape, part, "drop", palette, norm, 0 if most >= 10 else 1)
        row[0].set_ylabel(f"{shorten(mode, 12)} ablation\n\nlayer")
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
        bar = figure.colorbar(
            scale, ax=axes[:, j], location="bottom", label="accuracy (%)", fraction=0.05, aspect=14
        )
        bar.ax.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    for row, arm in zip(axes, arms, strict=True):
        row[0].set_ylabel(f"{arm_name(arm)}\n\nlayer")
    _name_maps(axes, [target_name(target) for target in targets])
    return figure


TARGETS = ("choice", "correct", "congruent", "condition")
_TARGET_NAMES = {"correct": "right or wrong", "congruent": "congruence", "condition": "condition"}


def target_name(target: str) -> str:
    """What is decoded from heads, in words."""
    return _TARGET_NAMES.get(target, shorten(target, 18))


@styled
def centres(mass: pd.DataFrame, n_layers: int | None = None) -> Figure:
    """Centre of mass over layers with its interval: a row per model, a panel per subset.

    The last panel is of heads alone whose drop has an interval above 0.
    """
    models, modes = models_of(mass), modes_of(mass)
    subsets = in_order(mass["subset"], [ALL])
    row_of = {model: i for i, model in enumerate(models)}
    mass = mass.assign(row=[row_of[pair] for pair in zip(mass["arm"], mass["seed"], strict=True)])
    figure = new_figure(min(2.2 + 2.6 * (len(subsets) + 1), MAX_WIDTH), 1.35 + 0.3 * len(models))
    axes = figure.subplots(1, len(subsets) + 1, sharex=True, sharey=True)
    labels = [f"{arm_name(arm)}, seed {number(seed, 0)}" for arm, seed in models]
    panels = [(subset, "centre") for subset in subsets] + [(subsets[0], "centre_significant")]
    for ax, (subset, column) in zip(axes, panels, strict=True):
        part = mass[mass["subset"] == subset]
        series = [
            _centre_dots(part[(part["arm"] == arm) & (part["mode"] == mode)], i, j, shift, column)
            for i, arm in enumerate(arms_of(mass))
            for j, (mode, shift) in enumerate(zip(modes, offsets(len(modes), 0.3), strict=True))
        ]
        draw_dots(ax, series, labels if ax is axes[0] else None)
        sure = "\nheads surely above 0 alone" if column == "centre_significant" else ""
        ax.set_title(f"{shorten(subset, 24)} trials{sure}")
        ax.set_xlabel("layer")
        ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    if n_layers is not None:
        axes[0].set_xlim(-0.04 * n_layers - 0.05, (n_layers - 1) + 0.04 * n_layers + 0.05)
    legend_below(figure, [_mode_handle(mode, j) for j, mode in enumerate(modes)])
    return figure


def _centre_dots(part: pd.DataFrame, i: int, j: int, shift: float, column: str) -> Dots:
    arm = part["arm"].iloc[0] if len(part) else ""
    rows, known = part["row"].to_numpy(), part[column].notna()
    lines = intervals(rows, part["low"].where(known), part["high"].where(known))
    return Dots(
        "",
        arm_look(arm, i)[0],
        SERIES_MARKERS[j % len(SERIES_MARKERS)],
        rows,
        part[column].to_numpy(),
        lines if column == "centre" else np.empty((0, 3)),
        np.full(len(part), j > 0),
        shift,
    )


def _mode_handle(mode: str, j: int) -> Line2D:
    look = {"marker": SERIES_MARKERS[j % len(SERIES_MARKERS)], "ls": "none", "color": BLACK}
    return Line2D(
        [], [], mfc="white" if j else BLACK, label=f"{shorten(mode, 24)} ablation", **look
    )


# -- attention to the numbers -------------------------------------------------------------------


@styled
def attention_and_drop(attention: pd.DataFrame, drops: pd.DataFrame) -> Figure:
    """Attention to numbers against the drop without the head, a dot per head and seed by arm.

    ``drops`` are the rows of one way of ablating.
    """
    both = attention.merge(
        drops[["arm", "seed", "component", "drop"]], on=["arm", "seed", "component"]
    )
    arms = arms_of(both)
    layers = Normalize(0, max(both["layer"].max(), 1))
    figure = new_figure(min(1.6 + 2.9 * len(arms), MAX_WIDTH), 3.5)
    axes = figure.subplots(1, len(arms), sharex=True, sharey=True, squeeze=False)[0]
    for ax, arm in zip(axes, arms, strict=True):
        part = both[both["arm"] == arm]
        ax.axvline(1, color=GREY, lw=0.9, ls=_DASH)
        ax.axhline(0, color=GREY, lw=0.9)
        ax.scatter(
            part["ratio"],
            100 * part["drop"],
            c=part["layer"],
            cmap="viridis",
            norm=layers,
            s=24,
            edgecolors="#333333",
            linewidths=0.5,
            zorder=3,
        )
        ax.set_title(arm_name(arm))
        ax.set_xlabel("attention to numbers (times uniform)")
        ax.grid()
    axes[0].set_ylabel("drop without the head (points)")
    axes[0].set_xlim(left=0)
    scale = ScalarMappable(layers, "viridis")
    bar = figure.colorbar(scale, ax=axes, label="layer", fraction=0.04, aspect=22)
    bar.ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    return figure


@styled
def attention_by_layer(attention: pd.DataFrame) -> Figure:
    """Attention to numbers of the heads of a layer, mean, by arm: thin lines are seeds."""
    figure = new_figure(7.0, 3.6)
    ax = figure.subplots()
    ax.axhline(1, color=GREY, lw=0.9, ls=_DASH)
    for i, arm in enumerate(arms_of(attention)):
        colour, marker = arm_look(arm, i)
        seeds = seeds_of(attention, arm)
        by_seed = pd.DataFrame(
            {s: of_model(attention, arm, s).groupby("layer")["ratio"].mean() for s in seeds}
        )
        if len(seeds) > 1:
            ax.plot(by_seed.index, by_seed, color=colour, lw=0.8, alpha=0.55)
        label = arm_name(arm) + (f", mean of {len(seeds)} seeds" if len(seeds) > 1 else "")
        ax.plot(by_seed.mean(axis=1), color=colour, marker=marker, ms=5, lw=2.2, label=label)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("layer")
    ax.set_ylabel("attention to numbers\n(times uniform)")
    ax.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    ax.grid(axis="y")
    legend_below(figure, ax.get_legend_handles_labels()[0], columns=3)
    return figure
