"""Judging a paper's claims: evidence from a study's tables, rules over seeds, and their wording.

A rule is met (True), contradicted (False) or open (None).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

from mechcore.errors import InputError
from mechcore.evaluation.intervals import Interval
from mechcore.papers.seeds import rows_of
from mechcore.tables import Column, Schema
from mechcore.wording import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, count, number

P = ParamSpec("P")

_IN_WORDS = {True: SUPPORTED, False: NOT_SUPPORTED, None: INCONCLUSIVE}

VERDICTS = Schema(
    "verdicts",
    "The verdict on every claim.",
    (
        Column("claim", "whole", "number of the claim, from 1"),
        Column("title", "text", "the claim", header="what is claimed"),
        Column("verdict", "text", "supported, not supported or inconclusive"),
        Column("figure", "text", "the numbers that decide, in sentences", header="figures"),
    ),
)

ALPHA = 0.05
"""Largest p-value that counts as small."""


class InconclusiveError(Exception):
    """Why a claim is inconclusive, in a sentence."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a claim, or of a part of one: its rule, and sentences with the numbers."""

    met: bool | None
    figure: str

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return _IN_WORDS[self.met]


@dataclass(frozen=True)
class Seeds:
    """The seeds a claim is judged by, at least one, and sentences on why others are left out."""

    kept: tuple[int, ...]
    left_out: tuple[str, ...] = ()

    def keep(self, why_not: Callable[[int], str | None]) -> Seeds:
        """The seeds without a reason against them; raises `InconclusiveError` if none is left."""
        reasons = {seed: why_not(seed) for seed in self.kept}
        kept = tuple(seed for seed, reason in reasons.items() if reason is None)
        left_out = (
            *self.left_out,
            *(f"Seed {seed} is left out: {reason}." for seed, reason in reasons.items() if reason),
        )
        if not kept:
            raise InconclusiveError(" ".join(left_out))
        return Seeds(kept, left_out)

    def finding(self, met: bool | None, *sentences: str) -> Finding:
        """The outcome of a claim on these seeds, with the excluded ones."""
        return Finding(met, joined(*sentences, *self.left_out))


@dataclass(frozen=True, eq=False)
class Tables:
    """The tables of a study, by name; missing rows make a claim inconclusive."""

    tables: Mapping[str, pd.DataFrame]

    def seeds(self, name: str, *kinds: Mapping[str, object]) -> Seeds:
        """The seeds that rows of a table have, those of some kinds if given."""
        columns = (self.rows(name, **where)["seed"] for where in kinds or ({},))
        return Seeds(tuple(sorted({int(seed) for seeds in columns for seed in seeds})))

    def rows(self, name: str, **where: object) -> pd.DataFrame:
        """The rows of a table that have these values."""
        table = self.tables.get(name)
        if table is None or table.empty:
            raise InconclusiveError(f"There is no table {name}.")
        table = rows_of(table, **where)
        if table.empty:
            raise InconclusiveError(f"Table {name} has no row of {_values(where)}.")
        return table

    def rows_by(self, name: str, *keys: str, **where: object) -> pd.DataFrame:
        """The rows of a table that have these values, one for each value of the keys."""
        rows = self.rows(name, **where)
        again = rows[rows.duplicated([*where, *keys])]
        if len(again):
            which = _values({**where, **again.iloc[0][[*keys]]})
            raise InputError(f"table {name}: several rows of {which}; expected one")
        return rows

    def row(self, name: str, **where: object) -> pd.Series[Any]:
        """The one row of a table that has these values."""
        return self.rows_by(name, **where).iloc[0]

    def by_seed(self, name: str, seeds: Seeds, **where: object) -> pd.DataFrame:
        """One row for each seed, in order, with the seed as index."""
        rows = self.rows_by(name, "seed", **where).set_index("seed")
        for seed in seeds.kept:
            if seed not in rows.index:
                raise InconclusiveError(
                    f"Table {name} has no row of {_values(where)}, seed {seed}."
                )
        return rows.loc[list(seeds.kept)]


E = TypeVar("E", bound=Tables)


def judged(claims: Iterable[tuple[str, Callable[[E], Finding]]], evidence: E) -> pd.DataFrame:
    """The columns of `VERDICTS`, given the title of every claim, in order, and what judges it."""
    rows = []
    for claim, (title, judge) in enumerate(claims, 1):
        try:
            finding = judge(evidence)
        except InconclusiveError as reason:
            finding = Finding(None, str(reason))
        rows.append((claim, title, finding.verdict, finding.figure))
    return pd.DataFrame(rows, columns=VERDICTS.required)


def beside(sentence: Callable[P, str]) -> Callable[P, str]:
    """Decorate a sentence that decides nothing: it is empty if its data are missing."""

    @wraps(sentence)
    def or_empty(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return sentence(*args, **kwargs)
        except InconclusiveError:
            return ""

    return or_empty


def _values(where: Mapping[str, object]) -> str:
    return ", ".join(f"{column} {value}" for column, value in where.items())


def row_interval(row: pd.Series[Any]) -> Interval:
    """What ``low`` and ``high`` of a row say; its middle is not asked for."""
    return Interval(math.nan, float(row["low"]), float(row["high"]))


def ruled(yes: Any, no: Any) -> bool | None:
    """Met, or else contradicted, or else open."""
    return True if yes else (False if no else None)


def above_zero(interval: Interval) -> bool | None:
    """Whether all of an interval is; contradicted where none of it is, open without ends."""
    return ruled(interval.low > 0, interval.high <= 0)


def all_of(met: Sequence[bool | None]) -> bool | None:
    """True if all are met, False if one is contradicted, else None."""
    return ruled(all(met), False in met)


def over_seeds(met: Sequence[bool | None]) -> tuple[bool | None, str]:
    """A rule for every seed: met in all, contradicted in more than half; counts in a sentence."""
    n, yes, no = len(met), met.count(True), met.count(False)
    if yes == n:
        return True, f"Met in {yes} of {count(n, 'seed')}."
    counts = f"Met in {yes} of {count(n, 'seed')}, contradicted in {no}, open in {n - yes - no}."
    return ruled(False, 2 * no > n), counts


def t_interval(values: Iterable[float]) -> Interval:
    """Mean over seeds with a 95 % t interval; without ends for fewer than 2 seeds."""
    sample = np.array([*values], dtype=float)
    mean = float(sample.mean())
    if len(sample) < 2:
        return Interval(mean, math.nan, math.nan)
    error = sample.std(ddof=1) / math.sqrt(len(sample))
    half = float(student_t.ppf(0.975, len(sample) - 1) * error)
    return Interval(mean, mean - half, mean + half)


def percent(share: float) -> str:
    """A share in percent."""
    return f"{number(100 * share, 1)} %"


def points(difference: float) -> str:
    """A difference of shares in percentage points."""
    return f"{number(100 * difference, 1)} points"


def ends(interval: Interval, scale: float = 1.0, digits: int = 2) -> str:
    """The ends in brackets; empty where there are none."""
    if not math.isfinite(interval.low):
        return ""
    return f"[{number(scale * interval.low, digits)}, {number(scale * interval.high, digits)}]"


def mean(values: Iterable[float]) -> float:
    """Mean of what is not missing; NaN if all is."""
    return float(pd.Series([*values], dtype=float).mean())


def joined(*sentences: str) -> str:
    """Sentences that are not empty, with spaces."""
    return " ".join(sentence for sentence in sentences if sentence)


def listed(names: Iterable[str]) -> str:
    """``a, b, c``; ``none`` for nothing."""
    return ", ".join(names) or "none"
