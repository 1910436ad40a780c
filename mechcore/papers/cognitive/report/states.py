"""Sections of a run on the cognitive task on single units and on the projection of states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mechcore.papers.cognitive.report.arms import (
    CLAIMS,
    arm_look,
    arm_name,
    arms_of,
    basis,
    by_arm,
    by_model,
    in_percent,
    model_name,
    of_models,
)
from mechcore.papers.cognitive.units import PROJECTION, SELECTIVITY, SILHOUETTE, TERMS
from mechcore.papers.pages import seed_tables
from mechcore.papers.seeds import ordered, rows_of, seeds_in
from mechcore.report.blocks import Block, Drawing, missing, table_of
from mechcore.report.drawing import (
    BLACK,
    BLUE,
    GREY,
    MAX_WIDTH,
    ORANGE,
    SERIES_MARKERS,
    legend_below,
    new_figure,
    offsets,
    shorten,
    styled,
)
from mechcore.report.run_folder import RunFolder
from mechcore.wording import count, listed, number, whole

MOST_SEEDS = 3

_COLOURS = {"left": ORANGE, "right": BLUE}
_MARKERS = {"motion": SERIES_MARKERS[0], "color": SERIES_MARKERS[2]}
_MOST_ROWS = 20  # rows of a table that is not folded


@CLAIMS.section(
    "selectivity",
    "Mixed selectivity",
    "the regression of single units on the variables",
    "cognitive_selectivity",
    "cognitive_terms",
)
def mixed_selectivity(
    _: RunFolder, table: pd.DataFrame, terms: pd.DataFrame | None
) -> Iterator[Block]:
    """How many variables single units follow."""
    alpha, units = SELECTIVITY["alpha"].show(table["alpha"].max()), table["n_units"].max()
    yield Drawing(
        selectivity_bars(table),
        "selectivity",
        f"Share of the {count(units, 'unit')} of the last layer, at the last token, by how many of "
        f"context, motion, colour and choice they follow (permutation test, p at most {alpha} per "
        "variable). Bars are means over seeds, dots seeds; black strokes are expected if "
        f"no unit follows anything; {basis(table)}",
        "Bar chart of the share of units by how many variables they follow, for each arm; the "
        "numbers are in the table below.",
    )
    yield from seed_tables(
        by_model(table),
        of_models(SELECTIVITY),
        ["arm", "n_variables"],
        ["share", "expected_correlated", "units", "with_interaction"],
        "Units by how many variables they follow",
    )
    if terms is not None:
        yield from seed_tables(
            ordered(by_model(terms), term=dict.fromkeys(terms["term"])),
            of_models(TERMS),
            ["term", "arm"],
            ["share", "expected"],
            "Units that follow each variable or product",
        )


@styled
def selectivity_bars(selectivity: pd.DataFrame) -> Figure:
    """Share of units by how many variables they follow: means as bars, seeds as dots."""
    selectivity = in_percent(selectivity, "share", "expected_correlated")
    arms = arms_of(selectivity)
    figure = new_figure(7.4, 3.7)
    ax = figure.subplots()
    width = 0.8 / len(arms)
    handles: list[Line2D | Patch] = []
    for arm, shift in zip(arms, offsets(len(arms), 0.8 - width), strict=True):
        part, (colour, _) = rows_of(selectivity, arm=arm), arm_look(arm)
        means = part.groupby("n_variables")[["share", "expected_correlated"]].mean()
        at, expected = means.index.to_numpy() + shift, means["expected_correlated"]
        ax.bar(at, means["share"], width=0.9 * width, color=colour, alpha=0.75)
        ax.hlines(expected, at - 0.48 * width, at + 0.48 * width, colors=BLACK, lw=2, zorder=3)
        if len(seeds_in(part)) > 1:
            look: dict[str, Any] = {"s": 14, "color": "white", "edgecolors": "#333333"}
            ax.scatter(part["n_variables"] + shift, part["share"], zorder=4, linewidths=0.9, **look)
        handles.append(Patch(facecolor=colour, alpha=0.75, label=arm_name(arm)))
    handles.append(Line2D([], [], color=BLACK, lw=2, label="expected without selectivity"))
    counts = sorted(selectivity["n_variables"].unique())
    ax.set_xticks(counts, labels=[number(n, 0) for n in counts])
    ax.set_xlabel("variables that a unit follows")
    ax.set_ylabel("units of the last layer (%)")
    ax.set_ylim(bottom=0)
    ax.grid(axis="y")
    legend_below(figure, handles)
    return figure


@CLAIMS.section(
    "projection",
    "Projection of the states",
    "",
    "cognitive_projection",
    "cognitive_silhouette",
)
def projection(
    _: RunFolder, table: pd.DataFrame | None, apart: pd.DataFrame | None
) -> Iterator[Block]:
    """The states in two dimensions, and how far choices and contexts are apart in them."""
    if table is None:
        yield missing("the projection to two dimensions")
    else:
        yield from _projection(table, apart)
    if apart is None:
        yield missing("the silhouettes of choices and contexts")
        return
    points = apart["method"].str.upper() + " points"
    rows = by_model(apart.assign(space=apart["space"].where(apart["space"] != "points", points)))
    caption = (
        "Separation of groups: silhouette from \u22121 to 1, in the states themselves and in "
        "the projected points, against shuffled labels"
    )
    shown = ["arm", "seed", "variable", "space", "silhouette", "null_mean", "null_95"]
    folded = len(rows) > _MOST_ROWS
    yield table_of(rows, of_models(SILHOUETTE), caption, shown, folded=folded)


def _projection(table: pd.DataFrame, apart: pd.DataFrame | None) -> Iterator[Block]:
    n_seeds, n = len(seeds_in(table)), table.groupby(["arm", "seed"]).size()
    rest = f", of {n_seeds} seeds the first {MOST_SEEDS}" if n_seeds > MOST_SEEDS else ""
    words = listed([name.upper() for name in dict.fromkeys(table["method"])])
    yield Drawing(
        projections(table, apart),
        "projection",
        f"States of the last layer at the last token in two dimensions by {words}: a panel per "
        f"model{rest}, a mark per test trial (n = {whole(n.max())} each), coloured by the model's "
        "answer, shaped by the context. Axes have no meaning and differ between "
        "panels. For illustration only: the silhouettes measure whether groups are apart; those "
        "under the panels are of the states.",
        f"Scatter plots of states in two dimensions by {words}, a panel per model; silhouettes are "
        "in the table below.",
    )
    made = by_arm(table.drop_duplicates(["arm", "seed", "description"]))
    shown, caption = ["arm", "seed", "description"], "How each panel was made"
    yield table_of(made, of_models(PROJECTION), caption, shown, folded=True)


@styled
def projections(points: pd.DataFrame, silhouettes: pd.DataFrame | None = None) -> Figure:
    """States in two dimensions: arms as columns, seeds as rows; open marks are wrong answers."""
    arms, seeds = arms_of(points), seeds_in(points)[:MOST_SEEDS]
    width = min(max(0.6 + 3.0 * len(arms), 4.6), MAX_WIDTH)
    figure = new_figure(width, 3.0 * len(seeds) + (0.6 if len(arms) > 1 else 1.0))
    axes = figure.subplots(len(seeds), len(arms), squeeze=False)
    for row, seed in zip(axes, seeds, strict=True):
        for ax, arm in zip(row, arms, strict=True):
            part = rows_of(points, arm=arm, seed=seed)
            _draw_points(ax, part)
            ax.set_title(model_name(arm, seed))
            if silhouettes is not None:
                ax.set_xlabel(_apart(rows_of(silhouettes, arm=arm, seed=seed, space="states")))
            ax.set_visible(len(part) > 0)
    look: dict[str, Any] = {"ls": "none", "ms": 6, "color": GREY}
    handles: list[Line2D | Patch] = [
        Patch(facecolor=colour, label=f"answers {name}") for name, colour in _COLOURS.items()
    ]
    handles += [
        Line2D([], [], marker=marker, label=f"context {name}", **look)
        for name, marker in _MARKERS.items()
    ]
    if not points["correct"].all():
        handles.append(Line2D([], [], marker="o", mfc="none", label="wrong", **look))
    legend_below(figure, handles, columns=5 if len(arms) > 1 else 2)
    return figure


def _draw_points(ax: Axes, part: pd.DataFrame) -> None:
    look: dict[str, Any] = {"s": 15, "linewidths": 0.8, "alpha": 0.75}
    for (choice, context, correct), some in part.groupby(["choice", "context", "correct"]):
        colour, marker = _COLOURS[str(choice)], _MARKERS[str(context)]
        face = colour if correct else "none"
        ax.scatter(some["x"], some["y"], marker=marker, fc=face, ec=colour, **look)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(True)


def _apart(rows: pd.DataFrame) -> str:
    parts = [
        f"{shorten(variable, 12)} {number(value, 2, signed=True)}"
        for variable, value in zip(rows["variable"], rows["silhouette"], strict=True)
    ]
    return f"silhouette: {', '.join(parts)}" if parts else ""
