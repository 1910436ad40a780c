"""The main study's configuration as a YAML file, and where its relative paths begin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mechcore.data.task import ROLES
from mechcore.errors import InputError
from mechcore.steps.config import EMBEDDED, TRAINED, DataConfig, ModelConfig, StudyConfig
from mechcore.study.kinds import DEFAULT, read_study
from mechcore.yaml_file import YAML, located_path


def read_config(path: str | Path) -> StudyConfig:
    """Read a main study from a file, see `mechcore.study.kinds.read_study`.

    Raises:
        InputError: the file does not describe one.
    """
    kind, config = read_study(path)
    if not isinstance(config, StudyConfig):
        raise InputError(f"{path}: is a study of kind {kind!r}; expected one of kind {DEFAULT!r}")
    return config


def located(config: StudyConfig, folder: Path) -> StudyConfig:
    """The same study with relative paths made absolute, beginning at ``folder``."""
    return replace(
        config,
        model=_located_model(config.model, folder),
        models={name: _located_model(each, folder) for name, each in config.models.items()},
        checkpoints=tuple(
            path if path in (EMBEDDED, TRAINED) else located_path(path, folder)
            for path in config.checkpoints
        ),
        data=_located_data(config.data, folder),
    )


def _located_data(data: DataConfig, folder: Path) -> DataConfig:
    def placed(value: Any) -> Any:
        return located_path(value, folder) if isinstance(value, str) else value

    def sources(value: Any) -> Any:
        if not isinstance(value, tuple):
            return placed(value)
        return tuple(replace(source, path=placed(source.path)) for source in value)

    task = data.task
    if task is not None and Path(task).suffix in YAML:
        task = placed(task)
    roles = {role: sources(getattr(data, role)) for role in ROLES}
    return replace(data, task=task, folder=placed(data.folder), **roles)


def _located_model(model: ModelConfig, folder: Path) -> ModelConfig:
    """A source that is no folder there is the id of a hub."""
    if model.source is None:
        return model
    place = located_path(model.source, folder)
    return replace(model, source=place) if Path(place).exists() else model
