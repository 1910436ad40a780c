"""Figures of a run on the cognitive task: learning curves, and attention to the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from mechcore.papers.cognitive.report.arms import (
    arm_look,
    arm_name,
    arms_of,
    of_model,
    seeds_of,
)
from mechcore.report.drawing import (
    BLACK,
    GREY,
    MAX_WIDTH,
    legend_below,
    new_figure,
    styled,
)
from mechcore.report.scatter import draw_by_layer, layer_bar, layer_norm
from mechcore.wording import sparsity, whole

CHANCE, CONTEXT_IGNORED = 0.5, 0.75
"""Accuracy by chance, and on all trials of a model that ignores the context."""

_DASH, _DOT = (0, (5, 2)), (0, (1, 1.5))
_MOST_TICKS = 9


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
        look: dict[str, Any] = {"color": colour, "marker": marker, "ms": 5, "lw": 2.2, "zorder": 3}
        found += [(label, ax.plot(mean.index, 100 * mean, label=label, **look)[0])]
    return found


def _references(ax: Axes, column: str, threshold: float | None) -> dict[str, Line2D]:
    lines: list[tuple[float, Any, str]] = [
        (CHANCE, _DOT, "50 %: chance (incongruent trials: context ignored)")
    ]
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
    layers = layer_norm(both["layer"])
    figure = new_figure(min(1.6 + 2.9 * len(arms), MAX_WIDTH), 3.5)
    axes = figure.subplots(1, len(arms), sharex=True, sharey=True, squeeze=False)[0]
    for ax, arm in zip(axes, arms, strict=True):
        part = both[both["arm"] == arm]
        ax.axvline(1, color=GREY, lw=0.9, ls=_DASH)
        ax.axhline(0, color=GREY, lw=0.9)
        draw_by_layer(ax, part["ratio"], 100 * part["drop"], part["layer"], layers)
        ax.set_title(arm_name(arm))
        ax.set_xlabel("attention to numbers (times uniform)")
    axes[0].set_ylabel("drop without the head (points)")
    axes[0].set_xlim(left=0)
    layer_bar(figure, axes, layers)
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
