"""What the report of a study of extractive structures consists of, and its headline numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.papers.evidence import VERDICTS
from mechcore.papers.extractive.experiments.freezing import Freezing
from mechcore.papers.extractive.experiments.grafting import Grafting
from mechcore.papers.extractive.experiments.ordering import Ordering
from mechcore.papers.extractive.experiments.recall import Ocr
from mechcore.papers.extractive.experiments.score_maps import Localization, Scores
from mechcore.papers.extractive.report.looks import (
    CLAIMS,
    IMPLICATIONS,
    OTHER_IMPLICATIONS,
    TEST_IMPLICATIONS,
    WORDS,
    replay_name,
    tasks_of,
)
from mechcore.papers.extractive.report.ranks import freezing, grafting, ordering, recall
from mechcore.papers.extractive.report.scores import component_scores, learned_and_read, sums
from mechcore.papers.seeds import mean_of, rows_of
from mechcore.report.blocks import Tile
from mechcore.report.kinds import StudyReport
from mechcore.report.run_folder import RunFolder
from mechcore.wording import number, span


def tiles(run: RunFolder) -> Iterator[Tile]:
    """How many claims are supported, then ranks of implications in each of the experiments."""
    yield from CLAIMS.tile(run)
    for table, make in (("ranks", _recall), ("ordering", _ordering), ("grafting", _grafting)):
        rows = run.filled(f"extractive_{table}")
        if rows is not None:
            yield from make(rows)


def _recall(ranks: pd.DataFrame) -> Iterator[Tile]:
    for task in tasks_of(ranks):
        rows = rows_of(ranks, task=task, data=IMPLICATIONS)
        before, after = (rows_of(rows, state=state) for state in ("before", "after"))
        if len(after):
            value = f"{_mean(before)} \u2192 {_mean(after)}"
            spread = "" if len(after) == 1 else f", {span(after['mean_rank'])} after"
            note = f"mean rank before and after; chance {_chance(after)}; {mean_of(after)}{spread}"
            yield Tile(f"Implications, {task}", value, note)


def _ordering(table: pd.DataFrame) -> Iterator[Tile]:
    # With replay, where there is any, the second phase does not undo the first.
    rows = rows_of(table, data=TEST_IMPLICATIONS)
    replay = bool(rows["replay"].any())
    rows = rows_of(rows, replay=replay)
    first, last = (rows_of(rows, order=f"{data} first") for data in ("facts", "implications"))
    if len(first) and len(last):
        note = f"mean rank of test implications, {replay_name(replay)}; chance {_chance(rows)}; "
        note += mean_of(rows)
        yield Tile("Facts first, implications first", f"{_mean(first)}, {_mean(last)}", note)


def _grafting(table: pd.DataFrame) -> Iterator[Tile]:
    rows = rows_of(table, data=OTHER_IMPLICATIONS)
    without, graft, control = (
        rows_of(rows, model=model) for model in ("other facts", "graft", "control graft")
    )
    if len(without) and len(graft):
        note = f"mean rank of implications of other facts; control {_mean(control)}; "
        note += mean_of(graft)
        yield Tile("Without graft, with it", f"{_mean(without)} \u2192 {_mean(graft)}", note)


def _mean(rows: pd.DataFrame) -> str:
    return number(rows["mean_rank"].mean())


def _chance(rows: pd.DataFrame) -> str:
    return number(rows["chance"].mean(), 1)


_STEPS = (Ocr, Scores, Freezing, Ordering, Grafting, Localization)

REPORT = StudyReport(
    title=lambda model, config: f"Extractive structures: {model}",
    subtitle="Trained on facts, asked for what follows from them",
    tables=lambda: [
        VERDICTS.named(CLAIMS.table),
        *(schema for step in _STEPS for schema in step.schemas),
    ],
    tiles=tiles,
    findings=CLAIMS.findings,
    sections=CLAIMS.sections(
        recall, component_scores, sums, freezing, ordering, grafting, learned_and_read
    ),
    words=WORDS,
)
