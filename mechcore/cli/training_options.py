"""Groups of options of the command that trains."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import typer

from mechcore.cli.options import (
    CheckpointOptions,
    Options,
    TestOptions,
    TrainOptions,
    check_once,
    number_or_text,
    pairs,
)


@dataclass(frozen=True)
class BaseOptions(CheckpointOptions):
    """Which checkpoint to train, and for what."""

    classes: Annotated[
        str | None,
        typer.Option(
            "--labels",
            "--classes",
            help="Names of the classes to learn, by commas; else those of the task, else the "
            "labels of the training data.",
        ),
    ] = None
    max_length: Annotated[
        int | None,
        typer.Option("--max-length", help="Tokens after which inputs are cut; else the preset's."),
    ] = None


@dataclass(frozen=True)
class AllTrainOptions(TrainOptions):
    """Training data, all of it unless told otherwise."""

    train: Annotated[str | None, typer.Option("--train", help="Labelled training file.")] = None
    max_train: Annotated[
        int, typer.Option("--max-train", help="Training examples at most; 0: all.", min=0)
    ] = 0


@dataclass(frozen=True)
class TrainTestOptions(TestOptions):
    """Test data of a training run, whose batches are those of training."""

    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Examples in one forward.", min=1)
    ] = None  # type: ignore[assignment]


@dataclass(frozen=True)
class FineTuneOptions(Options):
    """How to train; what is not given is as in the preset."""

    preset: Annotated[
        Literal[
            "quick",
            "bert-mnli",
            "bert-qqp",
            "roberta-mnli",
            "roberta-qqp",
            "gpt2-mnli",
            "gpt2-qqp",
        ],
        typer.Option("--preset", help="Recipe: a short one, or those of the paper."),
    ] = "quick"
    epochs: Annotated[float | None, typer.Option("--epochs", help="Passes over the data.")] = None
    steps: Annotated[
        int | None, typer.Option("--steps", help="Optimiser steps, instead of epochs.")
    ] = None
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="Peak rate of AdamW.")
    ] = None
    accumulate: Annotated[
        int | None, typer.Option("--accumulate", help="Batches averaged for a step.")
    ] = None
    warmup_steps: Annotated[
        int | None, typer.Option("--warmup-steps", help="Steps over which the rate rises.")
    ] = None
    evaluate_every: Annotated[
        int | None,
        typer.Option("--evaluate-every", help="Steps between evaluations; as --checkpoint-every."),
    ] = None
    checkpoint_every: Annotated[
        int | None, typer.Option("--checkpoint-every", help="Steps between checkpoints.")
    ] = None
    patience: Annotated[
        int | None,
        typer.Option(
            "--patience",
            help="Evaluations without a higher accuracy (of --id, else --ood) after which training "
            "ends, with the weights of the best; else all steps.",
        ),
    ] = None
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option("--precision", help="Of forward and backward passes; weights stay float32."),
    ] = None
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of new weights, dropout and order (0).")
    ] = None
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Begin with random weights.")
    ] = False
    setting: Annotated[
        str | None,
        typer.Option(
            "--setting",
            help="Further changes to the preset: weight_decay=0.1,by_length=false (see "
            "TrainSettings).",
        ),
    ] = None

    def settings(self, batch_size: int | None, max_length: int | None) -> Any:
        """The `TrainSettings`."""
        from mechcore.training import train_settings

        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values |= {"batch_size": batch_size, "max_length": max_length}
        preset, setting = values.pop("preset"), values.pop("setting")
        if not values["from_scratch"]:
            del values["from_scratch"]  # --setting may say so
        changes = {name: value for name, value in values.items() if value is not None}
        if "checkpoint_every" in changes:
            changes.setdefault("evaluate_every", changes["checkpoint_every"])
        for name, text in pairs("--setting", setting).items():
            check_once("--setting", name, changes)
            changes[name] = _plain_value(text.strip())
        return train_settings(preset, **changes)


def _plain_value(text: str) -> int | float | str | bool | None:
    known: dict[str, bool | None] = {"true": True, "false": False, "none": None}
    return known[text.lower()] if text.lower() in known else number_or_text(text)
