"""Figures of what can be decoded from states, by layer and position. Accuracies in percent."""

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

from mechcore.papers.cognitive.report.arms import (
    arm_look,
    arm_name,
    arms_of,
    over_seeds,
    seeds_of,
)
from mechcore.report.drawing import (
    BLACK,
    LIGHT_GREY,
    MAX_WIDTH,
    VERMILION,
    legend_below,
    new_figure,
    shorten,
    styled,
)
from mechcore.report.seeds import in_order
from mechcore.wording import ALL

VARIABLES = ("context", "motion", "color", "choice")
UNREAD = "no"

_VALUES = ["accuracy", "chance", "floor", "shuffled_high"]


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
