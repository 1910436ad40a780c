"""E4: does it matter in which order facts and their implications are learned?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from mechcore.papers.extractive.facts import CITIES, TRAINING_NAMES
from mechcore.papers.extractive.settings import TuneSettings
from mechcore.papers.extractive.weights import restored, trainable_names, tune
from mechcore.tables import SEED, Column, Schema

ORDERING = Schema(
    "extractive_ordering",
    "Ranks by what was learned first.",
    (
        SEED,
        Column("replay", "flag", "whether old data was mixed in"),
        Column("order", "text", "``joint``, ``facts first`` or ``implications first``"),
        SPLIT,
        MEAN_RANK,
        POINTS,
        CHANCE,
    ),
)


@dataclass(frozen=True)
class Ordering(Tuned):
    """E4: facts and implications learned in each order."""

    kind: ClassVar[str] = "ordering"
    schemas: ClassVar[tuple[Schema, ...]] = (ORDERING,)
    rows: ClassVar[int] = 3 * (2 * TRAINING_NAMES + len(CITIES))

    def tables(self, base: Base, folder: Path) -> Mapping[str, pd.DataFrame]:
        """See `ordering`."""
        task = base.ordering(self.tuning.seed)
        return {"extractive_ordering": ordering(base.model, task, self.tuning)}


def ordering(model: Any, task: EncodedOrdering, settings: TuneSettings) -> pd.DataFrame:
    """Train facts and implications of some names in each order, then only the facts of others.

    With ``replay``, steps of the second phase get so many rows of the first one's data, so that it
    is not forgotten. ``facts`` and ``implications`` are measured after the training names, ``test
    facts`` and ``test implications`` at the end.

    Source: arXiv 2412.04614, section 5; replay is this project's.
    """
    rows: list[dict[str, Any]] = []
    plain = replace(settings, replay=0)
    trained = {"facts": task.facts, "implications": task.implications}
    tested = {"test facts": task.test_facts, "test implications": task.test_implications}
    for order in ("joint", "facts first", "implications first"):
        labels = {"seed": settings.seed, "replay": settings.replay > 0, "order": order}
        with restored(model, trainable_names(model)):
            if order == "joint":
                tune(model, [task.facts, task.implications], plain)
            else:
                first, second = task.facts, task.implications
                if order == "implications first":
                    first, second = second, first
                tune(model, first, plain)
                tune(model, second, settings, replay=first)
            rows += measured(model, trained, **labels)
            tune(model, task.test_facts, plain)
            rows += measured(model, tested, **labels)
    return pd.DataFrame(rows)
