"""Kinds of study: their settings, as template and file, and how they are planned."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from mechcore.errors import InputError
from mechcore.registry import Registry
from mechcore.report.kinds import DEFAULT
from mechcore.settings import Entry, entries
from mechcore.study.engine import Study
from mechcore.study.executors import Executor, Local
from mechcore.study.step import plain
from mechcore.study.store import Store
from mechcore.yaml_file import YAML, read_plain, validated

S = TypeVar("S")

_WIDTH = 100
_HEAD = """\
# A study of mechcore: mechcore run {name}
# Omitted settings have the values shown here. Paths are relative to this file's folder.
# mechcore run {name} --dry-run lists the jobs to run.
"""


@dataclass(frozen=True)
class StudyKind(Generic[S]):
    """A kind of study: its settings, how to plan them, relative paths, and its default executor."""

    settings: type[S]
    plan: Callable[[S, Store], Study]
    located: Callable[[S, Path], S] = lambda settings, folder: settings
    executor: Callable[[S], Executor] = lambda settings: Local()

    def read(self, content: Any, name: str) -> S:
        """Settings from plain values, see `mechcore.yaml_file.validated`."""
        return validated(self.settings, content, name)


def read_study(path: str | Path) -> tuple[str, Any]:
    """The kind of the study in a YAML file, and its settings; raises `InputError` if unusable."""
    path = Path(path)
    content = read_plain(path, "; mechcore study init writes one") or {}
    kind = content.pop("kind", DEFAULT) if isinstance(content, dict) else DEFAULT
    if not isinstance(kind, str):
        raise InputError(f"{path}: kind is {kind!r}; expected one of {', '.join(STUDIES.names())}")
    known = STUDIES[kind]
    return kind, known.located(known.read(content, str(path)), path.resolve().parent)


STUDIES: Registry[StudyKind[Any]] = Registry(
    "kind of study", "mechcore.studies", {DEFAULT: "mechcore.main_study.study:STUDY"}
)


def template(file: Path, kind: str = DEFAULT) -> str:
    """The text of a YAML file with the settings of a kind of study."""
    if file.suffix not in YAML:
        raise InputError(f"{file}: expected a file that ends in {', '.join(YAML)}")
    settings = STUDIES[kind].settings()
    named = "" if kind == DEFAULT else f"\nkind: {kind}\n"
    return "\n".join([_HEAD.format(name=file.name) + named, *_lines(settings, ""), ""])


def _lines(settings: Any, indent: str) -> Iterator[str]:
    for entry in entries(type(settings)).values():
        value = getattr(settings, entry.name)
        if entry.group is None or value is None:
            yield from _line(entry, value, indent)
            continue
        if not indent:
            yield ""
        yield from _comment(entry.setting.help, indent)
        yield f"{indent}{entry.name}:" + " {}" * (not entries(entry.group))
        presets = getattr(entry.group, "presets", None)
        if presets is None:
            yield from _lines(value, f"{indent}  ")
        else:
            named = " or ".join(presets.named)
            yield f"{indent}  preset: {presets.default}  # {named}; changed by the following"
            yield from _lines(value, f"{indent}  # ")


def _line(entry: Entry, value: Any, indent: str) -> Iterator[str]:
    line, about = f"{indent}{entry.name}: {in_yaml(value)}", entry.setting.help
    if not entry.setting.example and len(line) + len(about) + 4 <= _WIDTH:
        yield f"{line}  # {about}"
        return
    yield from _comment(about, indent)
    if entry.setting.example:
        yield f"{indent}#   such as {entry.name}: {entry.setting.example}"
    yield line


def _comment(text: str, indent: str) -> list[str]:
    begin = f"{indent}# "
    return textwrap.wrap(text, _WIDTH, initial_indent=begin, subsequent_indent=begin)


def in_yaml(value: Any) -> str:
    """A setting's value in one line of YAML, written as JSON."""
    return json.dumps(plain(value), ensure_ascii=False)
