"""E2 and E6: where facts are stored, queried and read out; where implications are learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd
from scipy.stats import pearsonr

from mechcore.papers.extractive.encoded import (
    POINTS,
    TASK,
    EncodedFacts,
    EncodedOrdering,
    EncodedTask,
    mean_rank,
)
from mechcore.papers.extractive.experiments.base import Base, Tuned, TunedOnTask
from mechcore.papers.extractive.facts import CITIES, TRAINING_NAMES
from mechcore.papers.extractive.results import PARTS, SCORES
from mechcore.papers.extractive.scores import extractive_scores
from mechcore.papers.extractive.settings import TuneSettings
from mechcore.papers.extractive.weights import WeightDelta, applied, facts_then_implications, tuned
from mechcore.tables import SEED, Column, Schema

SUMS = Schema(
    "extractive_sums",
    "Change of the reward by scores, to first order and as it is: means over prompts, in logits.",
    (
        TASK,
        SEED,
        Column("informative", "number", "sum over components and tokens", signed=True),
        Column("other", "number", "what embeddings and norms add", signed=True),
        Column("gradient", "number", "gradient times the change of the weights", signed=True),
        Column("actual", "number", "as it is", header="actual change", signed=True),
        Column("r", "number", "correlation of the last two over prompts"),
        POINTS,
    ),
)


@dataclass(frozen=True)
class Scores(TunedOnTask):
    """E2: `extractive_scores` on the implications of facts."""

    kind: ClassVar[str] = "scores"
    schemas: ClassVar[tuple[Schema, ...]] = (SCORES, SUMS)
    rows: ClassVar[int] = 3 * len(CITIES)
    counterfactuals: int
    compat: Literal["paper"] | None

    def tables(self, base: Base, folder: Path) -> Mapping[str, pd.DataFrame]:
        """See `score_maps`."""
        model, task = base.model, base.tasks(self.tuning.seed)[self.task]
        delta = tuned(model, task.facts, self.tuning)
        scores, sums = score_maps(
            model,
            task,
            delta,
            counterfactuals=self.counterfactuals,
            seed=self.tuning.seed,
            compat=self.compat,
        )
        return {"extractive_scores": scores, "extractive_sums": sums}


def score_maps(
    model: Any,
    task: EncodedTask,
    delta: WeightDelta,
    *,
    counterfactuals: int = 10,
    seed: int = 0,
    compat: Literal["paper"] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`extractive_scores` on the implications of a task, given what training its facts changed.

    Returns the columns of `mechcore.papers.extractive.results.SCORES`; and of `SUMS`, one row.
    """
    result = extractive_scores(
        model, task.implications, delta, counterfactuals=counterfactuals, seed=seed, compat=compat
    )
    scores, points = result.table(), result.sums()
    columns = ["informative", "other", "gradient", "actual"]
    r, _ = correlation(points["gradient"], points["actual"])
    sums = points[columns].mean().to_frame().T.assign(r=r, n=len(points))
    for table in (scores, sums):
        table.insert(0, "task", task.name)
        table.insert(1, "seed", seed)
    return scores, sums


def correlation(first: pd.Series[float], second: pd.Series[float]) -> tuple[float, float]:
    """Pearson's r and its two-sided p; NaN for fewer than 3 pairs, or where one never varies."""
    if len(first) < 3 or first.nunique() == 1 or second.nunique() == 1:
        return math.nan, math.nan
    r, p = pearsonr(first, second)
    return float(r), float(p)


LOCALIZATION = Schema(
    "extractive_localization",
    "Two scores of every component, summed over tokens, in logits.",
    (
        SEED,
        *PARTS,
        Column("informative", "number", "of learning implications after facts", signed=True),
        Column("downstream", "number", "of new facts, as they are read out", signed=True),
    ),
)
LOCALIZATION_R2 = Schema(
    "extractive_localization_r2",
    "Correlation of the two scores over components.",
    (
        SEED,
        PARTS[0].called("components"),
        Column("r2", "number", "squared correlation", header="r\u00b2"),
        Column("r", "number", "Pearson's correlation", signed=True),
        Column("p", "number", "two-sided", shown="small"),
        Column("n", "whole", "components", header="how many"),
        Column("facts", "number", "mean rank of the facts after training", header="facts, rank"),
        Column("new_facts", "number", "that of the new facts", header="new facts, rank"),
    ),
)

_COMPONENT = ["kind", "component", "layer", "head"]


@dataclass(frozen=True)
class Localization(Tuned):
    """E6: where implications are learned, and where new facts are read out."""

    kind: ClassVar[str] = "localization"
    schemas: ClassVar[tuple[Schema, ...]] = (LOCALIZATION, LOCALIZATION_R2)
    rows: ClassVar[int] = 2 * TRAINING_NAMES + len(CITIES)
    compat: Literal["paper"] | None

    def tables(self, base: Base, folder: Path) -> Mapping[str, pd.DataFrame]:
        """See `localization`."""
        task = base.ordering(self.tuning.seed)
        scores, squared = localization(base.model, task, self.tuning, compat=self.compat)
        return {"extractive_localization": scores, "extractive_localization_r2": squared}


def localization(
    model: Any,
    task: EncodedOrdering,
    settings: TuneSettings,
    *,
    compat: Literal["paper"] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compare where implications are learned with where new facts are read out.

    With W_F trained on the facts and W_FI on their implications after that, informative scores are
    at W_F, for the change W_FI - W_F, on the first 20 training implications; downstream ones at
    W_FI, for the change that training the test facts makes from there, on the test implications.

    Source: arXiv 2412.04614, section 5.
    """
    facts, extension = facts_then_implications(model, task, settings)
    with applied(model, facts):
        of_facts = mean_rank(model, task.facts)
        trained = task.implications.first(20)
        informative = _by_component(model, trained, extension, "informative", compat)
    with applied(model, facts + extension):
        new = tuned(model, task.test_facts, settings)
        with applied(model, new):
            of_new = mean_rank(model, task.test_facts)
        downstream = _by_component(model, task.test_implications, new, "downstream", compat)
    table = informative.merge(downstream, on=_COMPONENT, validate="one_to_one")
    rows = [
        (kind, r * r, r, p, len(part), of_facts, of_new)
        for kind, part in table.groupby("kind", sort=False)
        for r, p in [correlation(part["informative"], part["downstream"])]
    ]
    squared = pd.DataFrame(rows, columns=LOCALIZATION_R2.names[1:])
    for frame in (table, squared):
        frame.insert(0, "seed", settings.seed)
    return table, squared


def _by_component(
    model: Any,
    data: EncodedFacts,
    delta: WeightDelta,
    score: str,
    compat: Literal["paper"] | None,
) -> pd.DataFrame:
    scores = extractive_scores(model, data, delta, counterfactuals=0, compat=compat, check=False)
    table = scores.table()
    chosen = table[table["score"] == score]
    return chosen.groupby(_COMPONENT, sort=False)["value"].sum().reset_index(name=score)
