"""E2: where fine-tuned facts are stored, queried and read out, as maps over layers and tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd
from scipy.stats import pearsonr

from mechcore.papers.extractive.encoded import POINTS, TASK, EncodedTask
from mechcore.papers.extractive.experiments.base import Base, TunedOnTask
from mechcore.papers.extractive.facts import CITIES
from mechcore.papers.extractive.results import SCORES
from mechcore.papers.extractive.scores import extractive_scores
from mechcore.papers.extractive.weights import WeightDelta, tuned
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
