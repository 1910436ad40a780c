"""Figures of mean ranks in a study of extractive structures: 0 is best, chance is marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mechcore.papers.extractive.report.looks import WAYS, of, seed_name, tasks_of
from mechcore.report.drawing import (
    BLACK,
    BLUE,
    GREY,
    MAX_WIDTH,
    SERIES_COLOURS,
    SERIES_MARKERS,
    VERMILION,
    Dots,
    draw_dots,
    intervals,
    legend_below,
    new_figure,
    offsets,
    shorten,
    styled,
)
from mechcore.report.seeds import in_order, seeds_in

_DASHES = (0, (4, 2))
_GROUPS = {"early": (VERMILION, "o"), "late": (BLUE, "s")}
_REFERENCES: Mapping[str, tuple[str, Any]] = {
    "none": ("nothing frozen", "-"),
    "all": ("everything frozen", (0, (1, 1.5))),
}
_RANK = "mean rank (0 best)"
_ACROSS = 3
"""Panels that still fit beside each other."""


# -- before and after ---------------------------------------------------------------------------


@styled
def before_and_after(ranks: pd.DataFrame) -> Figure:
    """Mean rank before and after training with its interval: a row per task and seed."""
    models = [(task, seed) for task in tasks_of(ranks) for seed in seeds_in(of(ranks, task=task))]
    row_of = {model: i for i, model in enumerate(models)}
    ranks = ranks.assign(
        row=[row_of[pair] for pair in zip(ranks["task"], ranks["seed"], strict=True)]
    )
    data = in_order(ranks["data"], ["facts", "implications"])
    figure = new_figure(min(2.4 + 3.3 * len(data), MAX_WIDTH), 1.3 + 0.32 * len(models))
    axes = figure.subplots(1, len(data), sharex=True, sharey=True, squeeze=False)[0]
    labels = [f"{task}, {seed_name(seed)}" for task, seed in models]
    for ax, name in zip(axes, data, strict=True):
        part = of(ranks, data=name)
        series = [_state_dots(part, "before", GREY, True), _state_dots(part, "after", BLUE, False)]
        draw_dots(ax, series, labels if ax is axes[0] else None)
        chance = part.groupby("row")["chance"].mean()
        at = chance.index.to_numpy(dtype=float)
        ax.vlines(chance, at - 0.5, at + 0.5, color=BLACK, lw=0.9, ls=_DASHES, zorder=1)
        ax.set_title(name)
        ax.set_xlabel(_RANK)
    axes[0].set_xlim(left=min(-0.4, -0.04 * float(np.nanmax([1.0, *ranks["high"]]))))
    handles = [
        Line2D([], [], marker="o", ls="none", color=GREY, mfc="white", label="before training"),
        Line2D([], [], marker="o", ls="none", color=BLUE, label="after training on facts"),
        Line2D([], [], color=BLACK, lw=0.9, ls=_DASHES, label="chance"),
    ]
    legend_below(figure, handles)
    return figure


def _state_dots(part: pd.DataFrame, state: str, colour: str, hollow: bool) -> Dots:
    rows = of(part, state=state)
    return Dots(
        state,
        colour,
        "o",
        rows["row"].to_numpy(),
        rows["mean_rank"].to_numpy(),
        intervals(rows["row"], rows["low"], rows["high"]),
        np.full(len(rows), hollow),
        -0.12 if hollow else 0.12,
    )


# -- freezing -----------------------------------------------------------------------------------


@styled
def freezing_lines(freezing: pd.DataFrame, chance: Mapping[str, float]) -> Figure:
    """Mean rank by cut with early or late layers frozen: tasks by ways of freezing.

    Args:
        freezing: the rows of one kind of data.
        chance: mean rank by chance, by task; none is drawn for tasks it lacks.
    """
    tasks, ways = tasks_of(freezing), in_order(freezing["way"], list(WAYS))
    figure = new_figure(min(1.2 + 4.2 * len(ways), MAX_WIDTH), 0.8 + 2.5 * len(tasks))
    axes = figure.subplots(len(tasks), len(ways), sharex=True, sharey=True, squeeze=False)
    handles: dict[str, Line2D] = {}
    for row, task in zip(axes, tasks, strict=True):
        for ax, way in zip(row, ways, strict=True):
            handles |= _draw_freezing(ax, of(freezing, task=task, way=way))
            if np.isfinite(level := chance.get(task, np.nan)):
                handles["chance"] = ax.axhline(
                    level, color=BLACK, lw=0.9, ls=_DASHES, label="chance", zorder=1
                )
            ax.set_title(f"{shorten(task, 24)}: {WAYS.get(way, shorten(way, 24))}")
            ax.grid(axis="y")
        row[0].set_ylabel(_RANK)
    for ax in axes[-1]:
        ax.set_xlabel("cut (layers below it are early)")
        ax.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes[0, 0].set_ylim(bottom=-0.3)
    legend_below(figure, list(handles.values()), columns=3)
    return figure


def _draw_freezing(ax: Axes, part: pd.DataFrame) -> dict[str, Line2D]:
    """Means as thick lines, seeds as thin ones, references across; returns legend entries."""
    found = {}
    for group, (colour, marker) in _GROUPS.items():
        rows = of(part, frozen=group)
        if len(rows) == 0:
            continue
        seeds = seeds_in(rows)
        for seed in seeds if len(seeds) > 1 else ():
            one = of(rows, seed=seed).sort_values("cut")
            ax.plot(
                one["cut"], one["mean_rank"], color=colour, marker=marker, ms=2.5, lw=0.8, alpha=0.6
            )
        label = f"{group} layers frozen" + (f", mean of {len(seeds)} seeds" if seeds[1:] else "")
        mean = rows.groupby("cut")["mean_rank"].mean()
        (line,) = ax.plot(mean, color=colour, marker=marker, ms=6, lw=2.2, label=label, zorder=3)
        found[label] = line
    for group, (label, dashes) in _REFERENCES.items():
        level = of(part, frozen=group)["mean_rank"].mean()
        if np.isfinite(level):
            look: dict[str, Any] = {"color": GREY, "lw": 1.2, "ls": dashes, "zorder": 1}
            found[label] = ax.axhline(level, label=label, **look)
    return found


# -- ordering and grafting ----------------------------------------------------------------------


@styled
def seed_dots(
    panels: Sequence[tuple[str, pd.DataFrame]], column: str, names: Mapping[str, str]
) -> Figure:
    """Mean rank of every seed and the mean over them: a row per value of a column.

    Args:
        panels: title and rows (``seed``, ``mean_rank``, ``chance`` and the column) of each.
        column: what stands in the rows of a panel.
        names: its values in order, and what they are called.
    """
    whole = pd.concat([rows for _, rows in panels])
    values, seeds = in_order(whole[column], list(names)), seeds_in(whole)
    across = len(panels) if len(panels) <= _ACROSS else 2
    down = -(-len(panels) // across)
    height = 0.45 + max(0.34, 0.13 * len(seeds)) * len(values)
    size = 3.6 + 2.8 * across, 0.7 + 0.2 * (len(seeds) > 3) + height * down
    figure = new_figure(min(size[0], MAX_WIDTH), size[1])
    axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for i, (ax, (title, rows)) in enumerate(zip(axes.flat, panels, strict=False)):
        _draw_seeds(ax, rows.assign(row=rows[column].map(values.index)), seeds)
        ax.set_title(shorten(title))
        if i + across >= len(panels):  # nothing is below it
            ax.set_xlabel(_RANK)
            ax.tick_params(labelbottom=True)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    first = axes[0, 0]
    first.set_yticks(range(len(values)), labels=[shorten(names.get(v, v)) for v in values])
    first.set_ylim(len(values) - 0.4, -0.6)
    first.set_xlim(left=-0.4)
    handles = first.get_legend_handles_labels()[0]
    if len(seeds) > 1:
        handles.append(Line2D([], [], color=BLACK, lw=2.4, label="mean of the seeds"))
    handles.append(Line2D([], [], color=BLACK, lw=0.9, ls=_DASHES, label="chance"))
    legend_below(figure, handles, columns=5)
    return figure


def _draw_seeds(ax: Axes, rows: pd.DataFrame, seeds: Sequence[float]) -> None:
    """A mark per seed and row, thick strokes for means, a dashed line for chance."""
    series = [
        Dots(
            seed_name(seed),
            SERIES_COLOURS[i % len(SERIES_COLOURS)],
            # Where colours begin again, markers are others.
            SERIES_MARKERS[(i + i // len(SERIES_COLOURS)) % len(SERIES_MARKERS)],
            (one := of(rows, seed=seed))["row"].to_numpy(),
            one["mean_rank"].to_numpy(),
            offset=shift,
        )
        for i, (seed, shift) in enumerate(zip(seeds, offsets(len(seeds), 0.5), strict=True))
    ]
    draw_dots(ax, series, None)
    if len(seeds) > 1:
        means = rows.groupby("row")["mean_rank"].mean()
        ax.vlines(means, means.index - 0.36, means.index + 0.36, color=BLACK, lw=2.4, zorder=2)
    chance = rows["chance"].mean()
    if np.isfinite(chance):
        ax.axvline(chance, color=BLACK, lw=0.9, ls=_DASHES, zorder=1)
