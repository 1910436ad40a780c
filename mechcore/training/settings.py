"""How to train, and the recipes of the paper as presets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from mechcore.errors import InputError
from mechcore.settings import Presets, check, setting


@dataclass(frozen=True)
class TrainSettings:
    """How to train."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    panel: ClassVar[str] = "Training"

    epochs: float | None = setting(
        None, "Passes over the training examples, instead of steps.", "--epochs", above=0
    )
    steps: int | None = setting(None, "Optimiser steps, instead of epochs.", "--steps", least=1)
    learning_rate: float = setting(
        5e-5,
        "Peak rate of AdamW, reached after the warm-up; it then falls linearly to zero.",
        "--learning-rate",
        above=0,
    )
    batch_size: int = setting(
        64,
        "Examples per forward. They are reshuffled after every pass, which drops an "
        "incomplete last batch.",
        "--batch-size",
        least=1,
    )
    accumulate: int = setting(
        1, "Batches to average gradients over per optimiser step.", "--accumulate", least=1
    )
    warmup_steps: int = setting(
        0, "Steps over which the rate rises linearly from zero.", "--warmup-steps", least=0
    )
    weight_decay: float = setting(0.01, "Weight decay of AdamW, on every parameter.", least=0)
    evaluate_every: int = setting(
        200,
        "Steps between evaluations; the last step is always evaluated.",
        "--evaluate-every",
        least=1,
    )
    checkpoint_every: int = setting(
        200,
        "Steps between checkpoints, a multiple of those between evaluations. An interrupted "
        "run resumes from the last one.",
        "--checkpoint-every",
        least=1,
    )
    checkpoint_dtype: Literal["float32", "float16", "bfloat16"] = setting(
        "float32",
        "Precision of checkpoints before the last (the last is float32, "
        "but with a patience a copy of an earlier one). The history records the "
        "accuracy of the weights as stored.",
    )
    max_length: int | None = setting(
        None,
        "Maximum tokens of an input; longer ones are cut, with a warning. By default the model's "
        "maximum, and longer inputs are an error.",
        "--max-length",
        least=1,
    )
    by_length: bool = setting(
        False,
        "Batch examples of similar length, which saves padding. Every pass is "
        "shuffled first, and its batches are shuffled again.",
    )
    precision: Literal["float32", "bfloat16", "float16"] = setting(
        "float32",
        "Precision of forward and backward passes; bfloat16 and float16 use autocast, float16 with "
        "a scaled loss and only on GPUs. Weights and evaluations are float32.",
        "--precision",
    )
    from_scratch: bool = setting(
        False,
        "Start with random weights, using only the base's configuration and tokenizer.",
        "--from-scratch",
    )
    seed: int = setting(
        0,
        "Seed of the order of examples, of dropout, and of new weights.",
        "--seed",
        least=0,
        most=2**32 - 1,  # of numpy's generators, which the Trainer also seeds
    )
    patience: int | None = setting(
        None,
        "Successive evaluations without improvement after which training ends; the last "
        "checkpoint then has the weights of the best evaluation, the earliest of equals. The rate "
        "falls as if training continued to the last step. By default all steps are trained, and "
        "the weights of the last are kept.",
        "--patience",
        least=1,
    )
    watch: str | None = setting(
        None,
        "The evaluation data set whose accuracy over all examples counts; by default the "
        "first. It selects the weights: report results on another.",
        place=True,
    )

    presets: ClassVar[Presets[TrainSettings]]

    def __post_init__(self) -> None:
        check(self, "training")
        if self.patience is None and self.watch is not None:
            raise InputError(
                f"training: watch is {self.watch!r}, but has no effect without patience; set "
                "patience, or leave it out"
            )
        if (self.epochs is None) == (self.steps is None):
            raise InputError(
                f"training: epochs is {self.epochs} and steps is {self.steps}; expected exactly "
                "one of them"
            )
        if self.steps is not None:
            self._check_warmup(self.steps)
        if self.checkpoint_every % self.evaluate_every:
            raise InputError(
                f"training: checkpoint_every is {self.checkpoint_every}; expected a multiple of "
                f"evaluate_every ({self.evaluate_every}), so that each checkpoint has its "
                "accuracies in the history"
            )

    def _check_warmup(self, steps: int) -> None:
        if self.warmup_steps >= steps:
            raise InputError(
                f"training: warmup_steps is {self.warmup_steps}, but the whole run has {steps} "
                "steps; expected fewer; lower it, or train for longer"
            )

    def total_steps(self, n_examples: int) -> int:
        """Optimiser steps on ``n_examples`` examples.

        Raises:
            InputError: there are fewer examples than a batch, or no more steps than the warm-up.
        """
        if n_examples < self.batch_size:
            raise InputError(
                f"training: {n_examples} examples for batches of {self.batch_size}; give more "
                "examples or lower batch_size"
            )
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        exact = self.epochs * n_examples / (self.batch_size * self.accumulate)
        steps = math.ceil(round(exact, 6))
        self._check_warmup(steps)
        return steps

    def checkpoint_steps(self, n_examples: int) -> list[int]:
        """Steps with checkpoints besides ``final``; with a patience training may end earlier."""
        end = self.total_steps(n_examples) + (self.patience is not None)
        return list(range(self.checkpoint_every, end, self.checkpoint_every))


_PAPER: dict[str, Any] = {
    "learning_rate": 2e-5,
    "batch_size": 32,
    "weight_decay": 0.0,
    "evaluate_every": 500,
    "checkpoint_every": 500,
    "max_length": 128,
}
_MNLI = TrainSettings(epochs=5, **_PAPER)
_QQP = TrainSettings(steps=40_000, accumulate=8, **_PAPER)

PRESETS: Mapping[str, TrainSettings] = {
    "quick": TrainSettings(
        epochs=3,
        learning_rate=5e-5,
        batch_size=32,
        warmup_steps=200,
        evaluate_every=300,
        checkpoint_every=300,
        by_length=True,
    ),
    "bert-mnli": _MNLI,
    "bert-qqp": _QQP,
    "roberta-mnli": _MNLI,
    "roberta-qqp": _QQP,
    "gpt2-mnli": replace(_MNLI, epochs=10),
    "gpt2-qqp": _QQP,
}
"""Recipes by name. ``"quick"`` is ours, a short one for small encoders. The others are those of
arXiv 2403.03942. Where the paper is silent the choice is ours: no weight decay, no warm-up, a rate
that falls linearly to zero and gradients clipped to norm 1; the 256 examples of a step on QQP are 8
batches of 32; and GPT-2 on QQP is trained like BERT."""


def _length(changes: dict[str, Any]) -> dict[str, Any]:
    for given, other in (("epochs", "steps"), ("steps", "epochs")):
        if changes.get(given) is not None:
            changes.setdefault(other, None)
    return changes


TrainSettings.presets = Presets("training", PRESETS, "quick", "--setting", changed=_length)


def train_settings(preset: str = "quick", **changes: Any) -> TrainSettings:
    """A preset with changes; ``steps`` replaces its epochs, and vice versa."""
    return TrainSettings.presets.make(preset, **changes)
