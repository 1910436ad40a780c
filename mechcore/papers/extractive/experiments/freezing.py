"""E3: which layers must change for the implications of a task to be known?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from mechcore.papers.extractive.encoded import MEAN_RANK, POINTS, SPLIT, TASK, EncodedTask, measured
from mechcore.papers.extractive.experiments.base import Base, TunedOnTask
from mechcore.papers.extractive.facts import CITIES
from mechcore.papers.extractive.settings import TuneSettings
from mechcore.papers.extractive.weights import applied, restored, trainable_names, tune, tuned
from mechcore.tables import SEED, Column, Schema

FREEZING = Schema(
    "extractive_freezing",
    "Ranks where the changes of early or of late layers are left out.",
    (
        TASK,
        SEED,
        Column("cut", "whole", "first late layer"),
        Column("frozen", "text", "none, early, late or all layers", header="which"),
        Column(
            "way",
            "text",
            "``reverted`` after the training, or not ``trained``",
            header="frozen layers",
            names={"reverted": "undone after training", "trained": "not trained"},
        ),
        SPLIT,
        MEAN_RANK,
        POINTS,
    ),
)


@dataclass(frozen=True)
class Freezing(TunedOnTask):
    """E3: early or late layers kept as they were; cuts are the first late layers, all if None."""

    kind: ClassVar[str] = "freezing"
    schemas: ClassVar[tuple[Schema, ...]] = (FREEZING,)
    rows: ClassVar[int] = 7 * len(CITIES)
    cuts: tuple[int, ...] | None

    def tables(self, base: Base, folder: Path) -> Mapping[str, pd.DataFrame]:
        """See `freezing`."""
        task = base.tasks(self.tuning.seed)[self.task]
        return {"extractive_freezing": freezing(base.model, task, self.tuning, cuts=self.cuts)}


def freezing(
    model: Any, task: EncodedTask, settings: TuneSettings, *, cuts: Sequence[int] | None = None
) -> pd.DataFrame:
    """Keep early or late layers as they were, for every cut between them, in two ways.

    Layers below a cut are early. ``"reverted"``: all layers are trained once; then those of the
    frozen group get their old weights back. ``"trained"``: only the other layers are trained.
    "none" and "all" do not depend on cut and way.

    Source: arXiv 2412.04614, section 4 (the paper has one cut, 24 of 32).
    """
    n_layers = model.cfg.n_layers
    rows: list[dict[str, Any]] = []
    untouched = measured(model, task.splits)
    delta = tuned(model, task.facts, settings)
    with applied(model, delta):
        whole = measured(model, task.splits)

    def note(cut: int, frozen: str, way: str, ranks: list[dict[str, Any]]) -> None:
        labels = {"task": task.name, "seed": settings.seed, "cut": cut, "frozen": frozen}
        rows.extend({**labels, "way": way, **row} for row in ranks)

    for cut in range(1, n_layers) if cuts is None else cuts:
        for way in ("reverted", "trained"):
            note(cut, "none", way, whole)
            note(cut, "all", way, untouched)
        for frozen, free in (("early", range(cut, n_layers)), ("late", range(cut))):
            names = trainable_names(model, free)
            with applied(model, delta.only(names)):
                note(cut, frozen, "reverted", measured(model, task.splits))
            with restored(model, names):
                tune(model, task.facts, settings, layers=free)
                note(cut, frozen, "trained", measured(model, task.splits))
    return pd.DataFrame(rows).drop(columns="chance")
