"""Claim 1: how many examples each arm needs.

The rule is told in `mechcore.papers.cognitive.verdicts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TypeAlias

import pandas as pd

from mechcore.errors import InputError
from mechcore.papers.cognitive.evidence import FINE_TUNED, SCRATCH, Evidence
from mechcore.papers.evidence import (
    Finding,
    InconclusiveError,
    ends,
    joined,
    over_seeds,
    percent,
    row_interval,
)

_Needed: TypeAlias = tuple[float, float]
"""Examples that reached the threshold, infinite if none did; the most that were tried."""


def samples(evidence: Evidence) -> Finding:
    """Claim 1: from scratch needs more examples."""
    fine_rows, scratch_rows = (
        evidence.rows("cognitive_samples", arm=arm).set_index("seed")
        for arm in (FINE_TUNED, SCRATCH)
    )
    seeds = [seed for seed in fine_rows.index if seed in scratch_rows.index]
    if not seeds:
        raise InconclusiveError("Table cognitive_samples has no seed of both trained arms.")
    threshold = _threshold(fine_rows, scratch_rows)
    fine, scratch = (_needed(rows.loc[seeds]) for rows in (fine_rows, scratch_rows))
    met = [_fewer(*pair) for pair in zip(fine, scratch, strict=True)]
    how = ""
    if len(met) == 1 and met[0] is not None:
        apart, how = _apart_by_themselves(evidence, seeds[0], fine[0][0], scratch[0][0])
        met = met if apart else [None]
    verdict, counts = over_seeds(met)
    figure = joined(
        f"To reach {percent(threshold)} accuracy the fine-tuned arm needs {_typical(fine)} "
        f"examples, the arm from scratch {_typical(scratch)}{_ratio(fine, scratch)}"
        f"{' (medians over the seeds)' if len(met) > 1 else ''}.",
        how,
        counts,
    )
    return Finding(verdict, figure)


def _threshold(*rows: pd.DataFrame) -> float:
    found = sorted({float(each) for table in rows for each in table["threshold"]})
    if len(found) != 1 or any(table.index.has_duplicates for table in rows):
        raise InputError(
            f"table cognitive_samples: thresholds {found}; expected one, and a row for each arm "
            "and seed"
        )
    return found[0]


def _needed(rows: pd.DataFrame) -> list[_Needed]:
    found = rows["samples"].astype(float).fillna(math.inf)
    return list(zip(found, rows["largest"].astype(float), strict=True))


def _fewer(fine: _Needed, scratch: _Needed) -> bool | None:
    """Whether fine-tuning needs fewer; None where the sizes tried do not say."""
    if fine[0] < scratch[0] and fine[0] <= scratch[1]:
        return True
    return False if scratch[0] < fine[0] and scratch[0] <= fine[1] else None


def _median(needed: Sequence[_Needed]) -> tuple[float, bool]:
    """The median; or, where it is not known, what it is above, and that it is."""
    found = median(n for n, _ in needed)
    if math.isfinite(found):
        return found, False
    return median(min(n, largest) for n, largest in needed), True


def _typical(needed: Sequence[_Needed]) -> str:
    n, is_above = _median(needed)
    return f"{'more than ' if is_above else ''}{n:,.0f}"


def _ratio(fine: Sequence[_Needed], scratch: Sequence[_Needed]) -> str:
    (few, unknown), (many, is_above) = _median(fine), _median(scratch)
    if unknown:
        return ""
    if many == few and not is_above:
        return ", as many"
    return f", {'more than ' if is_above else ''}{many / few:.3g} times as many"


def _apart_by_themselves(
    evidence: Evidence, seed: int, fine: float, scratch: float
) -> tuple[bool, str]:
    """One seed: whether the accuracies differ at the number that is enough for the first arm."""
    n = int(min(fine, scratch))
    found = {
        arm: evidence.row("cognitive_curve", arm=arm, seed=seed, n=n)
        for arm in (FINE_TUNED, SCRATCH)
    }
    first, second = (FINE_TUNED, SCRATCH) if fine < scratch else (SCRATCH, FINE_TUNED)
    apart = bool(found[first]["low"] > found[second]["high"])
    said = " and ".join(ends(row_interval(row), 100, 1) for row in found.values())
    return apart, (
        f"With one seed judged by the models' own intervals: with {n:,} examples their accuracies "
        f"in percent are {said}."
    )
