"""The main study's configuration as a YAML file, and where its relative paths begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mechcore.data.task import SPLITS
from mechcore.errors import InputError
from mechcore.main_study.config import EMBEDDED, TRAINED, StudyConfig
from mechcore.settings import entries
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.study.kinds import DEFAULT, read_study
from mechcore.yaml_file import YAML, located_folder, located_path, validated


def read_config(path: str | Path) -> StudyConfig:
    """Read a main study from a file, see `mechcore.study.kinds.read_study`.

    Raises:
        InputError: the file does not describe one.
    """
    kind, config = read_study(path)
    if not isinstance(config, StudyConfig):
        raise InputError(f"{path}: is a study of kind {kind!r}; expected one of kind {DEFAULT!r}")
    return config


def read_content(content: Any, name: str) -> StudyConfig:
    """Settings from plain values; variants take from the study what they do not name.

    Args:
        content: settings by name.
        name: of where they come from, for messages.

    Raises:
        InputError: they are not such settings.
    """
    variants = content.get("variants") if isinstance(content, dict) else None
    if isinstance(variants, dict):
        common = {key: value for key, value in content.items() if key != "variants"}
        whole = {
            each: _with_changes(common, own, f"{name}: variants: {each!r}")
            for each, own in variants.items()
        }
        content = {**common, "variants": whole}
    return validated(StudyConfig, content, name)


def _with_changes(common: Mapping[str, Any], own: Any, what: str) -> Any:
    if not isinstance(own, dict):
        return own
    if "resources" in own and own["resources"] != common.get("resources"):
        raise InputError(
            f"{what} has resources of its own; they are the same for all jobs of a study, so "
            "write them beside variants"
        )
    return _changed(StudyConfig, common, own)


def _changed(kind: type, before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Plain settings of a class with changes: groups setting by setting, anything else whole."""
    known = entries(kind)
    merged = dict(before)
    for key, value in changes.items():
        group = known[key].group if key in known else None
        old = before.get(key)
        if isinstance(old, str) and hasattr(group, "presets"):
            old = {"preset": old}
        if group is not None and isinstance(old, dict) and isinstance(value, dict):
            # Another preset is another beginning, so changes to the one before go with it.
            begin = {} if "preset" in value else old
            value = _changed(group, begin, value)
        merged[key] = value
    return merged


def located(config: StudyConfig, folder: Path) -> StudyConfig:
    """The same study with relative paths made absolute, beginning at ``folder``."""
    return replace(
        config,
        model=_located_model(config.model, folder),
        variants={name: located(each, folder) for name, each in config.variants.items()},
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
        return tuple(source.located(folder) for source in value)

    task = data.task
    if task is not None and Path(task).suffix in YAML:
        task = placed(task)
    splits = {split: sources(getattr(data, split)) for split in SPLITS}
    return replace(data, task=task, folder=placed(data.folder), **splits)


def _located_model(model: ModelConfig, folder: Path) -> ModelConfig:
    if model.source is None:
        return model
    return replace(model, source=located_folder(model.source, folder))
