"""Training a model as a step of a study, or by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from transformers import PreTrainedModel

from mechcore.data.answers import chat_prompt
from mechcore.data.examples import Examples
from mechcore.steps.bench import data_inputs, model_input
from mechcore.steps.config import TEST_SPLITS, DataConfig, ModelConfig
from mechcore.steps.inputs import classes_of, read_split
from mechcore.study.step import Job
from mechcore.training import (
    Objective,
    TrainSettings,
    answering,
    classification,
    new_model,
    train,
)


@dataclass(frozen=True, eq=False)
class Fitting:
    """Everything that a training reads, checked; ``evaluations`` are test examples by split."""

    model: PreTrainedModel
    objective: Objective
    examples: Examples
    evaluations: Mapping[str, Examples]
    settings: TrainSettings
    device: str

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        data: DataConfig,
        settings: TrainSettings,
        device: str = "cpu",
        splits: Sequence[str] = TEST_SPLITS,
    ) -> Fitting:
        """Read the data, then build the model; with a prompt it is a language model.

        A classifier gets the classes of ``model.class_names``, else those of the task, else the
        labels of the training data in alphabetical order. ``splits`` are those of the test data.

        Raises:
            InputError: a file or checkpoint cannot be used, or labels and classes do not match.
        """
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
        return cls(built, objective, examples, evaluations, settings, device)

    def run(self, out: str | Path) -> pd.DataFrame:
        """Train, or go on with it; the history, see `mechcore.training.train`."""
        what = (self.model, self.objective, self.examples, self.evaluations)
        return train(*what, out, self.settings, device=self.device)


def fitting_of(job: Job, settings: TrainSettings, device: str) -> Fitting:
    """What a job of training reads, see `Fitting.of`."""
    data = next(iter(data_inputs(job).values())).data
    return Fitting.of(model_input(job).config, data, settings, device)
