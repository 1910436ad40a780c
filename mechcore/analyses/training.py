"""How the study trained its model, and the accuracy during training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mechcore import report
from mechcore.analyses.base import Analysis
from mechcore.data.task import SPLITS
from mechcore.steps.base import WITH_GRADIENT, Size
from mechcore.study.step import Job, Work
from mechcore.tables import PLACE, Column, Schema
from mechcore.training import TrainSettings
from mechcore.wording import ALL, count, number, percent, plain, short_source, split_name, whole

if TYPE_CHECKING:
    import pandas as pd

TRAINING = Schema(
    "training",
    "Accuracy on test data during training.",
    (
        Column("step", "whole", "optimiser steps done"),
        *PLACE,
        Column("loss", "number", "mean training loss since the previous row", "nats", digits=3),
        Column("accuracy", "share", "accuracy"),
    ),
)

_COLUMNS = {"id": "ID", "ood": "OOD"}
_MOST_ROWS = 20


@dataclass(frozen=True)
class Train(Analysis):
    """Train a model for the task, with checkpoints; resumes after an interruption.

    ``classes`` names the classes of a new classifier if neither model nor data name them.
    """

    kind = "train"
    section = "training"
    title = "Training"
    label = "training"
    always = True
    question = False
    splits = SPLITS
    schemas = (TRAINING,)

    training: TrainSettings
    steps: int
    names: Mapping[str, str]
    classes: tuple[str, ...] = ()

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        schedule = self.training
        trained = self.steps * schedule.batch_size * schedule.accumulate
        evaluations = math.ceil(self.steps / schedule.evaluate_every)
        return WITH_GRADIENT * trained + evaluations * size.tested

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.files import copy_linked
        from mechcore.steps.bench import CHECKPOINTS
        from mechcore.steps.fitting import training_of

        history = training_of(work.job, self.training, work.device)(work.partial)
        copy_linked(work.partial, work.folder / CHECKPOINTS)
        history.insert(1, "data", history["dataset"].map(self.names))
        return {"training": history.rename(columns={"dataset": "split"})}

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """How the model was trained, and its accuracy and loss over steps."""
        if (history := run.filled("training")) is None:
            return
        members = {
            split: subsets_averaged(history, split) for split in dict.fromkeys(history["split"])
        }
        yield from map(report.Paragraph, cls.headlines(run))
        yield report.Paragraph(" ".join(_what_is_averaged(members)))
        yield report.Drawing(
            report.subnetwork_figures.training_curves(history),
            "training",
            "Above: accuracy on test data during training; thin lines are the out-of-domain "
            "subsets. Below: training loss (mean cross-entropy since the previous evaluation).",
            "Two line charts over training steps, accuracy and loss; the numbers are in the table "
            "below.",
        )
        rows = []
        for step, part in history.groupby("step"):
            means = [
                part.loc[(part["split"] == split) & part["subset"].isin(names), "accuracy"].mean()
                for split, names in members.items()
            ]
            loss = number(part["loss"].iloc[0], 3)
            rows.append([whole(float(str(step))), loss, *map(percent, means)])
        header = ["step", "loss (nats)"]
        for split, names in members.items():
            over = "all examples" if names == [ALL] else f"{len(names)} subsets"
            header.append(f"{_COLUMNS.get(split, split)} ({over})")
        caption = "Training loss since the previous row, and accuracy (means over those subsets)"
        yield report.Table(caption, header, rows, frozenset({0}), folded=len(rows) > _MOST_ROWS)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """What was trained, on how many examples, and how."""
        if (history := run.filled("training")) is None:
            return
        model = run.config.get("model") or {}
        settings = (run.config.get("settings") or {}).get("training") or {}
        steps = int(history["step"].max())
        name = short_source(str(model.get("base") or model.get("source") or "The model"))
        how = "was fine-tuned"
        if settings.get("from_scratch"):
            name, how = f"A model built like {name}", "was trained from random weights"
        data = run.data_facts("train")
        n = data.get("n_available")
        what = f" on {count(n, 'example')} ({data.get('name', 'train')})" if n else ""
        text = f"{name} {how} for {count(steps, 'step')}{what}"
        if settings:
            size = settings["batch_size"] * settings.get("accumulate", 1)
            text += f", {count(size, 'example')} a step"
            text += f" ({number(steps * size / n, 1)} passes)" if n else ""
            text += f", with a learning rate of up to {plain(float(settings['learning_rate']))}"
            text += f" and seed {settings['seed']}; all settings are under Method"
        yield f"{text}."
        if settings.get("patience") is not None:
            where = settings.get("watch") or "in-domain data"
            yield (
                f"The weights are those of the best evaluation on {where}, not of the last step, "
                "so accuracy on that data is optimistic: report accuracy on other data."
            )


def subsets_averaged(history: pd.DataFrame, split: str) -> list[str]:
    """The subsets averaged for a split; all examples if it has no subsets."""
    names = list(dict.fromkeys(history.loc[history["split"] == split, "subset"]))
    return [name for name in names if name != ALL] or names


def _what_is_averaged(members: Mapping[str, list[str]]) -> Iterator[str]:
    for split, names in members.items():
        column = _COLUMNS.get(split, split)
        if names == [ALL]:
            yield f"{column} is over all {split_name(split)} examples."
        else:
            over = f"{count(len(names), 'subset')}: {', '.join(names)}"
            yield f"{column} is macro-averaged over {over}."
