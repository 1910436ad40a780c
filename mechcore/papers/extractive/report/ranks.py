"""Sections of a study of extractive structures on mean ranks: 0 is best, chance is marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mechcore.papers.extractive.evidence import TASKS
from mechcore.papers.extractive.experiments.freezing import FREEZING
from mechcore.papers.extractive.experiments.grafting import GRAFTING
from mechcore.papers.extractive.experiments.recall import GRID, RANKS
from mechcore.papers.extractive.report.looks import (
    CHANCE_LINE,
    CLAIMS,
    DATA,
    GRAFTED,
    IMPLICATIONS,
    MEAN_RANK,
    ORDERS,
    OTHER_IMPLICATIONS,
    STATES,
    TEST_IMPLICATIONS,
    WAYS,
    basis,
    replay_name,
    slug,
    sorted_parts,
    tasks_of,
)
from mechcore.papers.pages import seed_tables
from mechcore.papers.seeds import in_order, means_over_seeds, rows_of, seed_name, seeds_in
from mechcore.report.blocks import Block, Drawing, Shown, Table, missing, table_of
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
    draw_over_seeds,
    legend_below,
    new_figure,
    offsets,
    shorten,
    styled,
)
from mechcore.report.run_folder import RunFolder
from mechcore.tables import Column
from mechcore.wording import number

_GROUPS = {"early": (VERMILION, "o"), "late": (BLUE, "s")}
_FROZEN = {group: f"{group} frozen" for group in ("early", "late", "none", "all")}
_REFERENCES = {"none": ("nothing frozen", "-"), "all": ("everything frozen", ":")}
_PANELS = [*TASKS, *(replay_name(replay) for replay in (True, False))]
_ACROSS = 3  # panels that still fit beside each other


@CLAIMS.section(
    "freezing", "Freezing layers", "the freezing of early and late layers", "extractive_freezing"
)
def freezing(run: RunFolder, table: pd.DataFrame) -> Iterator[Block]:
    """Ranks where the changes of early or of late layers are left out."""
    ranks = run.filled("extractive_ranks")
    for data in in_order(table["data"], DATA[-2:]):
        rows = rows_of(table, data=data)
        chance: Mapping[Any, float] = {}
        if ranks is not None:
            chance = rows_of(ranks, data=data).groupby("task")["chance"].mean().to_dict()
        yield Drawing(
            freezing_lines(rows, chance),
            f"freezing-{slug(data)}",
            f"Mean rank of {data} (0 best) by the cut between early and late layers, without the "
            "changes of either group. Thin lines are seeds. If early layers store what the answer "
            f"needs, freezing them ruins it; likewise for late layers; {basis(rows)}",
            f"Line charts of the mean rank of {data} by cut, for early and late layers frozen; the "
            "numbers are in the table below.",
            fold="" if data == IMPLICATIONS else f"The same for {data}",
        )
    yield _freezing_means(rows_of(table, data=IMPLICATIONS))
    shown = ["task", "seed", "way", "cut", "frozen", "data", "mean_rank", "n"]
    caption = "Every seed and cut, early or late layers frozen"
    frozen = table[table["frozen"].isin(_GROUPS)]
    yield table_of(frozen, FREEZING, caption, shown, folded=True)


def _freezing_means(table: pd.DataFrame) -> Table:
    keys = ["task", "way", "cut"]
    means = means_over_seeds(table, [*keys, "frozen"], ["mean_rank"])
    rows = means.pivot(index=keys, columns="frozen", values="mean_rank").reset_index()
    caption = "Mean rank of implications (0 best) by cut: means over seeds"
    rows = sorted_parts(rows, "task", "way")
    groups = ((name, list(map(number, rows[group]))) for group, name in _FROZEN.items())
    return table_of(rows, FREEZING, caption, [*keys, *groups])


@styled
def freezing_lines(freezing: pd.DataFrame, chance: Mapping[str, float]) -> Figure:
    """Mean rank by cut with early or late layers frozen; ``chance`` is by task."""
    tasks, ways = tasks_of(freezing), in_order(freezing["way"], list(WAYS))
    figure = new_figure(min(1.2 + 4.2 * len(ways), MAX_WIDTH), 0.8 + 2.5 * len(tasks))
    axes = figure.subplots(len(tasks), len(ways), sharex=True, sharey=True, squeeze=False)
    handles: dict[str, Line2D] = {}
    for row, task in zip(axes, tasks, strict=True):
        for ax, way in zip(row, ways, strict=True):
            handles |= _draw_freezing(ax, rows_of(freezing, task=task, way=way))
            if np.isfinite(level := chance.get(task, np.nan)):
                handles["chance"] = ax.axhline(level, label="chance", zorder=1, **CHANCE_LINE)
            ax.set_title(f"{shorten(task, 24)}: {WAYS.get(way, shorten(way, 24))}")
            ax.grid(axis="y")
        row[0].set_ylabel(MEAN_RANK)
    for ax in axes[-1]:
        ax.set_xlabel("cut (layers below it are early)")
        ax.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes[0, 0].set_ylim(bottom=-0.3)
    legend_below(figure, list(handles.values()), columns=3)
    return figure


def _draw_freezing(ax: Axes, part: pd.DataFrame) -> dict[str, Line2D]:
    handles: dict[str, Line2D] = {}
    for group, look in _GROUPS.items():
        rows, name = rows_of(part, frozen=group), f"{group} layers frozen"
        if len(rows):
            handles |= draw_over_seeds(ax, rows, "cut", "mean_rank", name, *look)
    for group, (label, dashes) in _REFERENCES.items():
        level = rows_of(part, frozen=group)["mean_rank"].mean()
        if np.isfinite(level):
            handles[label] = ax.axhline(level, label=label, color=GREY, lw=1.2, ls=dashes, zorder=1)
    return handles


@CLAIMS.section(
    "ordering", "Order of learning", "the trainings in three orders", "extractive_ordering"
)
def ordering(_: RunFolder, table: pd.DataFrame) -> Iterator[Block]:
    """Ranks of test implications by what was learned first."""
    caption = "Mean rank (0 best) by what the model learned first, with that data mixed into the "
    caption += "second training (replay) and without"
    table = table.assign(panel=table["replay"].map(replay_name), row=table["order"])
    yield from _dots("ordering", TEST_IMPLICATIONS, table, ORDERS, caption)
    yield _seed_table(table, ORDERS, ["order", "replay"])


@CLAIMS.section("grafting", "Grafting", "the grafting of weight changes", "extractive_grafting")
def grafting(_: RunFolder, table: pd.DataFrame) -> Iterator[Block]:
    """Ranks of implications of other facts with and without the graft."""
    caption = "Mean rank (0 best) in a model that learned other facts, with the weight change from "
    caption += "learning implications after facts (graft), from learning only implications "
    caption += "(control graft), and with neither"
    table = table.assign(panel="", row=table["model"])
    yield from _dots("grafting", OTHER_IMPLICATIONS, table, GRAFTED, caption)
    yield _seed_table(table, GRAFTED, ["model"])


def _dots(
    name: str,
    main: str,
    table: pd.DataFrame,
    names: Mapping[str, str],
    caption: str,
) -> Iterator[Block]:
    """The data that decides, and folded all other; ``panel`` and ``row`` say where a row goes."""
    for which, part in (("", table["data"] == main), ("other", table["data"] != main)):
        rows = table[part]
        panels = [
            (", ".join(filter(None, (data, panel))), rows_of(rows, data=data, panel=panel))
            for data in in_order(rows["data"], DATA)
            for panel in in_order(rows["panel"], _PANELS)
        ]
        if len(rows):
            yield Drawing(
                seed_dots([(title, rows) for title, rows in panels if len(rows)], names),
                f"{name}-{which}".rstrip("-"),
                f"{caption}; {basis(rows)}",
                f"Dot plots of the mean rank of {'other data' if which else main} of every seed; "
                "the numbers are in the table below.",
                fold="The same for all other data" if which else "",
            )


def _seed_table(table: pd.DataFrame, names: Mapping[str, str], header: Sequence[str]) -> Table:
    """Means over seeds, and a column per seed; ``header`` names ``row`` and, if any, ``panel``."""
    keys = ["data", "row", "panel"][: 1 + len(header)]
    seeds = table.pivot_table(index=keys, columns="seed", values="mean_rank", dropna=False)
    means = means_over_seeds(table, keys, ["mean_rank", "chance"])
    order = {value: i for i, value in enumerate([*DATA, *names, *_PANELS])}
    means = means.sort_values(keys, key=lambda column: column.map(order), kind="stable")
    seeds = seeds.loc[pd.MultiIndex.from_frame(means[keys])]
    by_seed = [(seed_name(seed), list(map(number, seeds[seed]))) for seed in seeds_in(table)]
    words = [Column("row", "text", header=header[0], names=names)]
    words += [Column("panel", "text", header=name) for name in header[1:]]
    caption = "Mean rank (0 best): mean over seeds, and every seed"
    shown: list[Shown] = ["data", *words, GRAFTING["mean_rank"].called("mean"), *by_seed, "chance"]
    return table_of(means, GRAFTING, caption, shown)


@styled
def seed_dots(panels: Sequence[tuple[str, pd.DataFrame]], names: Mapping[str, str]) -> Figure:
    """Mean rank of every seed and the mean over them, a row per value of ``row``, by name."""
    whole = pd.concat([rows for _, rows in panels])
    values, seeds = in_order(whole["row"], list(names)), seeds_in(whole)
    across = len(panels) if len(panels) <= _ACROSS else 2
    down = -(-len(panels) // across)
    height = 0.45 + max(0.34, 0.13 * len(seeds)) * len(values)
    size = 3.6 + 2.8 * across, 0.7 + 0.2 * (len(seeds) > 3) + height * down
    figure = new_figure(min(size[0], MAX_WIDTH), size[1])
    axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for i, (ax, (title, rows)) in enumerate(zip(axes.flat, panels, strict=False)):
        _draw_seeds(ax, rows.assign(row=rows["row"].map(values.index)), seeds)
        ax.set_title(shorten(title))
        if i + across >= len(panels):  # nothing is below it
            ax.set_xlabel(MEAN_RANK)
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
    legend_below(figure, [*handles, Line2D([], [], label="chance", **CHANCE_LINE)], columns=5)
    return figure


def _draw_seeds(ax: Axes, rows: pd.DataFrame, seeds: Sequence[float]) -> None:
    """A mark per seed and row, thick strokes for means, a dashed line for chance."""
    series = [
        Dots(
            seed_name(seed),
            SERIES_COLOURS[i % len(SERIES_COLOURS)],
            # Where colours begin again, markers are others.
            SERIES_MARKERS[(i + i // len(SERIES_COLOURS)) % len(SERIES_MARKERS)],
            (one := rows_of(rows, seed=seed))["row"].to_numpy(),
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
        ax.axvline(chance, zorder=1, **CHANCE_LINE)


@CLAIMS.section("recall", "Out-of-context reasoning", "", "extractive_ranks", "extractive_grid")
def recall(_: RunFolder, ranks: pd.DataFrame | None, grid: pd.DataFrame | None) -> Iterator[Block]:
    """Ranks of facts and implications before and after training on the facts."""
    if ranks is None:
        yield missing("the training on facts")
    else:
        table = ranks.assign(panel=ranks["task"], row=ranks["state"])
        caption = "Mean rank (0 best) before and after training on the facts alone"
        yield from _dots("ranks", IMPLICATIONS, table, STATES, caption)
        yield from seed_tables(
            sorted_parts(ranks, "task", "data", "state"),
            RANKS,
            ["task", "data", "state"],
            ["mean_rank", "chance", "reward"],
            "Mean rank (0 best) and reward (logits)",
        )
    if grid is not None:
        caption = "All settings tried; the one with the best rank of facts is chosen, "
        caption += "regardless of implications"
        columns = ["task", "seed", "learning_rate", "epochs", "chosen", "loss", "facts"]
        yield table_of(grid, GRID, caption, [*columns, "implications"], folded=True)
