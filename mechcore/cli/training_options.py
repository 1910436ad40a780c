"""Groups of options of the command that trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from mechcore.errors import InputError
from mechcore.options import TestOptions, TrainOptions, number_or_text, pairs, split


@dataclass(frozen=True)
class BaseOptions:
    """Which checkpoint to train, and for what."""

    model: Annotated[
        str | None,
        typer.Option("--model", help="Checkpoint directory or hub id to begin from."),
    ] = None
    classes: Annotated[
        str | None,
        typer.Option(
            "--labels",
            "--classes",
            help="Names of the classes to learn, by commas; else the labels of the training data.",
        ),
    ] = None
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", help='Language models: text with {a} and {b}: "{a} So {b}?".'),
    ] = None
    answers: Annotated[
        str | None,
        typer.Option("--answers", help='Language models: LABEL=WORD by commas: "yes= Yes".'),
    ] = None
    max_length: Annotated[
        int | None,
        typer.Option("--max-length", help="Tokens after which inputs are cut; else the preset's."),
    ] = None
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, tag or commit of a hub id.")
    ] = None
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle", help="Read weights from a pickle, which can run any code on loading."
        ),
    ] = False

    def config(self) -> Any:
        """The study's `ModelConfig`."""
        from mechcore.study import ModelConfig

        return ModelConfig(
            source=self.model,
            revision=self.revision,
            class_labels=tuple(split(self.classes)) or None,
            prompt=self.prompt,
            answers=pairs("--answers", self.answers) or None,
            allow_pickle=self.allow_pickle,
        )


@dataclass(frozen=True)
class AllTrainOptions(TrainOptions):
    """Training data, all of it unless told otherwise."""

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
class FineTuneOptions:
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

        values = {**vars(self), "batch_size": batch_size, "max_length": max_length}
        preset, setting = values.pop("preset"), values.pop("setting")
        if not values["from_scratch"]:
            del values["from_scratch"]  # --setting may say so
        changes = {name: value for name, value in values.items() if value is not None}
        if "checkpoint_every" in changes:
            changes.setdefault("evaluate_every", changes["checkpoint_every"])
        for name, text in pairs("--setting", setting).items():
            if name in changes:
                raise InputError(f"--setting: {name} is given as an option of its own, too")
            changes[name] = _plain_value(text.strip())
        return train_settings(preset, **changes)


def _plain_value(text: str) -> int | float | str | bool | None:
    known: dict[str, bool | None] = {"true": True, "false": False, "none": None}
    return known[text.lower()] if text.lower() in known else number_or_text(text)
