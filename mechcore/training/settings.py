"""How to train, and the recipes of the paper as presets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from pydantic import ConfigDict

from mechcore.errors import InputError

MAX_SEED = 2**32
"""What numpy's generators take, which the Trainer seeds as well."""


@dataclass(frozen=True)
class TrainSettings:
    """How to train.

    Attributes:
        epochs: passes over the training examples; or else ``steps``.
        steps: optimiser steps; or else ``epochs``.
        learning_rate: peak rate of AdamW, reached after ``warmup_steps``.
        batch_size: examples in one forward. The examples are reshuffled whenever they run out, and
            what does not fill a batch is left out of that pass.
        accumulate: batches whose gradients are averaged for one optimiser step.
        warmup_steps: steps over which the rate rises linearly from zero.
        schedule: the rate after the warm-up: ``"linear"`` falls to zero at the last step,
            ``"constant"`` stays.
        weight_decay: of AdamW, on every parameter.
        betas: of AdamW.
        epsilon: of AdamW.
        max_grad_norm: gradients are scaled down to this norm; 0 leaves them as they are.
        evaluate_every: steps between evaluations; the last step is always evaluated.
        checkpoint_every: steps between checkpoints, a multiple of ``evaluate_every``. An
            interrupted run goes on from the last of them.
        checkpoint_dtype: precision in which the checkpoints before the last are stored (the last
            is float32, but with a patience a copy of an earlier one). What the history records is
            the accuracy of the weights as stored.
        max_length: tokens after which an input is cut, with a warning; None for as many as the
            model takes, where longer inputs are refused.
        by_length: make batches of examples of similar length, which saves padding. Every pass is
            shuffled first, and its batches again after they were made.
        precision: of forward and backward passes; ``"bfloat16"`` and ``"float16"`` are autocast,
            float16 with a scaled loss and on GPUs only. Weights and evaluations are float32.
        from_scratch: begin with random weights; only the base's configuration and tokenizer are
            taken. It is for `new_model` and for studies: `train` takes a model as it is.
        seed: of the order of examples, of dropout, and of new weights.
        patience: evaluations in a row without improvement, after which training ends; the last
            checkpoint then has the weights of the best evaluation. The rate falls as if training
            went on to the last step. None trains all steps and keeps the weights of the last.
        min_delta: how much higher than the best so far an accuracy (share from 0 to 1) must be to
            improve on it; at 0 anything higher does. The same accuracy never does: of equals the
            earlier weights are kept.
        watch: the evaluation data set whose accuracy, over all its examples, is meant; None for
            the first. It takes part in the choice of the weights: report results on another.

    Raises:
        InputError: a value is out of its range.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    epochs: float | None = None
    steps: int | None = None
    learning_rate: float = 5e-5
    batch_size: int = 64
    accumulate: int = 1
    warmup_steps: int = 0
    schedule: Literal["linear", "constant"] = "linear"
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    evaluate_every: int = 200
    checkpoint_every: int = 200
    checkpoint_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    max_length: int | None = None
    by_length: bool = False
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    from_scratch: bool = False
    seed: int = 0
    patience: int | None = None
    min_delta: float = 0.0
    watch: str | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            self._check(name, _whole(getattr(self, name), 1), "a whole number from 1")
        for name in ("steps", "max_length", "patience"):
            value = getattr(self, name)
            self._check(name, value is None or _whole(value, 1), "a whole number from 1, or none")
        self._check("warmup_steps", _whole(self.warmup_steps, 0), "a whole number from 0")
        for name in ("weight_decay", "max_grad_norm"):
            self._check(name, _number(getattr(self, name), 0), "a number from 0 to 1e6")
        for name in ("learning_rate", "epsilon"):
            value = getattr(self, name)
            self._check(name, _number(value, 0) and value > 0, "a number above 0, at most 1e6")
        for name in ("by_length", "from_scratch"):
            self._check(name, isinstance(getattr(self, name), bool), "True or False")
        for name, choices in _CHOICES.items():
            self._check(name, getattr(self, name) in choices, " or ".join(map(repr, choices)))
        betas = self.betas
        pair = isinstance(betas, (tuple, list)) and len(betas) == 2
        self._check("betas", pair and all(_number(b, 0) and b < 1 for b in betas), "two in [0, 1)")
        object.__setattr__(self, "betas", tuple(betas))
        self._check("seed", _whole(self.seed, 0) and self.seed < MAX_SEED, f"0 to {MAX_SEED - 1}")
        self._check_stopping()
        self._check_length()
        if self.checkpoint_every % self.evaluate_every:
            raise InputError(
                f"training: checkpoint_every is {self.checkpoint_every}; expected a multiple of "
                f"evaluate_every ({self.evaluate_every}), so that each checkpoint has its "
                "accuracies in the history"
            )

    def _check_stopping(self) -> None:
        share = _number(self.min_delta, 0) and self.min_delta < 1
        self._check("min_delta", share, "a share of at least 0 and below 1")
        named = self.watch is None or (isinstance(self.watch, str) and self.watch != "")
        self._check("watch", named, "the name of an evaluation data set, or none")
        for name in ("min_delta", "watch"):
            idle = self.patience is None and getattr(self, name) != getattr(TrainSettings, name)
            self._check(name, not idle, "it together with patience, without which it does nothing")

    def _check_length(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise InputError(
                f"training: epochs is {self.epochs} and steps is {self.steps}; expected exactly "
                "one of them"
            )
        if self.epochs is not None:
            positive = _number(self.epochs, 0) and self.epochs > 0
            self._check("epochs", positive, "a number above 0, at most 1e6")
        if self.steps is not None:
            self._check_warmup(self.steps)

    def _check_warmup(self, steps: int) -> None:
        if self.warmup_steps >= steps:
            raise InputError(
                f"training: warmup_steps is {self.warmup_steps}, and the whole run has {steps} "
                "steps; expected fewer; lower it, or train for longer"
            )

    def _check(self, name: str, holds: bool, expected: str) -> None:
        if not holds:  # comparisons are False for NaN
            raise InputError(f"training: {name} is {getattr(self, name)!r}; expected {expected}")

    def total_steps(self, n_examples: int) -> int:
        """Optimiser steps on so many examples.

        Epochs are counted in examples: five over the 392 702 of MNLI, 32 a step, are 61 360 steps.

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
        """Steps whose checkpoints are kept beside ``final``.

        With a patience they are those that there can be: training may end before them. The last
        step of all can then be among them, as ``final`` is a copy of an earlier one.
        """
        end = self.total_steps(n_examples) + (self.patience is not None)
        return list(range(self.checkpoint_every, end, self.checkpoint_every))

    def facts(self) -> dict[str, Any]:
        """All settings by name, as they decide the result of a run or of a job of a study.

        Settings that were added later are left out while they have their default, so that runs
        and jobs from before are still known by the same facts.
        """
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in _ADDED or value != getattr(TrainSettings, name)
        }


_COUNTS = ("batch_size", "accumulate", "evaluate_every", "checkpoint_every")

_ADDED = ("patience", "min_delta", "watch")
"""Settings that came after the first runs were stored; their defaults do what was done before."""

_CHOICES = {
    "schedule": ("linear", "constant"),
    "checkpoint_dtype": ("float32", "float16", "bfloat16"),
    "precision": ("float32", "bfloat16", "float16"),
}


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**40


def _number(value: Any, least: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= 1e6


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
arXiv 2403.03942: 5 epochs on MNLI in batches of 32, 10 for GPT-2; 40 000 steps of 256 examples on
QQP; Adam (0.9, 0.999, 1e-8) at 2e-5, inputs of at most 128 tokens, evaluation and checkpoint every
500 steps. Where the paper is silent the choice is ours: no weight decay, no warm-up, a rate that
falls linearly to zero and gradients of norm 1 at most, as is usual with Hugging Face's Trainer; the
256 examples are 8 batches of 32; and GPT-2 on QQP is trained as BERT is."""


def train_settings(preset: str = "quick", **changes: Any) -> TrainSettings:
    """A preset with changes; ``steps`` takes the place of its epochs, and the other way round.

    Raises:
        InputError: the preset or a setting is unknown, or a value is out of its range.

    >>> train_settings("bert-mnli").total_steps(392_702)
    61360
    >>> train_settings("bert-mnli", steps=1000).total_steps(392_702)
    1000
    """
    if preset not in PRESETS:
        raise InputError(f"training: unknown preset {preset!r}; expected {' or '.join(PRESETS)}")
    known = [field.name for field in fields(TrainSettings)]
    if unknown := [name for name in changes if name not in known]:
        raise InputError(f"training: unknown setting {unknown[0]!r}; expected {', '.join(known)}")
    for given, other in (("epochs", "steps"), ("steps", "epochs")):
        if changes.get(given) is not None:
            changes.setdefault(other, None)
    return replace(PRESETS[preset], **changes)
