"""What searches for sets of components and for paths have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd
from scipy import stats

from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import ALL, half_rows
from mechcore.errors import InputError
from mechcore.masking.interventions import FillName
from mechcore.wording import count

_MOST_SUBSETS = 5
"""Subsets that a message lists."""


def check_options(fill: FillName, **numbers: int) -> None:
    """Raise an InputError if the fill draws at random, or a number is under 1."""
    for name, value in numbers.items():
        if value < 1:
            raise InputError(f"search: {name} is {value}; expected at least 1")
    if fill not in ("mean", "zero"):
        raise InputError(f"search: fill is {fill!r}; expected 'mean' or 'zero'")


def rank_correlation(screening: pd.DataFrame, exact: str) -> float:
    """Spearman's rho of predicted and exact; missing under three rows, or if either is constant."""
    both = screening.dropna()[["predicted", exact]]
    ranked = len(both) > 2 and both.nunique().min() > 1
    return float(stats.spearmanr(both).statistic) if ranked else float("nan")


def halves_of(
    data: EncodedExamples, subset: str, seed: int
) -> tuple[EncodedExamples, EncodedExamples]:
    """Two halves of the subset searched; of all data, halves of every subset."""
    names = data.examples.frame["subset"].tolist()
    known = dict.fromkeys(names)
    if subset != ALL and subset not in known:
        raise InputError(f"search: no subset {subset!r}; the data has {', '.join(known)}")
    chosen = [row for row, name in enumerate(names) if subset in (ALL, name)]
    halves = half_rows(data.examples.frame.iloc[chosen], seed)
    if min(map(len, halves)) < 2:
        raise InputError(f"search: {_too_few([names[row] for row in chosen])}")
    first, second = (data.part([chosen[row] for row in half]) for half in halves)
    return first, second


def _too_few(subsets: Sequence[str]) -> str:
    """Which subsets the examples are of, and how many are needed."""
    sizes = Counter(subsets)
    found = ", ".join(f"{n} of {name!r}" for name, n in sizes.most_common(_MOST_SUBSETS))
    left = len(sizes) - _MOST_SUBSETS
    more = f" and {count(left, 'more subset')}" if left > 0 else ""
    return (
        f"{len(subsets)} examples are too few ({found}{more}): half of each subset, rounded down, "
        "chooses, the rest reports, those of one first text are in one half, and each half needs "
        "at least 2; expected 4 or more of one subset, or 2 or more of two: add examples, or draw "
        "more of them (--max-id, --max-ood)"
    )
