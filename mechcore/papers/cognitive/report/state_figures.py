"""Figures of single units and of projected states in a run on the cognitive task."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mechcore.papers.cognitive.report.arms import (
    arm_look,
    arm_name,
    arms_of,
    of_model,
    seeds_of,
)
from mechcore.report.drawing import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    MAX_WIDTH,
    ORANGE,
    PURPLE,
    SERIES_MARKERS,
    legend_below,
    new_figure,
    offsets,
    shorten,
    styled,
)
from mechcore.report.seeds import in_order
from mechcore.wording import number

MOST_SEEDS = 3
"""Seeds whose projection is drawn."""

_CHOICE_COLOURS = (ORANGE, BLUE, GREEN, PURPLE)


@styled
def selectivity_bars(selectivity: pd.DataFrame) -> Figure:
    """Share of units by how many variables they follow: means as bars, seeds as dots.

    Black strokes are what is expected if no unit follows anything.
    """
    arms = arms_of(selectivity)
    counts = sorted(selectivity["n_variables"].unique())
    figure = new_figure(7.4, 3.7)
    ax = figure.subplots()
    width = 0.8 / len(arms)
    handles: list[Line2D | Patch] = []
    for i, (arm, shift) in enumerate(zip(arms, offsets(len(arms), 0.8 - width), strict=True)):
        part = selectivity[selectivity["arm"] == arm]
        colour, _ = arm_look(arm, i)
        means = part.groupby("n_variables")[["share", "expected_correlated"]].mean()
        at = means.index.to_numpy() + shift
        ax.bar(at, 100 * means["share"], width=0.9 * width, color=colour, alpha=0.75)
        expected = 100 * means["expected_correlated"]
        ax.hlines(expected, at - 0.48 * width, at + 0.48 * width, colors=BLACK, lw=2, zorder=3)
        if len(seeds_of(part)) > 1:
            dots = part["n_variables"] + shift
            look: dict[str, Any] = {
                "s": 14,
                "color": "white",
                "edgecolors": "#333333",
                "linewidths": 0.9,
            }
            ax.scatter(dots, 100 * part["share"], zorder=4, **look)
        handles.append(Patch(facecolor=colour, alpha=0.75, label=arm_name(arm)))
    handles.append(Line2D([], [], color=BLACK, lw=2, label="expected without selectivity"))
    ax.set_xticks(counts, labels=[number(n, 0) for n in counts])
    ax.set_xlabel("variables that a unit follows")
    ax.set_ylabel("units of the last layer (%)")
    ax.set_ylim(bottom=0)
    ax.grid(axis="y")
    legend_below(figure, handles)
    return figure


@styled
def projections(points: pd.DataFrame, silhouettes: pd.DataFrame | None = None) -> Figure:
    """States in two dimensions: arms as columns, seeds as rows; open marks are wrong answers.

    Below each panel stand the ``silhouettes`` of its states.
    """
    arms = arms_of(points)
    seeds = seeds_of(points)[:MOST_SEEDS]
    choices = in_order(points["choice"], ["left", "right"])
    contexts = in_order(points["context"], ["motion", "color"])
    colours = {name: _CHOICE_COLOURS[i % 4] for i, name in enumerate(choices)}
    markers = {name: SERIES_MARKERS[(0, 2, 1, 3)[i % 4]] for i, name in enumerate(contexts)}
    width = min(max(0.6 + 3.0 * len(arms), 4.6), MAX_WIDTH)
    figure = new_figure(width, 3.0 * len(seeds) + (0.6 if len(arms) > 1 else 1.0))
    axes = figure.subplots(len(seeds), len(arms), squeeze=False)
    for row, seed in zip(axes, seeds, strict=True):
        for ax, arm in zip(row, arms, strict=True):
            part = of_model(points, arm, seed)
            _draw_points(ax, part, colours, markers)
            ax.set_title(f"{arm_name(arm)}, seed {number(seed, 0)}")
            if silhouettes is not None:
                ax.set_xlabel(_apart(of_model(silhouettes, arm, seed)))
            ax.set_visible(len(part) > 0)
    look: dict[str, Any] = {"ls": "none", "ms": 6}
    handles: list[Line2D | Patch] = [
        Patch(facecolor=colour, label=f"answers {shorten(name, 16)}")
        for name, colour in colours.items()
    ]
    handles += [
        Line2D([], [], marker=marker, color=GREY, label=f"context {shorten(name, 16)}", **look)
        for name, marker in markers.items()
    ]
    if not points["correct"].all():
        handles.append(Line2D([], [], marker="o", color=GREY, mfc="none", label="wrong", **look))
    legend_below(figure, handles, columns=5 if len(arms) > 1 else 2)
    return figure


def _draw_points(
    ax: Axes, part: pd.DataFrame, colours: dict[str, str], markers: dict[str, str]
) -> None:
    for (choice, context, correct), some in part.groupby(["choice", "context", "correct"]):
        colour = colours[str(choice)]
        ax.scatter(
            some["x"],
            some["y"],
            s=15,
            marker=markers[str(context)],
            facecolors=colour if correct else "none",
            edgecolors=colour,
            linewidths=0.8,
            alpha=0.75,
        )
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(True)


def _apart(silhouettes: pd.DataFrame) -> str:
    rows = silhouettes[silhouettes["space"] == "states"]
    parts = [
        f"{shorten(row['variable'], 12)} {number(row['silhouette'], 2, signed=True)}"
        for _, row in rows.iterrows()
    ]
    return f"silhouette: {', '.join(parts)}" if parts else ""
