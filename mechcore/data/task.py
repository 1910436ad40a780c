"""Tasks: the examples on which a model is trained and tested; the two tasks of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict

from mechcore.data.examples import ALL
from mechcore.data.labels import normal_name
from mechcore.data.sources import DICT_FILE, SAVED, Source, read_sources
from mechcore.errors import InputError, shown, warn
from mechcore.registry import Registry
from mechcore.yaml_file import YAML, read_plain, validated

SPLITS = ("train", "id", "ood")
"""Splits of examples: training, in-domain test and out-of-domain test."""


@dataclass(frozen=True)
class Task:
    """The data on which a model is studied: training, in-domain and out-of-domain test examples.

    Attributes:
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
        "mnli-hans": "mechcore.data.task:mnli_hans",
        "qqp-paws": "mechcore.data.task:qqp_paws",
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


_TASKS = Path(__file__).parent / "tasks"
_HEURISTICS = ("lexical_overlap_", "subsequence_", "constituent_")


class Official(NamedTuple):
    """An official data set: its content, origin and patterns of files, best first."""

    what: str
    project: str
    names: str

    @property
    def looked_for(self) -> str:
        """Names of the files, for messages."""
        return f"{', '.join(self.names.split())}/ (saved by datasets)"

    def find(self, folder: Path) -> Path | None:
        """The best matching file or saved folder; None without one, an error for two."""
        for name in self.names.split():
            paths = sorted({*folder.glob(name), *folder.glob(f"*/{name}")})
            paths = [p for p in paths if p.is_file() or any((p / name).is_file() for name in SAVED)]
            if len(paths) > 1:
                raise InputError(
                    f"{folder}: {paths[0].relative_to(folder)} and {paths[1].relative_to(folder)} "
                    f"both are {self.what}; expected one: remove or rename the other"
                )
            if paths:
                return paths[0]
        return None


def _mnli(what: str, part: str, own: str) -> Official:
    names = f"multinli_1.0_{part}.jsonl multinli_1.0_{part}.txt MNLI/{part}.tsv {own}.tsv* mnli"
    return Official(what, "MultiNLI 1.0 of New York University, or MNLI of GLUE", names)


def _qqp(part: str) -> Official:
    names = f"QQP/{part}.tsv qqp_{part}.tsv* qqp"
    return Official(f"QQP {part} examples", "QQP of GLUE", names)


_MISMATCHED = ("mnli", "validation_mismatched")
PAWS_QQP = Official(
    "PAWS-QQP examples with their texts",
    "PAWS, google-research-datasets/paws on GitHub, whose qqp_generate_data.py builds it",
    "dev_and_test.tsv paws_qqp.tsv* paws_qqp",
)
OFFICIAL = {
    ("mnli", "train"): _mnli("MNLI training examples", "train", "mnli_train*"),
    ("mnli", "validation_matched"): _mnli(
        "MNLI matched validation examples", "dev_matched", "mnli_dev_matched"
    ),
    _MISMATCHED: _mnli(
        "MNLI mismatched validation examples", "dev_mismatched", "mnli_dev_mismatched"
    ),
    ("jhu-cogsci/hans", "validation"): Official(
        "HANS evaluation examples",
        "HANS, tommccoy1/hans on GitHub",
        "heuristics_evaluation_set.txt hans_validation.tsv* hans",
    ),
    ("qqp", "train"): _qqp("train"),
    ("qqp", "validation"): _qqp("dev"),
    ("paws_qqp", "test"): PAWS_QQP,
}
"""By configuration, or data set, and split."""


def mnli_hans(folder: Path | None = None) -> Task:
    """MNLI, and HANS, see ``mechcore/data/tasks/mnli-hans.yaml``."""
    task = read_task(_TASKS / "mnli-hans.yaml")
    if folder is not None:
        task = _in_folder(task, folder)
        task = replace(task, groups=_renamed(task.groups, task.ood[0]))
    subsets = (*task.groups["OOD"], *task.groups["OOD-E"])
    return replace(task, ood=(replace(task.ood[0], subsets=subsets),))


def qqp_paws(folder: Path | None = None) -> Task:
    """QQP, and PAWS-QQP, see ``mechcore/data/tasks/qqp-paws.yaml``."""
    if folder is None:
        raise InputError(
            "task qqp-paws: the texts of PAWS-QQP are not on the hub, since they may not be "
            f"shared; give a folder with {PAWS_QQP.looked_for} (from {PAWS_QQP.project}), and QQP"
        )
    return _in_folder(read_task(_TASKS / "qqp-paws.yaml"), folder)


def _in_folder(task: Task, folder: Path) -> Task:
    """The task with official files instead of its data sets; the error lists all missing ones."""
    missing: dict[str, None] = {}
    warning = ""
    splits: dict[str, list[Source]] = {split: [] for split in SPLITS}
    sources_of = ((split, source) for split in SPLITS for source in getattr(task, split))
    for split, source in sources_of:
        key = (source.config or source.dataset or "", source.split or "")
        official = OFFICIAL[key]
        path = official.find(folder)
        if path is not None:
            several = source.split if (path / DICT_FILE).is_file() else None
            place = {"path": str(path), "dataset": None, "config": None, "revision": None}
            splits[split].append(replace(source, **place, split=several))
        elif key == _MISMATCHED:
            warning = (
                f"{folder}: no {official.what}, so in-domain examples are only the matched "
                f"ones; looked for {official.looked_for}"
            )
        else:
            hub = f" ({source.dataset} on the Hugging Face hub)" * (official is not PAWS_QQP)
            looked_for = f"looked for {official.looked_for}, from {official.project}"
            missing[f"no {official.what}: {looked_for}{hub}"] = None
    if missing:
        raise InputError(f"{folder}: {'; '.join(missing)}")
    if warning:
        warn(warning)
    changes: dict[str, Any] = {split: tuple(sources) for split, sources in splits.items()}
    return replace(task, **changes)


def _renamed(groups: Mapping[str, tuple[str, ...]], hans: Source) -> dict[str, tuple[str, ...]]:
    """The groups of subcases, with the names used in the data: some copies of HANS differ."""
    status = Path(hans.path or "").stat()
    names = _subset_names(hans.path, hans.split, status.st_mtime_ns, status.st_size)
    known = {_official_name(name): name for name in names}
    wanted = {name: None for members in groups.values() for name in members}
    if missing := [name for name in wanted if _official_name(name) not in known]:
        raise InputError(
            f"{hans.place}: no subcase {', '.join(missing)}; expected HANS with a column "
            "subcase that has all 30 subcases"
        )
    return {
        group: tuple(known[_official_name(name)] for name in members)
        for group, members in groups.items()
    }


@lru_cache(maxsize=8)
def _subset_names(path: str | None, split: str | None, changed: int, size: int) -> tuple[str, ...]:
    """Read once while the file is unchanged, since a study requests its task often."""
    return tuple(read_sources([Source(path=path, split=split)]).subset_names)


def _official_name(subcase: str) -> str:
    for heuristic in _HEURISTICS:
        subcase = subcase.removeprefix(heuristic)
    return subcase.replace("/", "-")
