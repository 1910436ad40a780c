"""Study configurations as YAML or TOML files, and as the JSON that a study keeps."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import TypeAdapter, ValidationError

from mechcore.errors import InputError, shown
from mechcore.study.config import ModelConfig, StudyConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST = 2**18
"""Bytes of a configuration file."""

_DEEPEST = 20
_MOST_ERRORS = 3


def read_config(path: str | Path) -> StudyConfig:
    """Read a study from a ``.yaml``, ``.yml`` or ``.toml`` file.

    Relative paths in it are relative to its folder.

    Raises:
        InputError: the file is missing or of another kind, is not valid YAML or TOML, or does not
            describe a study; the message names the file and what is wrong in it.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; mechcore init writes one")
    if path.suffix not in _PARSERS:
        raise InputError(f"{path}: expected a file that ends in {', '.join(_PARSERS)}")
    if path.stat().st_size > LARGEST:
        raise InputError(f"{path}: is larger than {LARGEST} bytes; expected a study's settings")
    try:
        content = _PARSERS[path.suffix](path.read_text(encoding="utf-8-sig"))
        _check_depth(content, _DEEPEST)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or "nested too deeply"
        raise InputError(f"{path}: not a usable {path.suffix[1:]} file: {reason}") from error
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
    try:
        # By way of JSON, where pydantic takes lists for tuples but no text for numbers.
        text = json.dumps(dict(content), ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"{name}: {error}; expected only text, numbers, true, false, lists and names"
        ) from error
    try:
        config = TypeAdapter(StudyConfig).validate_json(text, strict=True)
    except ValidationError as error:
        raise InputError(f"{name}: {_described(error)}") from error
    return config if folder is None else located(config, folder)


def _described(error: ValidationError) -> str:
    found = []
    for each in error.errors(include_url=False):
        place = ".".join(str(part) for part in each["loc"])
        value = shown(repr(each["input"]), 60)
        message = shown(each["msg"].removeprefix("Value error, "), 300)
        if each["type"] == "unexpected_keyword_argument":
            found.append(f"{place}: no such setting; expected {_settings_at(each['loc'])}")
        elif each["type"] == "value_error":  # of ours, which says what was found
            found.append(f"{place}: {message}" if place else message)
        else:
            message = message.replace("Input should be", "expected")
            found.append(f"{place}: found {value}; {message}")
    more = len(found) - _MOST_ERRORS
    return "; ".join(found[:_MOST_ERRORS]) + (f"; and {more} more" if more > 0 else "")


def _settings_at(place: tuple[int | str, ...]) -> str:
    """Names of the settings beside the one at ``place``."""
    owner: Any = StudyConfig
    for part in place[:-1]:
        if part == "models":
            owner = None
        elif owner is None:
            owner = ModelConfig
        else:
            default = owner.__dataclass_fields__[part].default
            owner = type(default) if default is not dataclasses.MISSING else owner
    return ", ".join(f.name for f in dataclasses.fields(owner or ModelConfig))


def located(config: StudyConfig, folder: Path) -> StudyConfig:
    """The same study with relative paths made absolute, beginning at ``folder``."""
    files: dict[str, Any] = {
        role: _path(value, folder)
        for role in ("train", "id", "ood")
        if (value := getattr(config.data, role)) is not None
    }
    return replace(
        config,
        model=_located_model(config.model, folder),
        models={name: _located_model(each, folder) for name, each in config.models.items()},
        checkpoints=tuple(
            path if path == "embedded" else _path(path, folder) for path in config.checkpoints
        ),
        data=replace(config.data, **files),
    )


def _located_model(model: ModelConfig, folder: Path) -> ModelConfig:
    """A source that is no folder there is the id of a hub."""
    if model.source is None or not (place := Path(_path(model.source, folder))).exists():
        return model
    return replace(model, source=str(place))


def _path(text: str, folder: Path) -> str:
    try:
        return str(folder / Path(text).expanduser())
    except RuntimeError as error:  # no such user
        raise InputError(f"path {text!r}: {error}") from error


class _Loader(yaml.SafeLoader):
    """YAML as settings need it: names are text, each once, and nothing stands for another thing."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.events.AliasEvent):
            self._refuse("aliases (*name) are not accepted; write the value out", event)
        if getattr(event, "tag", None) is not None:
            self._refuse(f"tags ({event.tag}) are not accepted; leave them out", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        names: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._refuse("found a list or settings where a name belongs", key)
            if key.value in names:
                self._refuse(f"{key.value!r} occurs twice", key)
            names.add(key.value)
            key.tag = self.DEFAULT_SCALAR_TAG
        return super().construct_mapping(node, deep)

    @staticmethod
    def _refuse(message: str, where: Any) -> NoReturn:
        raise yaml.MarkedYAMLError(problem=message, problem_mark=where.start_mark)


# Of YAML 1.1 only what YAML 1.2 reads the same way: "no" is a label here, and 010 no number.
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|false", ["t", "f"]),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first
    )


def _parse_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)


def _check_depth(value: Any, left: int) -> None:
    if not isinstance(value, (dict, list)):
        return
    if left == 0:
        raise ValueError(f"nested more than {_DEEPEST} levels deep")
    for inner in value.values() if isinstance(value, dict) else value:
        _check_depth(inner, left - 1)


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".toml": tomllib.loads,
}
