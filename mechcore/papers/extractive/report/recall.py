"""The section of a study of extractive structures on what is known without training."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mechcore.papers.extractive.recall import GRID, RANKS
from mechcore.papers.extractive.report.looks import (
    CHANCE_LINE,
    MEAN_RANK,
    basis,
    sorted_parts,
    tasks_of,
)
from mechcore.papers.extractive.report.words import CLAIMS
from mechcore.report.blocks import Block, Gallery, OverSeeds, Shown, missing, table_of
from mechcore.report.drawing import (
    BLUE,
    GREY,
    MAX_WIDTH,
    Dots,
    draw_dots,
    intervals,
    legend_below,
    new_figure,
    styled,
)
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import SEEDS, in_order, means_over_seeds, rows_of, seed_name, seeds_in


@CLAIMS.section("recall", "Out-of-context reasoning", "", "extractive_ranks", "extractive_grid")
def recall(
    _: RunFolder, gallery: Gallery, ranks: pd.DataFrame | None, grid: pd.DataFrame | None
) -> Iterator[Block]:
    """Ranks of facts and implications before and after training on the facts."""
    if ranks is None:
        yield missing("the training on facts")
    else:
        yield gallery.add(
            before_and_after(ranks),
            "ranks",
            "Mean rank of the right answer before and after training on the facts alone, with its "
            f"interval over prompts: 0 is best, dashed is chance; {basis(ranks)}",
            "Dot plots of mean ranks of facts and of implications, a row per task and seed; the "
            "numbers are in the tables below.",
        )
        keys = ["task", "data", "state"]
        means = means_over_seeds(ranks, keys, ["mean_rank", "reward", "chance"])
        caption = "Mean rank (0 best) and reward (logits): means over seeds, and their range"
        shown: list[Shown] = [*keys, SEEDS, "mean_rank", OverSeeds("mean_rank"), "chance"]
        yield table_of(sorted_parts(means, *keys), RANKS, caption, [*shown, "reward"])
        caption = "Every seed: mean rank with its interval over prompts, at the chosen learning "
        caption += "rate"
        shown = ["task", "seed", "data", "state", "mean_rank", "reward", "n", "n_options"]
        shown += ["learning_rate", "epochs"]
        yield table_of(ranks, RANKS, caption, shown, folded=True)
    if grid is not None:
        caption = "All settings that were tried; the one with the best rank of facts is chosen, "
        caption += "and implications have no say in it"
        columns = ["task", "seed", "learning_rate", "epochs", "chosen", "loss", "facts"]
        yield table_of(grid, GRID, caption, [*columns, "implications"], folded=True)


@styled
def before_and_after(ranks: pd.DataFrame) -> Figure:
    """Mean rank before and after training with its interval: a row per task and seed."""
    models = [
        (task, seed) for task in tasks_of(ranks) for seed in seeds_in(rows_of(ranks, task=task))
    ]
    row_of = {model: i for i, model in enumerate(models)}
    ranks = ranks.assign(
        row=[row_of[pair] for pair in zip(ranks["task"], ranks["seed"], strict=True)]
    )
    data = in_order(ranks["data"], ["facts", "implications"])
    figure = new_figure(min(2.4 + 3.3 * len(data), MAX_WIDTH), 1.3 + 0.32 * len(models))
    axes = figure.subplots(1, len(data), sharex=True, sharey=True, squeeze=False)[0]
    labels = [f"{task}, {seed_name(seed)}" for task, seed in models]
    for ax, name in zip(axes, data, strict=True):
        part = rows_of(ranks, data=name)
        before, after = (rows_of(part, state=state) for state in ("before", "after"))
        series = [_dots(before, GREY, -0.12), _dots(after, BLUE, 0.12)]
        draw_dots(ax, series, labels if ax is axes[0] else None)
        chance = part.groupby("row")["chance"].mean()
        ax.vlines(chance, chance.index - 0.5, chance.index + 0.5, zorder=1, **CHANCE_LINE)
        ax.set_title(name)
        ax.set_xlabel(MEAN_RANK)
    axes[0].set_xlim(left=min(-0.4, -0.04 * float(np.nanmax([1.0, *ranks["high"]]))))
    handles = [
        Line2D([], [], marker="o", ls="none", color=GREY, mfc="white", label="before training"),
        Line2D([], [], marker="o", ls="none", color=BLUE, label="after training on facts"),
        Line2D([], [], label="chance", **CHANCE_LINE),
    ]
    legend_below(figure, handles)
    return figure


def _dots(rows: pd.DataFrame, colour: str, shift: float) -> Dots:
    """Those before training, which are shifted up, are hollow."""
    at, lines = rows["row"].to_numpy(), intervals(rows["row"], rows["low"], rows["high"])
    hollow = np.full(len(rows), shift < 0)
    return Dots("", colour, "o", at, rows["mean_rank"].to_numpy(), lines, hollow, shift)
