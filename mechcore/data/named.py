"""The named tasks of the paper: MNLI with HANS, and QQP with PAWS-QQP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from mechcore.data.sources import DICT_FILE, STATE_FILE, Source, read_sources
from mechcore.data.task import SPLITS, Task, read_task
from mechcore.errors import InputError, warn

_TASKS = Path(__file__).parent / "tasks"
_HEURISTICS = ("lexical_overlap_", "subsequence_", "constituent_")


class Official(NamedTuple):
    """An official data set: its content, origin and files.

    ``names`` are patterns in the folder or one below it, best first; the last is that of a folder
    saved by ``datasets``.
    """

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
            paths = [path for path in paths if path.is_file() or _is_saved(path)]
            if len(paths) > 1:
                raise InputError(
                    f"{folder}: {paths[0].relative_to(folder)} and {paths[1].relative_to(folder)} "
                    f"both are {self.what}; expected one: remove or rename the other"
                )
            if paths:
                return paths[0]
        return None


def _is_saved(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (DICT_FILE, STATE_FILE))


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
