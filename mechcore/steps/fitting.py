"""Training a model as a step of a study, or on its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd

from mechcore.data.tokens import chat_prompt
from mechcore.steps.bench import data_inputs, model_input
from mechcore.steps.config import TEST_SPLITS, DataConfig, ModelConfig
from mechcore.steps.inputs import classes_of, read_split
from mechcore.study.step import Job
from mechcore.training import TrainSettings, answering, classification, new_model, train

Training = Callable[[Path], pd.DataFrame]
"""Trains into a folder, or resumes there; returns the history, see `mechcore.training.train`."""


def training_on(
    model: ModelConfig,
    data: DataConfig,
    settings: TrainSettings,
    device: str = "cpu",
    splits: Sequence[str] = TEST_SPLITS,
) -> Training:
    """A training ready to start, with a prompt of a language model; `InputError` for bad inputs."""
    assert model.source is not None
    examples, _ = read_split("train", model, data, labelled=True)
    evaluations = {split: read_split(split, model, data)[0] for split in splits}
    if settings.max_length is None:
        settings = replace(settings, max_length=model.max_length)
    classes = classes_of(model, data)
    built, tokenizer = new_model(
        model.source,
        classes=None if model.prompt else classes or tuple(examples.label_names),
        prompt=model.prompt,
        from_scratch=settings.from_scratch,
        seed=settings.seed,
        revision=model.revision,
        allow_pickle=model.allow_pickle,
        device=device,
    )
    prompt, answers = model.prompt, model.answers or {}
    if model.chat_template:
        prompt = chat_prompt(tokenizer, prompt)
    if prompt is None:
        objective = classification(built, tokenizer, settings.max_length)
    else:
        objective = answering(built, tokenizer, prompt, answers, settings.max_length)
    objective.targets(examples)
    return partial(train, built, objective, examples, evaluations, settings=settings, device=device)


def training_of(job: Job, settings: TrainSettings, device: str) -> Training:
    """The training of a job, see `training_on`."""
    data = next(iter(data_inputs(job).values())).data
    return training_on(model_input(job).config, data, settings, device)
