"""How the study trained its model, and the accuracy during training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mechcore import report
from mechcore.analyses.base import Analysis, Tables
from mechcore.data.task import SPLITS
from mechcore.steps.base import WITH_GRADIENT
from mechcore.study.step import Job, Work
from mechcore.tables import PLACE, Column, Schema
from mechcore.training import TrainSettings
from mechcore.wording import ALL, count, number, percent, plain, short_source, subsets_named, whole

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
    """Train a model for the task; ``classes`` name those of a new classifier without names."""

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

    def cost(self, job: Job) -> float:
        """See `Step.cost`."""
        return WITH_GRADIENT * self.steps * self.training.batch_size * self.training.accumulate

    def compute(self, work: Work) -> Tables:
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
        members = {}
        for split in dict.fromkeys(history["split"]):
            names = list(dict.fromkeys(history.loc[history["split"] == split, "subset"]))
            members[split] = [name for name in names if name != ALL] or names
        yield from map(report.Paragraph, cls.headlines(run))
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
            over = "all examples" if names == [ALL] else subsets_named(names)
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
