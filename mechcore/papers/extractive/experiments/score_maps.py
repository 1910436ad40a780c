"""E2 and E6: where facts are stored, queried and read out; where implications are learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd
from scipy.stats import pearsonr

from mechcore.papers.extractive.encoded import POINTS, TASK, EncodedFacts, mean_rank
from mechcore.papers.extractive.experiments.base import Base, Tuned, TunedOnTask
from mechcore.papers.extractive.facts import CITIES, TRAINING_NAMES
from mechcore.papers.extractive.results import PARTS, SCORES
from mechcore.papers.extractive.scores import extractive_scores
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
        """The scores, and their sums in one row."""
        seed = self.tuning.seed
        task = base.tasks(seed)[self.task]
        result = extractive_scores(
            base.model,
            task.implications,
            tuned(base.model, task.facts, self.tuning),
            counterfactuals=self.counterfactuals,
            seed=seed,
            compat=self.compat,
        )
        scores, points = result.table(), result.sums()
        r, _ = correlation(points["gradient"], points["actual"])
        sums = points[SUMS.names[2:6]].mean().to_frame().T.assign(r=r, n=len(points))
        for table in (scores, sums):
            table.insert(0, "task", self.task)
            table.insert(1, "seed", seed)
        return {"extractive_scores": scores, "extractive_sums": sums}


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
    """E6: where implications are learned, and where new facts are read out.

    With W_F trained on the facts and W_FI on their implications after that, informative scores are
    at W_F, for the change W_FI - W_F, on the first 20 training implications; downstream ones at
    W_FI, for the change that training the test facts makes from there, on the test implications.

    Source: arXiv 2412.04614, section 5.
    """

    kind: ClassVar[str] = "localization"
    schemas: ClassVar[tuple[Schema, ...]] = (LOCALIZATION, LOCALIZATION_R2)
    rows: ClassVar[int] = 2 * TRAINING_NAMES + len(CITIES)
    compat: Literal["paper"] | None

    def tables(self, base: Base, folder: Path) -> Mapping[str, pd.DataFrame]:
        """The two scores of every component, and their correlation."""
        model, task = base.model, base.ordering(self.tuning.seed)
        facts, extension = facts_then_implications(model, task, self.tuning)
        with applied(model, facts):
            of_facts = mean_rank(model, task.facts)
            trained = task.implications.first(20)
            informative = self._by_component(model, trained, extension, "informative")
        with applied(model, facts + extension):
            new = tuned(model, task.test_facts, self.tuning)
            with applied(model, new):
                of_new = mean_rank(model, task.test_facts)
            downstream = self._by_component(model, task.test_implications, new, "downstream")
        table = informative.merge(downstream, on=_COMPONENT, validate="one_to_one")
        rows = [
            (kind, r * r, r, p, len(part), of_facts, of_new)
            for kind, part in table.groupby("kind", sort=False)
            for r, p in [correlation(part["informative"], part["downstream"])]
        ]
        squared = pd.DataFrame(rows, columns=LOCALIZATION_R2.names[1:])
        for frame in (table, squared):
            frame.insert(0, "seed", self.tuning.seed)
        return {"extractive_localization": table, "extractive_localization_r2": squared}

    def _by_component(
        self, model: Any, data: EncodedFacts, delta: WeightDelta, score: str
    ) -> pd.DataFrame:
        options: dict[str, Any] = {"counterfactuals": 0, "compat": self.compat, "check": False}
        table = extractive_scores(model, data, delta, **options).table()
        chosen = table[table["score"] == score]
        return chosen.groupby(_COMPONENT, sort=False)["value"].sum().reset_index(name=score)
