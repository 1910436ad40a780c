"""The arms of a run on the cognitive task: names, looks, and what a number is over."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from mechcore.papers.cognitive.arms import ARM
from mechcore.report.drawing import BLUE, GREY, VERMILION, shorten
from mechcore.report.seeds import (
    in_order,
    means_over_seeds,
    ordered,
    rows_of,
    seed_name,
    seeds_in,
    whole_range,
)
from mechcore.tables import SEED, Schema
from mechcore.wording import whole

BASE = "base"
"""The arm of the pretrained model, which was not trained on the task."""
_LOOK = {BASE: (GREY, "D"), "fine_tuned": (BLUE, "o"), "scratch": (VERMILION, "s")}


def arms_of(table: pd.DataFrame) -> list[str]:
    """The arms of a table: pretrained, fine-tuned, from scratch, and any other."""
    return in_order(table["arm"], list(_LOOK))


def arm_name(arm: str) -> str:
    """What an arm is called."""
    return shorten(ARM.show(arm))


def arm_look(arm: str) -> tuple[str, str]:
    """Colour and marker of an arm."""
    return _LOOK.get(arm, (GREY, "^"))


def models_of(table: pd.DataFrame) -> list[tuple[str, float]]:
    """(arm, seed) of every model of a table."""
    return [(arm, seed) for arm in arms_of(table) for seed in seeds_in(rows_of(table, arm=arm))]


def model_name(arm: str, seed: float) -> str:
    """What a model is called."""
    return f"{arm_name(arm)}, {seed_name(seed)}"


def in_percent(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The same rows, with shares in percent."""
    return table.assign(**{name: 100 * table[name] for name in columns})


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


def basis(table: pd.DataFrame, n: str | None = "n") -> str:
    """What the numbers of a table are over: trials, if a column has their number, and seeds."""
    seeds = table.groupby("arm")["seed"].nunique()
    text = ", ".join(f"{arm_name(arm)} {whole(seeds[arm])}" for arm in arms_of(table))
    return f"n = {whole_range(table[n])} test trials; seeds: {text}." if n else f"Seeds: {text}."
