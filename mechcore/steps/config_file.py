"""The main study's configuration as a YAML file, and where its relative paths begin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mechcore.data.task import ROLES
from mechcore.steps.config import EMBEDDED, TRAINED, DataConfig, ModelConfig, StudyConfig
from mechcore.yaml_file import YAML, located_path, read_plain


def read_config(path: str | Path) -> StudyConfig:
    """Read a study from a ``.yaml`` or ``.yml`` file.

    Relative paths in it are relative to its folder.

    Raises:
        InputError: the file is missing or of another kind, is not valid YAML, or does not describe
            a study; the message names the file and what is wrong in it.
    """
    from mechcore.steps.study import STUDY  # which locates settings with this module

    path = Path(path)
    content = read_plain(path, "a study's settings", "; mechcore init writes one")
    return located(STUDY.read(content or {}, str(path)), path.resolve().parent)


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
