"""What a process has open: models and their data, loaded once."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

from mechcore.errors import InputError
from mechcore.study.config import ModelConfig
from mechcore.study.fingerprints import Hasher, digest_of
from mechcore.study.inputs import Inputs, check_sources, open_model, read_role
from mechcore.study.store import Store
from mechcore.study.units import Unit, data_content, model_content

MOST_MODELS = 2
"""Models kept open at once; the one not used for longest makes room."""


class Workbench:
    """Loads models and data for units, and keeps them for the next ones.

    Args:
        hasher: of files.
        device: where models are put.
    """

    def __init__(self, hasher: Hasher, device: str = "cpu") -> None:
        self.hasher, self.device = hasher, device
        self.loads: list[str] = []
        self._models: OrderedDict[str, Inputs] = OrderedDict()
        self._examples: dict[tuple[str, str, str], Any] = {}

    def inputs(self, unit: Unit) -> Inputs:
        """The model of a unit with the data of its roles.

        Raises:
            InputError: they cannot be used, or are no longer those that the study was planned on.
        """
        assert unit.model is not None
        check_sources(unit.model, unit.data, unit.roles)
        self.check(unit)
        inputs = self._model(unit.model, digest_of(unit.recipe["model"]))
        found = Inputs(inputs.config, inputs.model, inputs.tokenizer, {}, {})
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
                if data_content(role, unit.model, unit.data, self.hasher)
                != unit.recipe["data"][role]
            ]
            if model_content(unit.model, self.hasher) != unit.recipe["model"]:
                changed.append("model")
        except OSError as error:
            raise InputError(
                f"{unit.name}: {error.filename}: {error.strerror}; the file was there when the "
                "study was planned; put it back and run it again"
            ) from error
        if changed:
            raise InputError(
                f"{unit.name}: the {changed[0]} files changed while the study ran; run it again"
            )

    def _model(self, config: ModelConfig, digest: str) -> Inputs:
        if digest not in self._models:
            while len(self._models) >= MOST_MODELS:
                gone, _ = self._models.popitem(last=False)
                self._examples = {k: v for k, v in self._examples.items() if k[0] != gone}
            self._models[digest] = open_model(config, device=self.device)
            self.loads.append(digest)
        self._models.move_to_end(digest)
        return self._models[digest]

    def _role(self, inputs: Inputs, unit: Unit, role: str) -> Any:
        assert unit.model is not None
        content = {"data": unit.recipe["data"][role], "file": getattr(unit.data, role)}
        place = (digest_of(unit.recipe["model"]), role, digest_of(content))
        if place not in self._examples:
            holder = Inputs(inputs.config, inputs.model, inputs.tokenizer, {}, {})
            holder.add(role, *read_role(role, unit.model, unit.data))
            self._examples[place] = (holder.data[role], holder.available[role])
        return self._examples[place]


_benches: dict[tuple[Path, str], Workbench] = {}


def bench_of(store: Store, device: str) -> Workbench:
    """This process's workbench for a store and a device; that of another one is cleared away."""
    place = (store.path.resolve(), device)
    if place not in _benches:
        _benches.clear()
        _benches[place] = Workbench(store.hash_file, device)
    return _benches[place]
