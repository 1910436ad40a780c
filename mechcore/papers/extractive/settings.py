"""What a study of extractive structures is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, TypeAlias, get_args

from pydantic import ConfigDict

from mechcore.errors import InputError
from mechcore.models import Backend
from mechcore.papers.extractive.fact_tables import BASE_STEPS

Experiment: TypeAlias = Literal["ocr", "scores", "freezing", "ordering", "grafting", "localization"]
EXPERIMENTS: tuple[Experiment, ...] = get_args(Experiment)
BY_TASK: tuple[Experiment, ...] = ("ocr", "scores", "freezing")
"""Experiments that are done for first-hop and for second-hop facts."""

Precision: TypeAlias = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
BACKENDS: tuple[Backend, ...] = get_args(Backend)


@dataclass(frozen=True)
class TuneSettings:
    """How to fine-tune; the defaults are those of arXiv 2412.04614 (OLMo-7b).

    Attributes:
        learning_rate: of Adam, constant.
        epochs: passes over the facts.
        batch_size: facts in a step; the last of an epoch may have fewer.
        seed: of their order and of the draw of replayed ones.
        replay: rows of other data added to every step.

    Raises:
        InputError: a value is out of its range.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    learning_rate: float = 3e-6
    epochs: int = 8
    batch_size: int = 8
    seed: int = 0
    replay: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < 1:
            raise InputError(
                f"fine-tuning: learning_rate is {self.learning_rate}; expected above 0, below 1"
            )
        for name, least in (("epochs", 1), ("batch_size", 1), ("seed", 0), ("replay", 0)):
            if getattr(self, name) < least:
                raise InputError(
                    f"fine-tuning: {name} is {getattr(self, name)}; expected at least {least}"
                )


# For the tiny bases; chosen on those of seeds from 100, so that no other seed had a say in it.
_RATES, _EPOCHS = (5e-4, 1e-3), 8
_GRAFTING = TuneSettings(learning_rate=5e-4, epochs=16)
_ORDERING = replace(_GRAFTING, replay=8)


@dataclass(frozen=True)
class ExtractiveSettings:
    """A study: the base, the experiments, and how facts are fine-tuned in each.

    Attributes:
        base: checkpoint directory or hub id of a pretrained decoder in Hugging Face format, which
            is asked about the paper's cities; None for the tiny world, with a base for every seed
            that is pretrained in the study.
        seeds: of the people's names, the order of facts, and the tiny bases.
        experiments: which of ocr (E1), scores (E2), freezing (E3), ordering (E4), grafting (E5)
            and localization (E6). Scores and freezing are of the setting that OCR chooses.
        learning_rates, epochs: the grid of OCR, every one with every other; the best by the facts
            alone is chosen for each seed and task, see `mechcore.papers.extractive.recall`.
        batch_size: facts in a step of these trainings.
        ordering: how every phase of E4 is trained. The seed in it is replaced by the study's. With
            ``replay`` above 0 it is done twice, without and with replay.
        grafting: the same for E5 and E6, without replay.
        base_steps: optimiser steps that a tiny base is pretrained for.
        counterfactuals: prompts that upstream scores are averaged over.
        compat: ``"paper"`` for the published code's informative score.
        cuts: of freezing, the first late layer of each; None for all.
        n_resamples: of bootstrap intervals.
        precision: of weights and activations. In bfloat16 small steps of training are lost in
            rounding: a delta of a low learning rate can be 0.
        backend: ``"bridge"``, or ``"hooked"`` for a HookedTransformer (GPT-2 only).

    Raises:
        InputError: a value is out of its range.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    base: str | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    experiments: tuple[Experiment, ...] = EXPERIMENTS
    learning_rates: tuple[float, ...] = _RATES
    epochs: tuple[int, ...] = (_EPOCHS,)
    batch_size: int = 8
    ordering: TuneSettings = _ORDERING
    grafting: TuneSettings = _GRAFTING
    base_steps: int = BASE_STEPS
    counterfactuals: int = 10
    compat: Literal["paper"] | None = None
    cuts: tuple[int, ...] | None = None
    n_resamples: int = 1000
    precision: Precision = "float32"
    backend: Backend = "bridge"

    def __post_init__(self) -> None:
        known, given = set(EXPERIMENTS), self.experiments
        if not given or not set(given) <= known or len({*given}) < len(given):
            expected = f"some of {', '.join(EXPERIMENTS)}, each once"
            _refuse("experiments", list(given), expected)
        if {"scores", "freezing"} & set(given) and "ocr" not in given:
            expected = "ocr beside scores and freezing, as it chooses how they are trained"
            _refuse("experiments", list(given), expected)
        for name, what in (("seeds", "whole numbers from 0"), ("learning_rates", "rates")):
            values = getattr(self, name)
            if not values or len({*values}) < len(values) or min(values) < 0:
                _refuse(name, list(values), f"different {what}, at least one")
        if not self.epochs or len({*self.epochs}) < len(self.epochs):
            _refuse("epochs", list(self.epochs), "different whole numbers, at least one")
        self.grid(self.seeds[0])
        for name in ("counterfactuals", "n_resamples", "base_steps"):
            if getattr(self, name) < 1:
                _refuse(name, getattr(self, name), "a whole number from 1")
        if self.compat not in (None, "paper"):
            _refuse("compat", self.compat, '"paper" or None')
        for name, known_values in (("precision", PRECISIONS), ("backend", BACKENDS)):
            if getattr(self, name) not in known_values:
                _refuse(name, getattr(self, name), " or ".join(known_values))
        if self.grafting.replay:
            _refuse("grafting.replay", self.grafting.replay, "0: there is nothing to replay")
        if self.cuts is not None and (not self.cuts or min(self.cuts) < 1):
            _refuse("cuts", list(self.cuts), "layers from 1, the first of the late ones")

    def grid(self, seed: int) -> list[TuneSettings]:
        """The settings that OCR tries, shortest training and lowest rate first."""
        return [
            TuneSettings(rate, epochs, self.batch_size, seed)
            for epochs, rate in product(sorted(self.epochs), sorted(self.learning_rates))
        ]

    def orderings(self, seed: int) -> list[TuneSettings]:
        """The settings of E4: without replay and, if there is any, with it."""
        with_replay = replace(self.ordering, seed=seed)
        without = replace(with_replay, replay=0)
        return [without, with_replay] if with_replay.replay else [without]

    def quick(self) -> ExtractiveSettings:
        """The same study in a minute or two: short trainings, few counterfactuals; for trying out.

        Its results are not meaningful.
        """
        short: dict[str, Any] = {"epochs": 1}
        return replace(
            self,
            seeds=self.seeds[:1],
            learning_rates=self.learning_rates[:1],
            epochs=(1,),
            ordering=replace(self.ordering, **short),
            grafting=replace(self.grafting, **short),
            base_steps=10,
            counterfactuals=2,
            cuts=(1,),
            n_resamples=100,
        )


def default_settings(base: str | None = None) -> ExtractiveSettings:
    """The settings for a base: the tiny ones', or the paper's, with a grid around its rate."""
    if base is None:
        return ExtractiveSettings()
    paper = TuneSettings()
    return ExtractiveSettings(
        base,
        learning_rates=(3e-6, 1e-5, 3e-5),
        epochs=(paper.epochs,),
        ordering=replace(paper, replay=paper.batch_size),
        grafting=paper,
    )


def _refuse(name: str, found: Any, expected: str) -> None:
    raise InputError(f"extractive study: {name} is {found!r}; expected {expected}")
