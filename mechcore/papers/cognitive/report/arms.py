"""The arms of a run on the cognitive task: names, looks, and what a number is over.

An arm is the pretrained model (``base``), the same fine-tuned on the task, or one of the same
architecture trained from scratch. Several trainings of an arm differ in their seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from mechcore.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    VERMILION,
    shorten,
)
from mechcore.report.seeds import in_order, means_over_seeds, seeds_in, whole_range
from mechcore.wording import number, percent, whole

BASE = "base"
"""The arm of the pretrained model, which was not trained on the task."""
_LOOK = {
    BASE: ("pretrained", GREY, "D"),
    "fine_tuned": ("fine-tuned", BLUE, "o"),
    "scratch": ("from scratch", VERMILION, "s"),
}
_OTHERS = ((GREEN, "^"), (PURPLE, "v"), (ORANGE, "P"))


def arms_of(table: pd.DataFrame) -> list[str]:
    """The arms of a table: pretrained, fine-tuned, from scratch, and any other."""
    return in_order(table["arm"], list(_LOOK))


def arm_name(arm: str) -> str:
    """What an arm is called."""
    return _LOOK[arm][0] if arm in _LOOK else shorten(arm)


def arm_look(arm: str, i: int = 0) -> tuple[str, str]:
    """Colour and marker of an arm; ``i`` is its place, for one that is not known."""
    return _LOOK[arm][1:] if arm in _LOOK else _OTHERS[i % len(_OTHERS)]


def seeds_of(table: pd.DataFrame, arm: str | None = None) -> list[float]:
    """The seeds of a table, or of one of its arms, in order."""
    part = table if arm is None else table[table["arm"] == arm]
    return seeds_in(part)


def models_of(table: pd.DataFrame) -> list[tuple[str, float]]:
    """(arm, seed) of every model of a table."""
    return [(arm, seed) for arm in arms_of(table) for seed in seeds_of(table, arm)]


def of_model(table: pd.DataFrame, arm: str, seed: float) -> pd.DataFrame:
    """The rows of one model."""
    return table[(table["arm"] == arm) & (table["seed"] == seed)]


def fills_of(table: pd.DataFrame) -> list[str]:
    """The ways of ablating of a table, by means first."""
    return in_order(table["fill"], ["mean", "zero"])


def by_arm(table: pd.DataFrame) -> pd.DataFrame:
    """The same rows, arms in their order."""
    place = {arm: i for i, arm in enumerate(arms_of(table))}
    return table.sort_values("arm", key=lambda arms: arms.map(place), kind="stable")


def over_seeds(table: pd.DataFrame, keys: Sequence[str], values: Sequence[str]) -> pd.DataFrame:
    """As `means_over_seeds` of ``arm`` and the keys; arms in their order."""
    return by_arm(means_over_seeds(table, ["arm", *keys], values))


def basis(table: pd.DataFrame, n: str | None = "n", what: str = "test trials") -> str:
    """What the numbers of a table are over: examples and seeds, as a sentence.

    Args:
        table: with ``arm``, ``seed`` and, if it is given, the column ``n``.
        n: the column with the number of examples; None where there is none.
        what: the examples.
    """
    seeds = [f"{arm_name(arm)} {whole(len(seeds_of(table, arm)))}" for arm in arms_of(table)]
    text = f"seeds: {', '.join(seeds)}."
    return f"n = {whole_range(table[n])} {what}; {text}" if n else f"S{text[1:]}"


def share(value: float, low: float, high: float) -> str:
    """A share in percent with its interval where there is one."""
    ends = [number(100 * end, 1) for end in (low, high)]
    known = pd.notna(low) and pd.notna(high)
    return f"{percent(value)} [{ends[0]}, {ends[1]}]" if known else percent(value)


def points(value: float, low: float, high: float) -> str:
    """A difference of accuracies in points with its interval where there is one."""
    text, *ends = (number(100 * each, 1, signed=True) for each in (value, low, high))
    known = pd.notna(low) and pd.notna(high)
    return f"{text} [{ends[0]}, {ends[1]}]" if known else text


def points_range(values: pd.Series) -> str:
    """The smallest and largest of some differences of accuracies, in points."""
    low, high = (number(100 * end, 1, signed=True) for end in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"
