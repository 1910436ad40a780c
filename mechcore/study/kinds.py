"""Kinds of study: their settings, and how they are planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from mechcore.errors import InputError
from mechcore.registry import Registry
from mechcore.study.engine import Study
from mechcore.study.executors import Executor, Local
from mechcore.study.store import Store
from mechcore.yaml_file import read_plain, validated

S = TypeVar("S")

DEFAULT = "heuristic-core"


@dataclass(frozen=True)
class StudyKind(Generic[S]):
    """A kind of study: its settings, all with defaults, and how to plan them.

    ``located`` makes paths absolute, relative to a folder; ``executor`` is the default one.
    """

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
