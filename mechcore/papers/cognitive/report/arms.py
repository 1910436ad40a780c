"""The arms of a run on the cognitive task: names, looks, and what a number is over."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from mechcore.papers.claims import Claims
from mechcore.papers.cognitive.arms import ARM
from mechcore.papers.seeds import (
    in_order,
    means_over_seeds,
    ordered,
    rows_of,
    seed_name,
    seeds_in,
    whole_range,
)
from mechcore.report.drawing import BLUE, GREY, VERMILION, shorten
from mechcore.report.kinds import Words
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


_SECTIONS = "samples head-ablation number-attention decoding selectivity head-decoding projection"
CLAIMS = Claims("cognitive_verdicts", dict(enumerate(_SECTIONS.split(), 1)))
_INTERVALS = (
    "Intervals in brackets are 95 % intervals over test trials, not corrected for multiple "
    "comparisons: among many heads some exclude zero by chance. They do not cover other seeds, "
    "for which the spread over seeds is given, nor other models or wordings. "
    "Intervals over seeds are named as such."
)
_TERMS = (
    (
        "Task",
        "A prompt names a context, motion or colour, and gives evidence for left or right in both. "
        "The right answer is the side of the evidence that the context names. The answer is read "
        "at the last token, among the words left and right or, if unrestricted, among the whole "
        "vocabulary.",
    ),
    (
        "Congruent and incongruent trials",
        "Both pieces of evidence are on the same side, or on different sides; each kind makes up "
        "half of the trials. A model that ignores the context and follows one kind of evidence is "
        "right on 75 % of all trials and on 50 % of the incongruent ones.",
    ),
    (
        "Arms",
        "The pretrained model, which was not trained on the task; the same model fine-tuned on it; "
        "and a model of the same architecture trained on it from new random weights. A seed sets "
        "an arm's training samples, their order and, from scratch, the new weights.",
    ),
    (
        "Centre of mass",
        "The mean layer of all heads, each weighted with its change if that is below zero: from 0, "
        "all in the first layer, to the number of the last one. Noise gives small negative changes "
        "in all layers and pulls it to the middle, so the centre is also given for only "
        "those heads whose interval is below zero.",
    ),
    (
        "Decoding, chance and floor",
        "Logistic regression with cross-validation predicts a variable from the states (the "
        "residual stream after a layer, at one token); the choice is the right answer. Chance is "
        "the accuracy of guessing, and shuffled labels show the accuracy of the fit on noise. The "
        "floor is the accuracy from the best other variable: the right answer agrees with the side "
        "of either evidence on 75 % of the trials. Balanced trials avoid this: the side is not the "
        "one to answer by, and occurs equally often with either answer.",
    ),
    (
        "Mixed selectivity",
        "Each unit of the last layer is regressed on context, motion, colour and choice, with a "
        "permutation test for every variable. A unit that follows several of them has mixed "
        "selectivity. For motion and colour, units follow the side; the regression also includes "
        "strengths of evidence and products of variables. The expected share is for units that "
        "follow nothing.",
    ),
    (
        "Silhouette",
        "How much nearer a state is to those of its own group than to those of the nearest other "
        "group, averaged: 1 for groups far apart, 0 for none. It is computed for the states "
        "themselves and for the projected points, since a projection can show spurious groups.",
    ),
)
_CREDIT = (
    "Claims after arXiv 2406.18926; the task after Mante et al. 2013 (doi 10.1038/nature12742), "
    "mixed selectivity after Rigotti et al. 2013 (doi 10.1038/nature12160). The wording of the "
    "prompts, the numbers and the sizes are this project's own."
)
WORDS = Words(_INTERVALS, _TERMS, _CREDIT)
