"""E5: is what the model learns from implications good for other facts, too?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from mechcore.papers.extractive.encoded import (
    CHANCE,
    MEAN_RANK,
    POINTS,
    SPLIT,
    EncodedOrdering,
    measured,
)
from mechcore.papers.extractive.experiments.base import Base, Tuned
from mechcore.papers.extractive.facts import TRAINING_NAMES
from mechcore.papers.extractive.settings import TuneSettings
from mechcore.papers.extractive.weights import applied, facts_then_implications, tuned
from mechcore.tables import SEED, Column, Schema

GRAFTING = Schema(
    "extractive_grafting",
    "Ranks in a model of other facts, with and without the graft.",
    (
        SEED,
        Column("model", "text", "what was put on it", names={"other facts": "without graft"}),
        SPLIT,
        MEAN_RANK,
        POINTS,
        CHANCE,
    ),
)


@dataclass(frozen=True)
class Grafting(Tuned):
    """E5: what implications teach, put onto a model of other facts."""

    kind: ClassVar[str] = "grafting"
    schemas: ClassVar[tuple[Schema, ...]] = (GRAFTING,)
    rows: ClassVar[int] = 4 * TRAINING_NAMES

    def tables(self, base: Base, folder: Path) -> Mapping[str, pd.DataFrame]:
        """See `grafting`."""
        task = base.ordering(self.tuning.seed)
        return {"extractive_grafting": grafting(base.model, task, self.tuning)}


def grafting(model: Any, task: EncodedOrdering, settings: TuneSettings) -> pd.DataFrame:
    """Put what the implications of some facts change onto a model that learned other facts.

    With W_0 before training, W_F trained on the facts, W_FI on their implications after that, W_I
    on the implications alone, and W_F' on other facts of the same names, ``other facts`` is W_F',
    ``graft`` W_F' + (W_FI - W_F), and ``control graft`` W_F' + (W_I - W_0).

    Source: arXiv 2412.04614, section 5.
    """
    _, extension = facts_then_implications(model, task, settings)
    other = tuned(model, task.other_facts, settings)
    alone = tuned(model, task.implications, settings)
    models = {"other facts": other, "graft": other + extension, "control graft": other + alone}
    names = ("other implications", "implications", "other facts", "facts")
    splits = {name: task.splits[name] for name in names}
    rows = []
    for name, delta in models.items():
        with applied(model, delta):
            rows += measured(model, splits, seed=settings.seed, model=name)
    return pd.DataFrame(rows)
