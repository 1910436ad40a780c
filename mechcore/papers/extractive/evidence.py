"""What the verdicts on extractive structures stand on: tables, seeds that count, differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from mechcore.papers.evidence import (
    INCONCLUSIVE,
    NOT_SUPPORTED,
    SUPPORTED,
    InconclusiveError,
    Seeds,
    Tables,
    Verdict,
    ends,
    joined,
    listed,
    number,
    seeds_named,
    t_interval,
)

FIRST, SECOND = "first-hop", "second-hop"

LEARNED = 1.0
"""Facts whose mean rank is below this are learned (0 is best)."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "extractive_ranks": ("task", "data", "state", "mean_rank", "low", "high", "chance"),
    "extractive_scores": ("task", "score", "kind", "layer", "place", "token", "value"),
    "extractive_sums": ("task", "informative", "other", "gradient", "actual", "r"),
    "extractive_freezing": ("task", "cut", "frozen", "way", "data", "mean_rank"),
    "extractive_ordering": ("replay", "order", "data", "mean_rank", "chance"),
    "extractive_grafting": ("model", "data", "mean_rank", "chance"),
    "extractive_localization_r2": ("kind", "r2", "r", "p", "n"),
}
"""Columns that the verdicts read, beside ``seed``."""


@dataclass(frozen=True, eq=False)
class Evidence(Tables):
    """The tables of a study.

    Raises:
        InputError: a table lacks a column.
    """

    def __post_init__(self) -> None:
        columns = {name: ("seed", *each) for name, each in COLUMNS.items()}
        self.check(columns, "a study of extractive structures")

    def seeds(self, name: str, **where: object) -> Seeds:
        """The seeds that rows of a table have.

        Raises:
            InconclusiveError: there is no such table or row.
        """
        return Seeds(tuple(sorted({int(seed) for seed in self.rows(name, **where)["seed"]})))

    def learned_seeds(self, *tasks: str) -> Seeds:
        """The seeds in which the facts of all these tasks were learned.

        Raises:
            InconclusiveError: there is none.
        """
        every = sorted(
            {s for task in tasks for s in self.seeds("extractive_ranks", task=task).kept}
        )
        return Seeds(tuple(every)).keep(lambda seed: self._not_learned(seed, tasks))

    def _not_learned(self, seed: int, tasks: Sequence[str]) -> str | None:
        for task in tasks:
            where = {"task": task, "seed": seed, "data": "facts", "state": "after"}
            try:
                rank = float(self.row("extractive_ranks", **where)["mean_rank"])
            except InconclusiveError:
                return f"it has no {task} facts"
            if not rank < LEARNED:
                return f"the {task} facts are not learned, their mean rank is {number(rank)}"
        return None

    def values(self, name: str, column: str, seeds: Seeds, **where: object) -> pd.Series[float]:
        """One number for each seed, in order, with the seed as index.

        Raises:
            InconclusiveError: a seed has none.
            InputError: a seed has several.
        """
        return self.by_seed(name, seeds, **where)[column].astype(float)


@dataclass(frozen=True)
class Part:
    """A difference that a claim asks to be above 0.

    Attributes:
        met: True, False if contradicted, None if it cannot be told.
        figure: a sentence.
    """

    met: bool | None
    figure: str


def difference(what: str, values: pd.Series[float], digits: int = 2) -> Part:
    """Judge a difference by its sign in every seed and by its t interval over seeds.

    Args:
        what: its name, in words, which begins a sentence.
        values: one for each seed.
        digits: to show.

    Returns:
        Met: it is above 0 in every seed, and its interval is. Contradicted: it is not in more than
        half of the seeds, or its interval is not above 0 at either end. Open: anything else, and
        always with one seed, which has no interval.
    """
    interval = t_interval(values)
    figure = f"{what}: {joined(number(interval.mean, digits), ends(interval, digits=digits))}."
    if len(values) < 2:
        return Part(None, figure)
    if (values > 0).all() and interval.low > 0:
        return Part(True, figure)
    contradicted = 2 * int((values > 0).sum()) < len(values) or interval.high <= 0
    return Part(False if contradicted else None, figure)


def all_of(met: Sequence[bool | None]) -> bool | None:
    """True if all are met, False if one is contradicted, else None."""
    return False if False in met else (None if None in met else True)


def verdict_of(met: bool | None) -> Verdict:
    """The verdict in words."""
    return INCONCLUSIVE if met is None else (SUPPORTED if met else NOT_SUPPORTED)


def per_seed(values: pd.Series[float], digits: int = 2) -> str:
    """The numbers of all seeds, in their order."""
    return listed(number(float(value), digits) for value in values)


def one_seed(seeds: Seeds) -> str:
    """A sentence where there is but one seed."""
    n = len(seeds.kept)
    return "" if n > 1 else f"With {seeds_named(n)} a difference has no interval."
