"""The section of a study of extractive structures on what is known without training."""

from __future__ import annotations

import pandas as pd

from mechcore.papers.extractive.report.looks import (
    DATA,
    basis,
    of,
    tasks_of,
)
from mechcore.papers.extractive.report.rank_figures import before_and_after
from mechcore.papers.extractive.report.summary import CLAIMS
from mechcore.report.blocks import Block, Gallery, Paragraph, Section, Table
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import (
    ends_of,
    in_order,
    means_over_seeds,
    plain_number,
    with_ends,
)
from mechcore.wording import number, number_range, whole

_STATES = ("before", "after")


def recall_section(run: RunFolder, gallery: Gallery) -> Section:
    """Ranks of facts and implications before and after training on the facts."""
    section_id, title = "recall", "Out-of-context reasoning"
    ranks, grid = run.filled("extractive_ranks"), run.filled("extractive_grid")
    blocks: list[Block] = [*CLAIMS.lines(run, section_id)]
    if ranks is None:
        blocks.append(Paragraph("Not run: the training on facts.", note=True))
    else:
        picture = gallery.add(
            before_and_after(ranks),
            "ranks",
            "Mean rank of the right answer before and after training on the facts alone, with its "
            f"interval over prompts: 0 is best, dashed is chance; {basis(ranks)}",
            "Dot plots of mean ranks of facts and of implications, a row per task and seed; the "
            "numbers are in the tables below.",
        )
        blocks += [picture, _rank_means(ranks), _rank_rows(ranks)]
    if grid is not None:
        blocks.append(_grid_rows(grid))
    files = ["extractive_ranks.csv", "extractive_grid.csv"]
    return Section(section_id, title, blocks, files)


def _rank_means(ranks: pd.DataFrame) -> Table:
    means = means_over_seeds(ranks, ["task", "data", "state"], ["mean_rank", "reward", "chance"])
    rows = [
        [
            task,
            data,
            state,
            whole(row["seeds"]),
            number(row["mean_rank"]),
            number_range(ends_of(row, "mean_rank")),
            number(row["chance"], 1),
            number(row["reward"], signed=True),
        ]
        for task in tasks_of(means)
        for data in in_order(of(means, task=task)["data"], DATA[:-3:-1])
        for state in in_order(of(means, task=task, data=data)["state"], _STATES)
        for _, row in of(means, task=task, data=data, state=state).iterrows()
    ]
    header = ["task", "data", "training", "seeds", "mean rank", "over seeds", "chance", "reward"]
    caption = "Mean rank (0 best) and reward (logits): means over seeds, and their range"
    return Table(caption, header, rows, frozenset({0, 1, 2}))


def _rank_rows(ranks: pd.DataFrame) -> Table:
    rows = [
        [
            row["task"],
            number(row["seed"], 0),
            row["data"],
            row["state"],
            with_ends(row["mean_rank"], row["low"], row["high"]),
            number(row["reward"], signed=True),
            whole(row["n"]),
            whole(row["n_options"]),
            plain_number(row["learning_rate"]),
            plain_number(row["epochs"]),
        ]
        for _, row in ranks.iterrows()
    ]
    header = ["task", "seed", "data", "training", "mean rank", "reward", "n", "options"]
    caption = "Every seed: mean rank with its interval over prompts, at the chosen learning rate"
    header += ["learning rate", "epochs"]
    return Table(caption, header, rows, frozenset({0, 2, 3}), folded=True)


def _grid_rows(grid: pd.DataFrame) -> Table:
    rows = [
        [
            row["task"],
            number(row["seed"], 0),
            plain_number(row["learning_rate"]),
            plain_number(row["epochs"]),
            "yes" if row["chosen"] else "no",
            number(row["loss"], 3),
            number(row["facts"]),
            number(row["implications"]),
        ]
        for _, row in grid.iterrows()
    ]
    header = ["task", "seed", "learning rate", "epochs", "chosen", "loss (nats)"]
    header += ["facts, rank", "implications, rank"]
    caption = "All settings that were tried; the one with the best rank of facts is chosen, and "
    caption += "implications have no say in it"
    return Table(caption, header, rows, frozenset({0, 4}), folded=True)
