"""Models and data as inputs of jobs, identified by content and loaded once per process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mechcore.data.sources import sources_content
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.steps.inputs import (
    Inputs,
    data_name,
    embedded_draw,
    open_model,
    read_split,
    resolved,
    sources_of,
)
from mechcore.study.step import (
    Hasher,
    Input,
    Job,
    architecture_code,
    checkpoint_content,
    digest_of,
    plain,
)
from mechcore.study.store import Store

MOST_MODELS = 2
"""Number of models kept open; the least recently used one is evicted."""

CHECKPOINTS = "checkpoints"

MODEL, TRAINING = "model", "training"

_PLACE = ("source", "embedded", "checkpoint", "revision", "allow_pickle", "device_map")
"""Settings that say what a model is or where it is stored, not how it is used."""


@dataclass(frozen=True)
class ModelInput(Input):
    """A model in a checkpoint, or in the one ``trained`` by a needed job.

    Without ``answers``, it may lack a head.
    """

    config: ModelConfig
    answers: bool = True
    trained: str = ""

    def content(self, hash_file: Hasher) -> Any:
        """Digests of its files, or its checkpoint, and how its answers are read."""
        if self.trained:
            return {"checkpoint": self.trained, **_use(self.config)}
        config = resolved(self.config)
        files = checkpoint_content(str(config.source), config.revision, hash_file)
        return {"files": files, **_use(config)}

    def uses(self) -> Sequence[object]:
        """See `Input.uses`; the code of its architecture."""
        config = resolved(self.config)
        return () if self.trained else architecture_code(str(config.source), config.revision)


@dataclass(frozen=True)
class DataInput(Input):
    """The data of a split for a model; ``half`` is 1 or 2, one of two random halves, or None."""

    split: str
    model: ModelConfig
    data: DataConfig
    half: int | None = None

    @property
    def limit(self) -> int | None:
        """Maximum number of examples to draw; None for all."""
        return getattr(self.data, f"max_{self.split}")

    def content(self, hash_file: Hasher) -> Any:
        """Digests of the files that the examples come from, and how they are drawn."""
        content: dict[str, Any] = {"limit": self.limit, "seed": self.data.seed, "half": self.half}
        if self.model.source is None:
            content |= {"world": self.split, **embedded_draw(self.split, self.data)}
        else:
            content["sources"] = sources_content(sources_of(self.split, self.data), hash_file)
        if self.split == "ood":
            content |= {"label": self.data.ood_label, "subsets": self.data.ood_subsets}
        if self.split != "train" and self.data.population == "texts":
            content["population"] = self.data.population
        return content


def _use(config: ModelConfig) -> dict[str, Any]:
    used: dict[str, Any] = plain(config)
    # A list keeps the order of the classes, which a mapping in a key would lose.
    used["answers"] = list((config.answers or {}).items())
    return {name: value for name, value in used.items() if name not in _PLACE}


class Workbench:
    """Loads models and data for jobs, and keeps them for later jobs."""

    def __init__(self, store: Store, device: str = "cpu") -> None:
        self.store, self.device = store, device
        self.loads: list[str] = []
        self._models: OrderedDict[tuple[str, bool], tuple[Inputs, dict[Any, Any]]] = OrderedDict()

    def inputs(self, job: Job) -> Inputs:
        """The model and data of a job; raises `InputError` if they are unusable."""
        inputs, known = self._opened(job)
        opened = replace(inputs, data={}, available={})
        for split, data in data_inputs(job).items():
            name = data_name(split, data.model, data.data)
            drawn = (split, digest_of([job.contents[split], name]))
            if drawn not in known:
                examples, available = read_split(split, data.model, data.data)
                if data.half is not None:
                    examples = examples.halves(data.data.seed)[data.half - 1]
                encoded = inputs.encode(examples)
                job.check_inputs(self.store.hash_file)
                known[drawn] = (encoded, available)
            opened.add(split, *known[drawn])
        return opened

    def _opened(self, job: Job) -> tuple[Inputs, dict[Any, Any]]:
        model, training = model_input(job), job.needs.get(TRAINING)
        digest = digest_of([job.contents[MODEL], None if training is None else training.key])
        # A model with answers serves all jobs.
        answers = model.answers or (digest, True) in self._models
        place = (digest, answers)
        if place not in self._models:
            while len(self._models) >= MOST_MODELS:
                self._models.popitem(last=False)
            config = model.config
            if model.trained:
                config = replace(config, source=str(trained_path(self.store, job)))
            opened = open_model(config, answers=answers, device=self.device)
            job.check_inputs(self.store.hash_file)  # before caching it under the planned digest
            self._models[place] = (opened, {})
            self.loads.append(digest)
        self._models.move_to_end(place)
        return self._models[place]


def model_input(job: Job) -> ModelInput:
    """The model of a job."""
    model = job.inputs[MODEL]
    assert isinstance(model, ModelInput)
    return model


def data_inputs(job: Job) -> dict[str, DataInput]:
    """The data of a job by split."""
    return {split: data for split, data in job.inputs.items() if isinstance(data, DataInput)}


def trained_path(store: Store, job: Job) -> Path:
    """The checkpoint of a job whose model the study trained; raises `Damaged` if it changed."""
    return store.whole(job.needs[TRAINING].key) / CHECKPOINTS / model_input(job).trained


_benches: dict[tuple[Path, str], Workbench] = {}


def bench_of(store: Store, device: str) -> Workbench:
    """This process's workbench for a store and a device; replaces one for others."""
    place = (store.path.resolve(), device)
    if place not in _benches:
        _benches.clear()
        _benches[place] = Workbench(store, device)
    return _benches[place]
