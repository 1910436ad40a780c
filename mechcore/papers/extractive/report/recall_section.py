"""The section of a study of extractive structures on what is known without training."""

from __future__ import annotations

import pandas as pd

from mechcore.papers.extractive.recall import GRID, RANKS
from mechcore.papers.extractive.report.looks import DATA, TASKS, basis
from mechcore.papers.extractive.report.rank_figures import before_and_after
from mechcore.papers.extractive.report.summary import CLAIMS
from mechcore.report.blocks import (
    Block,
    Gallery,
    OverSeeds,
    Paragraph,
    Section,
    Shown,
    Table,
    table_of,
)
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import SEEDS, means_over_seeds, ordered

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
    rows = ordered(means, task=TASKS, data=DATA[::-1], state=_STATES)
    caption = "Mean rank (0 best) and reward (logits): means over seeds, and their range"
    shown: list[Shown] = ["task", "data", "state", SEEDS, "mean_rank", OverSeeds("mean_rank")]
    return table_of(rows, RANKS, caption, [*shown, "chance", "reward"])


def _rank_rows(ranks: pd.DataFrame) -> Table:
    caption = "Every seed: mean rank with its interval over prompts, at the chosen learning rate"
    shown = ["task", "seed", "data", "state", "mean_rank", "reward", "n", "n_options"]
    return table_of(ranks, RANKS, caption, [*shown, "learning_rate", "epochs"], folded=True)


def _grid_rows(grid: pd.DataFrame) -> Table:
    caption = "All settings that were tried; the one with the best rank of facts is chosen, and "
    caption += "implications have no say in it"
    shown = ["task", "seed", "learning_rate", "epochs", "chosen", "loss", "facts", "implications"]
    return table_of(grid, GRID, caption, shown, folded=True)
