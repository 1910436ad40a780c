"""Study configurations as YAML or TOML files, and as the JSON that a study keeps."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from mechcore.data.task import ROLES
from mechcore.errors import InputError
from mechcore.steps.config import EMBEDDED, TRAINED, DataConfig, ModelConfig, StudyConfig
from mechcore.yaml_file import Place, located_path, parse_yaml, read_plain, validated

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_config(path: str | Path) -> StudyConfig:
    """Read a study from a ``.yaml``, ``.yml`` or ``.toml`` file.

    Relative paths in it are relative to its folder.

    Raises:
        InputError: the file is missing or of another kind, is not valid YAML or TOML, or does not
            describe a study; the message names the file and what is wrong in it.
    """
    path = Path(path)
    content = read_plain(path, _PARSERS, "a study's settings", "; mechcore init writes one")
    return from_json(content or {}, str(path), path.resolve().parent)


def from_json(content: Any, name: str, folder: Path | None = None) -> StudyConfig:
    """A study from plain values.

    Args:
        content: as `StudyConfig.as_json` gives it; what is left out keeps its default.
        name: of where it comes from, for messages.
        folder: what relative paths are relative to; None leaves them.

    Raises:
        InputError: as for `read_config`.
    """
    if not isinstance(content, Mapping):
        raise InputError(
            f"{name}: found {type(content).__name__}; expected settings by name, such as seeds"
        )
    config = validated(StudyConfig, content, name, _settings_at)
    return config if folder is None else located(config, folder)


def _settings_at(place: Place) -> str:
    """Names of the settings beside the one at ``place``."""
    owner: Any = StudyConfig
    for part in place[:-1]:
        hints = get_type_hints(owner)
        if part in hints:  # others are names of models, places in lists, choices between types
            owner = _dataclass_in(hints[part]) or owner
    return ", ".join(f.name for f in dataclasses.fields(owner))


def _dataclass_in(hint: Any) -> Any:
    """The dataclass that a type is, or has in it."""
    if dataclasses.is_dataclass(hint):
        return hint
    return next((found for each in get_args(hint) if (found := _dataclass_in(each))), None)


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
    if task is not None and Path(task).suffix in (".yaml", ".yml"):
        task = placed(task)
    roles = {role: sources(getattr(data, role)) for role in ROLES}
    return replace(data, task=task, folder=placed(data.folder), **roles)


def _located_model(model: ModelConfig, folder: Path) -> ModelConfig:
    """A source that is no folder there is the id of a hub."""
    if model.source is None:
        return model
    place = located_path(model.source, folder)
    return replace(model, source=place) if Path(place).exists() else model


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
    ".toml": tomllib.loads,
}
