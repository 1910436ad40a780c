"""What the verdicts on a study's claims stand on: its tables, the seeds that count, intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

from mechcore.errors import InputError
from mechcore.evaluate import Interval

Verdict: TypeAlias = Literal["holds", "does not hold", "not decidable here"]
HOLDS: Verdict = "holds"
DOES_NOT_HOLD: Verdict = "does not hold"
NOT_DECIDABLE: Verdict = "not decidable here"

BASE, FINE_TUNED, SCRATCH = "base", "fine_tuned", "scratch"
MODEL = {BASE: "base model", FINE_TUNED: "fine-tuned model", SCRATCH: "model from scratch"}
"""What a model of an arm is called."""

IGNORING_CONTEXT = 0.75
"""Accuracy of following one modality always: a model has learned the task only above it."""

ALPHA = 0.05
"""Largest p-value that is called small."""

NEGLIGIBLE = 0.05
"""An accuracy that is surely no more than this above its floor reads nothing (a share)."""

_ROUNDING = 1e-9
"""Two shares this close are equal: 0.96 - 0.94 is more than 0.02 in floating point."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "cognitive_samples": ("threshold", "samples", "largest"),
    "cognitive_curve": ("n", "low", "high"),
    "cognitive_models": ("accuracy", "low", "gap"),
    "cognitive_ablation": ("mode", "component", "layer", "drop", "low"),
    "cognitive_mass": (
        *("mode", "subset", "centre", "low", "high"),
        *("centre_significant", "first_layer_share", "strongest"),
    ),
    "cognitive_attention": ("component", "layer", "ratio"),
    "cognitive_attention_drop": ("mode", "rho", "p"),
    "cognitive_decoding": (
        *("layer", "position", "variable", "subset"),
        *("accuracy", "low", "high", "floor", "p"),
    ),
    "cognitive_check": ("holds",),
    "cognitive_svm": (
        *("component", "target", "n", "accuracy", "high", "floor"),
        *("shuffled_high", "p"),
    ),
    "cognitive_selectivity": ("n_variables", "share", "expected_correlated"),
    "cognitive_silhouette": ("space", "variable", "method", "silhouette", "null_95"),
}
"""Columns that the verdicts read, beside ``arm`` and ``seed``."""


class UndecidableError(Exception):
    """Why a claim cannot be decided, in a sentence."""


@dataclass(frozen=True)
class Finding:
    """What became of a claim.

    Attributes:
        verdict: one of the three.
        figure: sentences with the numbers.
    """

    verdict: Verdict
    figure: str


@dataclass(frozen=True)
class Seeds:
    """The seeds a claim is judged by.

    Attributes:
        kept: these, in order; at least one.
        left_out: why others are not among them, a sentence each.
    """

    kept: tuple[int, ...]
    left_out: tuple[str, ...] = ()

    def keep(self, why_not: Callable[[int], str | None]) -> Seeds:
        """Those for which there is no reason to leave them out.

        Raises:
            UndecidableError: no seed is left.
        """
        reasons = {seed: why_not(seed) for seed in self.kept}
        kept = tuple(seed for seed, reason in reasons.items() if reason is None)
        left_out = (
            *self.left_out,
            *(f"Seed {seed} is left out: {reason}." for seed, reason in reasons.items() if reason),
        )
        if not kept:
            raise UndecidableError(" ".join(left_out))
        return Seeds(kept, left_out)


@dataclass(frozen=True, eq=False)
class Evidence:
    """The tables of a study.

    Attributes:
        tables: by name.
        threshold_gap: largest difference of accuracy (a share) of arms that count as matched.

    Raises:
        InputError: a table lacks a column.
    """

    tables: Mapping[str, pd.DataFrame]
    threshold_gap: float

    def __post_init__(self) -> None:
        for name, columns in COLUMNS.items():
            table = self.tables.get(name)
            if table is None or table.empty:
                continue
            missing = [each for each in ("arm", "seed", *columns) if each not in table]
            if missing:
                raise InputError(
                    f"table {name}: no column {', '.join(missing)}, found "
                    f"{', '.join(map(str, table.columns))}; give the tables of a cognitive study"
                )

    def rows(self, name: str, **where: object) -> pd.DataFrame:
        """The rows of a table that have these values.

        Raises:
            UndecidableError: there is no such table or row.
        """
        table = self.tables.get(name)
        if table is None or table.empty:
            raise UndecidableError(f"There is no table {name}.")
        chosen = np.ones(len(table), dtype=bool)
        for column, value in where.items():
            chosen &= (table[column] == value).to_numpy()
        table = table[chosen]
        if table.empty:
            raise UndecidableError(f"Table {name} has no row of {_values(where)}.")
        return table

    def row(self, name: str, **where: object) -> pd.Series[Any]:
        """The one row of a table that has these values.

        Raises:
            UndecidableError: there is none.
            InputError: there are several.
        """
        rows = self.rows(name, **where)
        if len(rows) > 1:
            raise InputError(f"table {name}: {len(rows)} rows of {_values(where)}; expected one")
        return rows.iloc[0]

    def by_seed(self, name: str, seeds: Seeds, **where: object) -> pd.DataFrame:
        """One row for each seed, in order, with the seed as index.

        Raises:
            UndecidableError: a seed has none.
            InputError: a seed has several.
        """
        rows = self.rows(name, **where)
        rows = rows[rows["seed"].isin(seeds.kept)].set_index("seed")
        for seed in seeds.kept:
            if seed not in rows.index:
                raise UndecidableError(f"Table {name} has no row of {_values(where)}, seed {seed}.")
        if rows.index.has_duplicates:
            raise InputError(
                f"table {name}: {len(rows)} rows of {_values(where)} for "
                f"{seeds_named(len(seeds.kept))}; expected one each"
            )
        return rows.loc[list(seeds.kept)]

    def trained_seeds(self, *arms: str, matched: bool = False) -> Seeds:
        """Seeds in which all these arms have learned the task, and are matched if asked for.

        Raises:
            UndecidableError: there is none.
        """
        tables = [self.rows("cognitive_models", arm=arm) for arm in arms]
        seeds = sorted({int(seed) for table in tables for seed in table["seed"]})
        return Seeds(tuple(seeds)).keep(lambda seed: self._no_good(seed, arms, matched))

    def _no_good(self, seed: int, arms: Sequence[str], matched: bool) -> str | None:
        for arm in arms:
            try:
                model = self.row("cognitive_models", arm=arm, seed=seed)
            except UndecidableError:
                return f"it has no {MODEL[arm]}"
            if not model["low"] > IGNORING_CONTEXT:
                return (
                    f"the {MODEL[arm]} has not learned the task, its accuracy is "
                    f"{percent(model['accuracy'])} and its interval begins at "
                    f"{percent(model['low'])}, not above the {percent(IGNORING_CONTEXT)} of "
                    "ignoring the context"
                )
            if matched and not model["gap"] <= self.threshold_gap + _ROUNDING:
                return (
                    f"the arms are not matched, their accuracies differ by {points(model['gap'])}, "
                    f"more than {points(self.threshold_gap)}"
                )
        return None


def _values(where: Mapping[str, object]) -> str:
    return ", ".join(f"{column} {value}" for column, value in where.items())


# -- statistics -----------------------------------------------------------------------------------


def row_interval(row: pd.Series[Any]) -> Interval:
    """What ``low`` and ``high`` of a row say; its middle is not asked for."""
    return Interval(math.nan, float(row["low"]), float(row["high"]))


def over_seeds(met: Sequence[bool | None]) -> tuple[Verdict, str]:
    """Of a rule that every seed has to meet: met, contradicted (False) or open (None) in each.

    Returns:
        "holds" if all meet it, "does not hold" if more than half contradict it; and the counts in
        a sentence.
    """
    n, yes, no = len(met), met.count(True), met.count(False)
    counts = f"Met in {yes} of {seeds_named(n)}, contradicted in {no}, open in {n - yes - no}."
    if yes == n:
        return HOLDS, f"Met in {yes} of {seeds_named(n)}."
    return (DOES_NOT_HOLD if 2 * no > n else NOT_DECIDABLE), counts


def t_interval(values: Iterable[float]) -> Interval:
    """Mean over seeds with a 95 % t interval; without ends for fewer than 2 seeds.

    >>> t_interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, low=-0.484..., high=4.484...)
    """
    found = np.array([*values], dtype=float)
    mean = float(found.mean())
    if len(found) < 2:
        return Interval(mean, math.nan, math.nan)
    error = found.std(ddof=1) / math.sqrt(len(found))
    half = float(student_t.ppf(0.975, len(found) - 1) * error)
    return Interval(mean, mean - half, mean + half)


# -- words ----------------------------------------------------------------------------------------


def number(value: float, digits: int = 2) -> str:
    """With a true minus sign; missing values are ``n/a``."""
    if not math.isfinite(value):
        return "n/a"
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "\u2212")


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


def seeds_named(n: int) -> str:
    """``3 seeds``."""
    return f"{n} seed{'' if n == 1 else 's'}"


def mean(values: Iterable[float]) -> float:
    """Mean of what is not missing; NaN if all is."""
    found = [value for value in values if math.isfinite(value)]
    return sum(found) / len(found) if found else math.nan


def joined(*sentences: str) -> str:
    """Sentences that are not empty, with spaces."""
    return " ".join(sentence for sentence in sentences if sentence)


def listed(names: Iterable[str]) -> str:
    """``a, b, c``; ``none`` for nothing."""
    return ", ".join(names) or "none"
