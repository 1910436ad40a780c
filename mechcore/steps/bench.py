"""What a process has open: models and their data, loaded once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

from mechcore.steps.inputs import Inputs, data_name, open_model, read_split
from mechcore.steps.sources import CheckpointInput, DataInput, ModelInput, TrainedInput
from mechcore.study.fingerprints import digest_of
from mechcore.study.step import Job
from mechcore.study.store import Store

MOST_MODELS = 2
"""Models kept open at once; the one not used for longest makes room."""

CHECKPOINTS = "checkpoints"
"""Folder of what a training made."""

MODEL, TRAINING = "model", "training"
"""What a job's model is to it, and the job that trains it."""


class Workbench:
    """Loads models and data for jobs, and keeps them for the next ones."""

    def __init__(self, store: Store, device: str = "cpu") -> None:
        self.store, self.device = store, device
        self.loads: list[str] = []
        self._models: OrderedDict[tuple[str, bool], Inputs] = OrderedDict()
        self._examples: dict[tuple[str, str, str], Any] = {}

    def inputs(self, job: Job) -> Inputs:
        """The model of a job with the data of its splits.

        Raises:
            InputError: they cannot be used.
        """
        inputs = self._model(job)
        opened = replace(inputs, data={}, available={})
        for split, data in data_inputs(job).items():
            encoded, available = self._split(inputs, job, split, data)
            opened.compare(split, encoded.examples)
            opened.data[split], opened.available[split] = encoded, available
        return opened

    def _model(self, job: Job) -> Inputs:
        digest, model = model_digest(job), model_input(job)
        # One that answers does for everything.
        answers = getattr(model, "answers", True) or (digest, True) in self._models
        place = (digest, answers)
        if place not in self._models:
            while len(self._models) >= MOST_MODELS:
                (gone, _), _ = self._models.popitem(last=False)
                self._examples = {k: v for k, v in self._examples.items() if k[0] != gone}
            config = model.config
            if isinstance(model, TrainedInput):
                config = replace(config, source=str(trained_path(self.store, job)))
            opened = open_model(config, answers=answers, device=self.device)
            job.check_inputs(self.store.hash_file)  # before it is kept under what the plan read
            self._models[place] = opened
            self.loads.append(digest)
        self._models.move_to_end(place)
        return self._models[place]

    def _split(self, inputs: Inputs, job: Job, split: str, data: DataInput) -> Any:
        name = data_name(split, data.model, data.data)
        place = (model_digest(job), split, digest_of([job.contents[split], name]))
        if place not in self._examples:
            holder = replace(inputs, data={}, available={})
            examples, available = read_split(split, data.model, data.data)
            if data.half is not None:
                examples = examples.halves(data.data.seed)[data.half - 1]
            holder.add(split, examples, available)
            job.check_inputs(self.store.hash_file)
            self._examples[place] = (holder.data[split], holder.available[split])
        return self._examples[place]


def model_input(job: Job) -> ModelInput:
    """The model of a job."""
    model = job.inputs[MODEL]
    assert isinstance(model, (CheckpointInput, TrainedInput))
    return model


def data_inputs(job: Job) -> dict[str, DataInput]:
    """The data of a job by split."""
    return {split: data for split, data in job.inputs.items() if isinstance(data, DataInput)}


def trained_path(store: Store, job: Job) -> Path:
    """The checkpoint of a job whose model the study trained.

    Raises:
        Damaged: it is not what was written.
    """
    model = model_input(job)
    assert isinstance(model, TrainedInput)
    return store.whole(job.needs[TRAINING].key) / CHECKPOINTS / model.checkpoint


def model_digest(job: Job) -> str:
    """What jobs of the same model have in common."""
    training = job.needs.get(TRAINING)
    return digest_of([job.contents[MODEL], None if training is None else training.key])


_benches: dict[tuple[Path, str], Workbench] = {}


def bench_of(store: Store, device: str) -> Workbench:
    """This process's workbench for a store and a device; that of another one is cleared away."""
    place = (store.path.resolve(), device)
    if place not in _benches:
        _benches.clear()
        _benches[place] = Workbench(store, device)
    return _benches[place]
