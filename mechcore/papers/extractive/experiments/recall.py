"""E1: after fine-tuning on facts, are their implications known, which were never trained?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from mechcore.files import write_json
from mechcore.papers.bases import WITH_GRADIENT
from mechcore.papers.extractive.encoded import (
    CHANCE,
    MEAN_RANK,
    POINTS,
    SPLIT,
    TASK,
    EncodedTask,
    mean_rank,
    rank_interval,
    ranks,
    rewards,
)
from mechcore.papers.extractive.experiments.base import Base, Experiment
from mechcore.papers.extractive.facts import CITIES
from mechcore.papers.extractive.settings import TuneSettings
from mechcore.papers.extractive.weights import restored, trainable_names, tune
from mechcore.study.step import Job
from mechcore.tables import SEED, Column, Schema, estimate

CHOSEN = "chosen.json"

_RATE = Column("learning_rate", "number", "learning rate", shown="exact")
_EPOCHS = Column("epochs", "number", "epochs of the training", shown="exact")
RANKS = Schema(
    "extractive_ranks",
    "Ranks of facts and implications before and after training on the facts.",
    (
        TASK,
        SEED,
        SPLIT,
        Column("state", "text", "``before`` or ``after`` the training", header="training"),
        *estimate("mean_rank", "number", MEAN_RANK.meaning, over="over prompts"),
        Column("reward", "number", "mean reward, in logits", signed=True),
        POINTS,
        Column("n_options", "whole", "answers to choose from", header="options"),
        CHANCE,
        _RATE,
        _EPOCHS,
    ),
)
GRID = Schema(
    "extractive_grid",
    "Every setting of the training that was tried.",
    (
        TASK,
        SEED,
        _RATE,
        _EPOCHS,
        Column("loss", "number", "of the last epoch", "nats", digits=3),
        Column("facts", "number", "mean rank of facts", header="facts, rank"),
        Column("implications", "number", "mean rank of them", header="implications, rank"),
        Column("chosen", "flag", "whether it has the best rank of facts"),
    ),
)


@dataclass(frozen=True)
class Ocr(Experiment):
    """E1: out-of-context reasoning, which chooses how scores and freezing are trained."""

    kind: ClassVar[str] = "ocr"
    schemas: ClassVar[tuple[Schema, ...]] = (RANKS, GRID)
    task: str
    grid: tuple[TuneSettings, ...]
    n_resamples: int

    def cost(self, job: Job) -> float:
        """See `Step.cost`."""
        return WITH_GRADIENT * len(CITIES) * sum(tuning.epochs for tuning in self.grid)

    def tables(self, base: Base, folder: Path) -> Mapping[str, pd.DataFrame]:
        """See `recall`; the chosen setting goes into ``chosen.json``."""
        task = base.tasks(self.grid[0].seed)[self.task]
        result = recall(base.model, task, self.grid, n_resamples=self.n_resamples)
        write_json(folder / CHOSEN, asdict(result.chosen))
        return {"extractive_ranks": result.ranks, "extractive_grid": result.grid}


@dataclass(frozen=True, eq=False)
class Recall:
    """What came of out-of-context reasoning on one task, with the setting chosen."""

    ranks: pd.DataFrame
    grid: pd.DataFrame
    chosen: TuneSettings


def recall(
    model: Any, task: EncodedTask, grid: Sequence[TuneSettings], *, n_resamples: int = 1000
) -> Recall:
    """Fine-tune on the facts with every setting, and ask the best model for the implications.

    The best has the lowest mean rank of the *facts*; among equals the lowest loss, then the first.
    All settings are of one seed.

    Source: arXiv 2412.04614, section 3.
    """
    before = _states(model, task, "before", n_resamples)
    tried: list[tuple[float, ...]] = []
    best: tuple[float, float] | None = None
    chosen, after = grid[0], before
    for settings in grid:
        with restored(model, trainable_names(model)):
            loss = float(tune(model, task.facts, settings)["loss"].iloc[-1])
            facts, implied = (mean_rank(model, data) for data in task.splits.values())
            tried.append((settings.learning_rate, settings.epochs, loss, facts, implied))
            if best is None or (facts, loss) < best:
                best, chosen = (facts, loss), settings
                after = _states(model, task, "after", n_resamples)
    columns = ["learning_rate", "epochs", "loss", "facts", "implications"]
    table = pd.DataFrame(tried, columns=columns)
    table["chosen"] = [settings == chosen for settings in grid]
    both = pd.DataFrame([*before, *after])
    both = both.assign(learning_rate=chosen.learning_rate, epochs=chosen.epochs)
    for frame in (table, both):
        frame.insert(0, "task", task.name)
        frame.insert(1, "seed", chosen.seed)
    return Recall(both, table, chosen)


def _states(model: Any, task: EncodedTask, state: str, n_resamples: int) -> list[dict[str, Any]]:
    rows = []
    for name, data in task.splits.items():
        n_options = len(data.option_ids)
        ranked = ranks(model, data).double().numpy()
        interval = rank_interval(ranked, n_options, n_resamples=n_resamples)
        low, high = interval.low, interval.high
        reward = float(rewards(model, data).double().mean())
        row = (name, state, interval.mean, low, high, reward, len(data), n_options, data.chance)
        rows.append(dict(zip(RANKS.names[2:11], row, strict=True)))
    return rows
