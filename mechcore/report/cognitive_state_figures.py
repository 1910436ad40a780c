"""Figures of what the states of a model say about the trial. Accuracies and shares in percent."""

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
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from mechcore.report.cognitive_arms import (
    arm_look,
    arm_name,
    arms_of,
    in_order,
    of_model,
    over_seeds,
    seeds_of,
)
from mechcore.report.drawing import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT_GREY,
    MAX_WIDTH,
    ORANGE,
    PURPLE,
    SERIES_MARKERS,
    VERMILION,
    legend_below,
    new_figure,
    offsets,
    shorten,
    styled,
)
from mechcore.report.wording import ALL, number

VARIABLES = ("context", "motion", "color", "choice")
UNREAD = "no"
MOST_SEEDS = 3
"""Seeds whose projection is drawn."""

_VALUES = ["accuracy", "chance", "floor", "shuffled_high"]
_CHOICE_COLOURS = (ORANGE, BLUE, GREEN, PURPLE)


# -- decoding -----------------------------------------------------------------------------------


def main_rows(decoding: pd.DataFrame) -> pd.DataFrame:
    """Of each variable the rows to draw: those of balanced trials where there are any."""
    balanced = decoding.loc[decoding["subset"] != ALL, "variable"].unique()
    return decoding[(decoding["subset"] != ALL) | ~decoding["variable"].isin(balanced)]


def positions_of(decoding: pd.DataFrame) -> list[str]:
    """The positions as they are read; as in the table where that differs between trials."""
    places = decoding.groupby("position", sort=False)["place"].mean()
    return [str(name) for name in (places if places.isna().any() else places.sort_values()).index]


def position_name(position: str) -> str:
    """A position in words."""
    return shorten(position.replace("_", " "), 20)


@styled
def decoding_maps(decoding: pd.DataFrame) -> Figure:
    """Accuracy of decoding, mean over seeds: layer x position by arm and variable.

    A dot marks what is not above the floor and the shuffled labels; left of the dashed line
    nothing of the variable was read yet.
    """
    rows = main_rows(decoding)
    arms, variables = arms_of(rows), in_order(rows["variable"], VARIABLES)
    places, n_layers = positions_of(rows), int(rows["layer"].max()) + 1
    means = over_seeds(rows, ["variable", "layer", "position", "read"], _VALUES)
    height = float(np.clip(0.2 * n_layers, 0.9, 3.4))
    width = float(np.clip(0.3 * len(places), 1.1, 2.2))
    figure = new_figure(
        min(len(variables) * (width + 0.15) + 1.7, MAX_WIDTH), len(arms) * (height + 0.3) + 1.1
    )
    axes = figure.subplots(len(arms), len(variables), sharex=True, sharey=True, squeeze=False)
    chance = 100 * means["chance"].min()
    norm = Normalize(chance if np.isfinite(chance) else 0, 100)
    for row, arm in zip(axes, arms, strict=True):
        for ax, variable in zip(row, variables, strict=True):
            part = means[(means["arm"] == arm) & (means["variable"] == variable)]
            _draw_map(ax, part, places, n_layers, norm)
        row[0].set_ylabel(f"{arm_name(arm)}\n\nlayer")
    for ax, variable in zip(axes[0], variables, strict=True):
        ax.set_title(shorten(variable, 16))
    scale = ScalarMappable(norm, "Blues")
    figure.colorbar(scale, ax=axes, label="accuracy (%)", fraction=0.03, aspect=25)
    return figure


def _draw_map(
    ax: Axes, part: pd.DataFrame, places: Sequence[str], n_layers: int, norm: Normalize
) -> None:
    values = np.full((n_layers, len(places)), np.nan)
    at = [places.index(name) for name in part["position"]]
    layers = part["layer"].astype(int).to_numpy()
    values[layers, at] = 100 * part["accuracy"]
    palette = matplotlib.colormaps["Blues"].with_extremes(bad=LIGHT_GREY)
    ax.imshow(values, cmap=palette, norm=norm, aspect="auto", interpolation="nearest")
    weak = (part["accuracy"] <= part[["floor", "shuffled_high"]].max(axis=1)).to_numpy()
    size = 9 if n_layers <= 16 else 4
    ax.scatter(np.array(at)[weak], layers[weak], s=size, color=VERMILION, linewidths=0)
    unread = part[part["read"] == UNREAD]
    if len(unread):
        last = max(places.index(name) for name in unread["position"])
        ax.axvline(last + 0.5, color=BLACK, lw=1.1, ls=(0, (3, 2)))
    ax.set_xticks(range(len(places)), labels=[position_name(name) for name in places])
    ax.tick_params(axis="x", rotation=90)
    ax.yaxis.set_major_locator(MaxNLocator(min(n_layers, 8), integer=True))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


@styled
def decoding_over_prompt(decoding: pd.DataFrame) -> Figure:
    """Accuracy of decoding from the last layer at each position: a panel per variable.

    Thin lines are seeds; black strokes are the floor, the grey area is before the variable is read.
    """
    rows = main_rows(decoding)
    rows = rows[rows["layer"] == rows["layer"].max()]
    arms, variables = arms_of(rows), in_order(rows["variable"], VARIABLES)
    places = positions_of(rows)
    figure = new_figure(min(1.2 + 2.3 * len(variables), MAX_WIDTH), 4.3)
    axes = figure.subplots(1, len(variables), sharey=True, squeeze=False)[0]
    handles: dict[str, Line2D | Patch] = {}
    for ax, variable in zip(axes, variables, strict=True):
        part = rows[rows["variable"] == variable]
        x = {name: i for i, name in enumerate(places)}
        _draw_limits(ax, part, x)
        for i, arm in enumerate(arms):
            of_arm = part[part["arm"] == arm]
            colour, marker = arm_look(arm, i)
            seeds = seeds_of(of_arm)
            for seed in seeds if len(seeds) > 1 else ():
                one = of_arm[of_arm["seed"] == seed].set_index("position")["accuracy"]
                ax.plot(100 * one.reindex(places).to_numpy(), color=colour, lw=0.7)
            mean = of_arm.groupby("position")["accuracy"].mean().reindex(places)
            look: dict[str, Any] = {
                "color": colour,
                "marker": marker,
                "ms": 5,
                "lw": 2.0,
                "zorder": 3,
            }
            label = arm_name(arm)
            handles[label] = ax.plot(100 * mean.to_numpy(), label=label, **look)[0]
        subset = in_order(part["subset"], [ALL])[0]
        ax.set_title(f"{shorten(variable, 16)}\n{shorten(subset, 16)} trials")
        ax.set_xticks(range(len(places)), labels=[position_name(name) for name in places])
        ax.tick_params(axis="x", rotation=90)
        ax.set_xlim(-0.5, len(places) - 0.5)
        ax.grid(axis="y")
    least = 100 * float(np.nanmin(rows["accuracy"]))
    axes[0].set_ylim(min(40.0, least - 3), 103)
    axes[0].set_ylabel("accuracy (%)")
    chance = Line2D([], [], color=BLACK, lw=0.9, ls=(0, (1, 1.5)), label="chance")
    floor = Line2D([], [], color=BLACK, lw=2.2, label="floor: from another variable alone")
    area = Patch(facecolor=LIGHT_GREY, label="not read yet")
    legend_below(figure, [*handles.values(), floor, chance, area], columns=6)
    return figure


def _draw_limits(ax: Axes, part: pd.DataFrame, x: dict[str, int]) -> None:
    """Chance, the floor at each position, and where nothing is read yet."""
    ax.axhline(100 * part["chance"].mean(), color=BLACK, lw=0.9, ls=(0, (1, 1.5)), zorder=1)
    floors = part.groupby("position")["floor"].mean()
    at = np.array([x[str(name)] for name in floors.index])
    ax.hlines(100 * floors, at - 0.3, at + 0.3, colors=BLACK, lw=2.2, zorder=2)
    unread = part.loc[part["read"] == UNREAD, "position"].map(x)
    for place in unread.unique():
        ax.axvspan(place - 0.5, place + 0.5, color=LIGHT_GREY, alpha=0.6, lw=0, zorder=0)


# -- single units -------------------------------------------------------------------------------


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


# -- projection ---------------------------------------------------------------------------------


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
