"""The arms of a run on the cognitive task: names, looks, and what a number is over.

An arm is the pretrained model (``base``), the same fine-tuned on the task, or one of the same
architecture trained from scratch. Several trainings of an arm differ in their seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from mechcore.papers.cognitive.arms import ARM
from mechcore.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    VERMILION,
    shorten,
)
from mechcore.report.seeds import in_order, means_over_seeds, ordered, seeds_in, whole_range
from mechcore.tables import SEED, Schema
from mechcore.wording import whole

BASE = "base"
"""The arm of the pretrained model, which was not trained on the task."""
_LOOK = {BASE: (GREY, "D"), "fine_tuned": (BLUE, "o"), "scratch": (VERMILION, "s")}
_OTHERS = ((GREEN, "^"), (PURPLE, "v"), (ORANGE, "P"))


def arms_of(table: pd.DataFrame) -> list[str]:
    """The arms of a table: pretrained, fine-tuned, from scratch, and any other."""
    return in_order(table["arm"], list(_LOOK))


def arm_name(arm: str) -> str:
    """What an arm is called."""
    return shorten(ARM.show(arm))


def arm_look(arm: str, i: int = 0) -> tuple[str, str]:
    """Colour and marker of an arm; ``i`` is its place, for one that is not known."""
    return _LOOK[arm] if arm in _LOOK else _OTHERS[i % len(_OTHERS)]


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
    return ordered(table, arm=_LOOK)


def by_model(table: pd.DataFrame) -> pd.DataFrame:
    """The same rows by arm and, of one arm, by seed."""
    return by_arm(table.sort_values("seed", kind="stable"))


def of_models(schema: Schema) -> Schema:
    """A table of one model's, as the study joins those of all."""
    return schema.after(ARM, SEED)


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
