"""Settings in files: a plain subset of YAML, and messages about its errors."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from mechcore.errors import InputError, shown
from mechcore.settings import entries

YAML = (".yaml", ".yml")

_MOST_ERRORS = 3
_VARIABLE = re.compile(r"\$\{(\w+)\}")

Settings = TypeVar("Settings")


def read_plain(path: Path, remedy: str = "") -> Any:
    """The plain values in a YAML file; ``remedy`` says what to do about a missing one."""
    if not path.is_file():
        raise InputError(f"{path}: no such file{remedy}")
    if path.suffix not in YAML:
        raise InputError(f"{path}: expected a file that ends in {', '.join(YAML)}")
    try:
        return parse_yaml(path.read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or "nested too deeply"
        raise InputError(f"{path}: invalid YAML: {reason}") from error


def validated(kind: type[Settings], content: Any, name: str) -> Settings:
    """Settings of a dataclass from plain values; an `InputError` names their origin and place."""
    if not isinstance(content, dict):
        first = fields(kind)[0].name  # type: ignore[arg-type]
        raise InputError(
            f"{name}: found {type(content).__name__}; expected settings by name, such as {first}"
        )
    try:
        # By way of JSON, where pydantic accepts lists for tuples but no text for numbers.
        text = json.dumps(content, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"{name}: {error}; expected only text, numbers, true, false, lists and names"
        ) from error
    try:
        return TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise InputError(f"{name}: {described(error, kind)}") from error


def described(error: ValidationError, kind: Any) -> str:
    """One line on the errors that pydantic reports for settings of a kind."""
    problems = []
    errors = error.errors(include_url=False)
    places = {problem["loc"] for problem in errors}
    for problem in errors:
        if problem["loc"][2:] and problem["loc"][2:] in places:
            continue  # reported for the whole, from which the named part inherited it
        place = ".".join(str(part) for part in problem["loc"])
        value = shown(repr(problem["input"]), 60)
        message = shown(problem["msg"].removeprefix("Value error, "), 300)
        if problem["type"] == "unexpected_keyword_argument":
            problems.append(f"{place}: no such setting; expected {_beside(problem['loc'], kind)}")
        elif problem["type"] == "value_error":  # raised by mechcore, which names what it found
            problems.append(f"{place}: {message}" if place else message)
        else:
            message = message.replace("Input should be", "expected")
            problems.append(f"{place}: found {value}; {message}")
    more = len(problems) - _MOST_ERRORS
    return "; ".join(problems[:_MOST_ERRORS]) + (f"; and {more} more" if more > 0 else "")


def _beside(place: tuple[int | str, ...], owner: Any) -> str:
    """Names of the settings next to the one at a place in a dataclass's settings."""
    for part in place[:-1]:  # some are places in lists, or names that the user chose
        owner = _dataclass_in(get_type_hints(owner).get(str(part))) or owner
    return ", ".join(entries(owner))


def _dataclass_in(hint: Any) -> Any:
    if is_dataclass(hint):
        return hint
    return next((inner for part in get_args(hint) if (inner := _dataclass_in(part))), None)


class _Loader(yaml.SafeLoader):
    """YAML for settings: names are text and unique."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        names: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in names:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r} occurs twice", problem_mark=key.start_mark
                )
            names.add(key.value)
            key.tag = self.DEFAULT_SCALAR_TAG
        return super().construct_mapping(node, deep)


# Only what YAML 1.1 and 1.2 read the same way: "no" is a label here, and 010 is not a number.
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


def parse_yaml(text: str) -> Any:
    """Plain values from YAML text; raises `YAMLError` for more than the plain subset."""
    return yaml.load(text, Loader=_Loader)


def located_path(text: str, folder: Path) -> str:
    """A path from a settings file made absolute, with ``~`` and ``${VARIABLE}`` filled in."""
    missing = [name for name in _VARIABLE.findall(text) if not os.environ.get(name)]
    if missing:
        raise InputError(
            f"path {text!r}: the variable {missing[0]} is not set; set it, or write the path out"
        )
    filled = _VARIABLE.sub(lambda match: os.environ[match[1]], text)
    try:
        return str(folder / Path(filled).expanduser())
    except RuntimeError as error:  # no such user
        raise InputError(f"path {text!r}: {error}") from error


def located_folder(text: str, folder: Path) -> str:
    """`located_path` for a folder; if there is none, the text may be a hub id."""
    place = located_path(text, folder)
    return place if Path(place).exists() else text
