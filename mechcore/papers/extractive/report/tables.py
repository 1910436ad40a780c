"""The tables of a study of extractive structures, with the columns that its page needs."""

from __future__ import annotations

from collections.abc import Mapping

from mechcore.report.columns import Columns, columns

KIND = "extractive"
"""What ``kind`` is called in the ``config.json`` of such a run."""

EXTRACTIVE_TABLES: Mapping[str, Columns] = {
    "extractive_verdicts": columns("title verdict figure", "claim"),
    "extractive_ranks": columns(
        "task data state",
        "seed mean_rank low high reward n n_options chance learning_rate epochs",
    ),
    "extractive_grid": columns(
        "task", "seed learning_rate epochs loss facts implications", "chosen"
    ),
    "extractive_scores": columns(
        "task score kind component token", "seed layer head place value se n"
    ),
    "extractive_sums": columns("task", "seed informative other gradient actual r n"),
    "extractive_freezing": columns("task frozen way data", "seed cut mean_rank n"),
    "extractive_ordering": columns("order data", "seed mean_rank n chance", "replay"),
    "extractive_grafting": columns("model data", "seed mean_rank n chance"),
    "extractive_localization": columns("kind component", "seed layer head informative downstream"),
    "extractive_localization_r2": columns("kind", "seed r2 r p n"),
}
