"""What a study of extractive structures found, in short: verdicts and headline numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.papers.extractive.report.looks import (
    IMPLICATIONS,
    OTHER_IMPLICATIONS,
    TEST_IMPLICATIONS,
    of,
    replay_name,
    tasks_of,
)
from mechcore.report.blocks import Tile
from mechcore.report.claims import Claims
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import mean_of
from mechcore.wording import number, number_range

CLAIMS = Claims(
    "extractive_verdicts",
    {
        1: "recall",
        2: "recall",
        3: "scores",
        4: "scores",
        5: "freezing",
        6: "freezing",
        7: "ordering",
        8: "ordering",
        9: "grafting",
        10: "localization",
        11: "sums",
    },
)


def extractive_tiles(run: RunFolder) -> Iterator[Tile]:
    """How many claims are supported, then ranks of implications in each of the experiments."""
    yield from CLAIMS.tile(run)
    yield from _recall(run.filled("extractive_ranks"))
    yield from _ordering(run.filled("extractive_ordering"))
    yield from _grafting(run.filled("extractive_grafting"))


def _recall(ranks: pd.DataFrame | None) -> Iterator[Tile]:
    if ranks is None:
        return
    for task in tasks_of(ranks):
        before, after = (
            of(ranks, task=task, data=IMPLICATIONS, state=state) for state in ("before", "after")
        )
        if len(after):
            value = f"{_mean(before)} \u2192 {_mean(after)}"
            spread = "" if len(after) == 1 else f", {number_range(after['mean_rank'])} after"
            note = f"mean rank before and after; chance {_chance(after)}; {mean_of(after)}{spread}"
            yield Tile(f"Implications, {task}", value, note)


def _ordering(table: pd.DataFrame | None) -> Iterator[Tile]:
    if table is None:
        return
    # With replay, where there is any, the second phase does not undo the first.
    rows = of(table, data=TEST_IMPLICATIONS)
    replay = bool(rows["replay"].any())
    rows = of(rows, replay=replay)
    first, last = (of(rows, order=f"{data} first") for data in ("facts", "implications"))
    if len(first) and len(last):
        note = f"mean rank of test implications, {replay_name(replay)}; chance {_chance(rows)}; "
        note += mean_of(rows)
        yield Tile("Facts first, implications first", f"{_mean(first)}, {_mean(last)}", note)


def _grafting(table: pd.DataFrame | None) -> Iterator[Tile]:
    if table is None:
        return
    rows = of(table, data=OTHER_IMPLICATIONS)
    without, graft, control = (
        of(rows, model=model) for model in ("other facts", "graft", "control graft")
    )
    if len(without) and len(graft):
        note = f"mean rank of implications of other facts; control {_mean(control)}; "
        note += mean_of(graft)
        yield Tile("Without graft, with it", f"{_mean(without)} \u2192 {_mean(graft)}", note)


def _mean(rows: pd.DataFrame) -> str:
    return number(rows["mean_rank"].mean())


def _chance(rows: pd.DataFrame) -> str:
    return number(rows["chance"].mean(), 1)
