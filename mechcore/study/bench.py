"""What a process has open: models and their data, loaded once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

from mechcore.errors import InputError
from mechcore.study.config import ModelConfig
from mechcore.study.fingerprints import digest_of
from mechcore.study.inputs import Inputs, data_name, open_model, read_role
from mechcore.study.store import Store
from mechcore.study.units import TRAINING, Unit, data_content, model_content

MOST_MODELS = 2
"""Models kept open at once; the one not used for longest makes room."""

CHECKPOINTS = "checkpoints"
"""Folder of what a unit of training made."""


class Workbench:
    """Loads models and data for units, and keeps them for the next ones.

    Args:
        store: hashes files, and holds models that a study trained.
        device: where models are put.
    """

    def __init__(self, store: Store, device: str = "cpu") -> None:
        self.store, self.device = store, device
        self.loads: list[str] = []
        self._models: OrderedDict[str, Inputs] = OrderedDict()
        self._examples: dict[tuple[str, str, str], Any] = {}

    def inputs(self, unit: Unit) -> Inputs:
        """The model of a unit with the data of its roles.

        Raises:
            InputError: they cannot be used, or are no longer those that the study was planned on.
        """
        self.check(unit)
        inputs = self._model(unit)
        found = replace(inputs, data={}, available={})
        for role in unit.roles:
            found.data[role], found.available[role] = self._role(inputs, unit, role)
        return found

    def check(self, unit: Unit) -> None:
        """Make sure that a unit's files still are what its key says.

        Raises:
            InputError: one of them changed.
        """
        assert unit.model is not None
        try:
            changed = [
                role
                for role in unit.roles
                if data_content(role, unit.model, unit.data, self.store.hash_file)
                != unit.recipe["data"][role]
            ]
            own = unit.checkpoint is None  # what is in the store has checksums
            if own and model_content(unit.model, self.store.hash_file) != unit.recipe["model"]:
                changed.append("model")
        except (InputError, OSError) as error:
            raise InputError(
                f"{unit.name}: {error}; it was there when the study was planned: put it back and "
                "run it again"
            ) from error
        if changed:
            raise InputError(
                f"{unit.name}: the {changed[0]} files changed while the study ran; run it again"
            )

    def _model(self, unit: Unit) -> Inputs:
        digest = _model_digest(unit)
        if digest not in self._models:
            while len(self._models) >= MOST_MODELS:
                gone, _ = self._models.popitem(last=False)
                self._examples = {k: v for k, v in self._examples.items() if k[0] != gone}
            self._models[digest] = open_model(self._config(unit), device=self.device)
            self.loads.append(digest)
        self._models.move_to_end(digest)
        return self._models[digest]

    def _config(self, unit: Unit) -> ModelConfig:
        assert unit.model is not None
        if unit.checkpoint is None:
            return unit.model
        return replace(unit.model, source=str(trained_path(self.store, unit)))

    def _role(self, inputs: Inputs, unit: Unit, role: str) -> Any:
        assert unit.model is not None
        name = data_name(role, unit.model, unit.data)
        content = {"data": unit.recipe["data"][role], "name": name}
        place = (_model_digest(unit), role, digest_of(content))
        if place not in self._examples:
            holder = replace(inputs, data={}, available={})
            holder.add(role, *read_role(role, unit.model, unit.data))
            self._examples[place] = (holder.data[role], holder.available[role])
        return self._examples[place]


def trained_path(store: Store, unit: Unit) -> Path:
    """The checkpoint of a unit whose model the study trained.

    Raises:
        Damaged: it is not what was written.
    """
    assert unit.checkpoint is not None
    return store.whole(unit.needs[TRAINING]) / CHECKPOINTS / unit.checkpoint


def _model_digest(unit: Unit) -> str:
    return digest_of([unit.recipe["model"], unit.needs.get(TRAINING)])


_benches: dict[tuple[Path, str], Workbench] = {}


def bench_of(store: Store, device: str) -> Workbench:
    """This process's workbench for a store and a device; that of another one is cleared away."""
    place = (store.path.resolve(), device)
    if place not in _benches:
        _benches.clear()
        _benches[place] = Workbench(store, device)
    return _benches[place]
