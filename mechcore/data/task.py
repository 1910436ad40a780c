"""Tasks: the examples on which a model is trained and tested."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from mechcore.data.examples import ALL
from mechcore.data.labels import normal_name
from mechcore.data.sources import Source
from mechcore.errors import InputError, shown
from mechcore.registry import Registry
from mechcore.yaml_file import YAML, read_plain, validated

SPLITS = ("train", "id", "ood")
"""Splits of examples: training, in-domain test and out-of-domain test."""


@dataclass(frozen=True)
class Task:
    """The data on which a model is studied.

    Attributes:
        name: name of the task.
        train: training examples.
        id: in-domain test examples.
        ood: out-of-domain test examples.
        classes: classes of a model for the task, in index order; of language models, the answers.
        groups: named groups of out-of-domain subsets.
        about: a description in one sentence.

    Raises:
        InputError: a split has no sources, or a name is missing or occurs twice.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    train: tuple[Source, ...]
    id: tuple[Source, ...]
    ood: tuple[Source, ...]
    classes: tuple[str, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    about: str = ""

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InputError(f"task: name is {self.name!r}; expected a text")
        for split in SPLITS:
            sources = getattr(self, split)
            sources = (sources,) if isinstance(sources, Source) else tuple(sources)
            if not sources or not all(isinstance(source, Source) for source in sources):
                raise InputError(
                    f"task {self.name}: {split} is {shown(repr(sources))}; expected at least one "
                    "source"
                )
            object.__setattr__(self, split, sources)
        _check_names(f"task {self.name}: classes", self.classes, normal_name)
        check_groups(f"task {self.name}", self.groups)


_TAKEN = {
    "ID": "the mean in domain is",
    "mixed": "the mean of ID and OOD is",
    ALL: "all examples together are",
}


def check_groups(what: str, groups: Mapping[str, tuple[str, ...]]) -> None:
    """Raise `InputError` for groups with reserved names, or empty or repeated subsets."""
    for group, subsets in groups.items():
        if group in _TAKEN:
            raise InputError(
                f"{what}: a group of out-of-domain subsets is named {group!r}, as "
                f"{_TAKEN[group]} in tables; rename it"
            )
        if not subsets:
            raise InputError(f"{what}: group {group!r} is empty; name its subsets")
        _check_names(f"{what}: group {group!r}", subsets, str)


def _check_names(what: str, names: tuple[str, ...], same: Callable[[str], str]) -> None:
    if isinstance(names, str):
        raise InputError(f"{what}: found {names!r}; expected a list")
    if len({same(name) for name in names}) < len(names):
        raise InputError(f"{what}: found {', '.join(names)}; expected every name once")


Maker = Callable[[Path | None], Task]
"""Makes a task from the folder of its files, or, for None, from the hub."""

TASKS: Registry[Maker] = Registry(
    "task",
    "mechcore.tasks",
    {
        "mnli-hans": "mechcore.data.named:mnli_hans",
        "qqp-paws": "mechcore.data.named:qqp_paws",
    },
)
"""Tasks by name, each made from the folder of its files.

A package provides one in the entry point group, a notebook by ``TASKS.register(name)(make)``.
"""


def find_task(name: str, folder: str | Path | None = None) -> Task:
    """A task by its name, or from a YAML file, see `read_task`; `InputError` without one.

    ``folder`` holds a named task's files; None takes them from the hub.
    """
    if name.endswith(YAML):
        if folder is not None:
            raise InputError(
                f"task {name}: a folder ({folder}) is for named tasks, but the file names its own "
                "data: leave the folder out"
            )
        return read_task(name)
    if name not in TASKS:
        raise InputError(
            f"task {shown(repr(name))}: no such task; expected {', '.join(sorted(TASKS))}, or a "
            f"file that ends in {' or '.join(YAML)}"
        )
    if folder is not None and not Path(folder).is_dir():
        raise InputError(f"task {name}: {folder} is not a folder; expected that of its files")
    return TASKS[name](None if folder is None else Path(folder))


def read_task(path: str | Path) -> Task:
    """Read a task from a YAML file with the settings of `Task`.

    Sources are a path, settings of `mechcore.data.sources.Source` by name, or a list of these.
    Paths are relative to the file's folder; ``${NAME}`` stands for an environment variable.

    Raises:
        InputError: the file is missing, is not valid YAML, or does not describe a task.
    """
    path = Path(path)
    content = read_plain(path)
    if not isinstance(content, Mapping):
        raise InputError(f"{path}: found {type(content).__name__}; expected settings by name")
    settings = {"name": path.stem, **content}
    for split in SPLITS:
        if split not in settings:
            raise InputError(f"{path}: no {split}; expected a path, or the settings of sources")
        sources = settings[split] if isinstance(settings[split], list) else [settings[split]]
        settings[split] = [{"path": s} if isinstance(s, str) else s for s in sources]
    task = validated(Task, settings, str(path))
    placed: dict[str, Any] = {}
    for split in SPLITS:
        try:
            sources = getattr(task, split)
            placed[split] = [source.located(path.resolve().parent) for source in sources]
        except InputError as error:
            raise InputError(f"{path}: {split}: {error}") from error
    return replace(task, **placed)
