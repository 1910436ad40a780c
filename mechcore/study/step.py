"""Steps and jobs: the contract between the engine and everything that is done in a study.

A step is a class: its fields are its settings, `Step.run` does it. A job is a step with its
settings, its inputs and the jobs whose results it reads; its key is a digest of all that its
result depends on:

* the settings, but for those that the step says are without effect;
* the inputs, by content;
* the keys of the jobs that it needs;
* the versions of the packages that matter;
* the source code that it runs, see `mechcore.source_code`.
"""

from __future__ import annotations

import os
import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from mechcore.errors import InputError
from mechcore.settings import OF_STUDY
from mechcore.source_code import VERSIONED, code_digests
from mechcore.study.fingerprints import Hasher, digest_of
from mechcore.tables import Schema, write_tables

TABLES_FOLDER = "tables"
"""Where the tables of a job, and of a study, lie."""

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.study.store import Store


class Input(Protocol):
    """Something outside the store that a job reads."""

    def content(self, hash_file: Hasher) -> Any:
        """What it holds, as a JSON value; not where it lies.

        Raises:
            InputError: it is not there, or cannot be used.
        """

    def uses(self) -> Sequence[object]:
        """Code that reading it takes and that no step imports: registered functions and classes."""
        return ()


class Step(ABC):
    """Something done as a whole; a frozen dataclass whose fields are its settings.

    Attributes:
        kind: what is done, in a word.
        packages: whose versions matter beside `VERSIONED`.
        without_effect: names of settings that change how it is done but not what comes of it.
        schemas: of the tables that it writes.
    """

    kind: ClassVar[str]
    schemas: ClassVar[tuple[Schema, ...]] = ()
    packages: ClassVar[tuple[str, ...]] = ()
    without_effect: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def run(self, work: Work) -> None:
        """Do it: read what ``work`` gives, fill its folder.

        Raises:
            MechcoreError: it cannot be done; nothing of it stays but ``work.partial``.
        """

    def cost(self, job: Job) -> float:
        """About how many passes of one example through the model it costs."""
        return 1.0

    def uses(self) -> Sequence[object]:
        """What it runs that its module does not import: registered functions and classes."""
        return ()

    def settings(self) -> dict[str, Any]:
        """The settings that its result depends on, as JSON values."""
        return {
            field.name: plain(getattr(self, field.name))
            for field in fields(self)  # type: ignore[arg-type]
            if field.name not in self.without_effect
        }


@dataclass(frozen=True, eq=False)
class Job:
    """A step with everything that it works on.

    Attributes:
        step: what is done, with its settings.
        name: for people, unique within a study.
        needs: jobs whose results it reads, by what they are to it.
        inputs: what else it reads, by what it is to it.
        contents: of the inputs, as they were when the job was planned.
    """

    step: Step
    name: str
    needs: Mapping[str, Job]
    inputs: Mapping[str, Input]
    contents: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        step: Step,
        name: str,
        *,
        needs: Mapping[str, Job] | None = None,
        inputs: Mapping[str, Input] | None = None,
        hash_file: Hasher,
    ) -> Job:
        """Plan a job, whose inputs are there; only their content is read."""
        read = dict(inputs or {})
        return cls(step, name, dict(needs or {}), read, _contents(read, hash_file))

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Everything that its result depends on, as a JSON value."""
        read_by = [thing for read in self.inputs.values() for thing in read.uses()]
        return {
            "step": self.step.kind,
            "settings": self.step.settings(),
            "inputs": dict(self.contents),
            "needs": {what: job.key for what, job in self.needs.items()},
            "versions": versions(self.step.packages),
            "code": code_digests([self.step, *self.step.uses(), *read_by]),
        }

    @cached_property
    def key(self) -> str:
        """Digest of the recipe."""
        return digest_of(self.recipe)

    def check_code(self) -> None:
        """Raise an `InputError` if code was registered, or edited, in the first process alone."""
        try:
            changes = differences(self.recipe, replace(self).recipe)
        except InputError as error:
            changes = [str(error)]
        if changes:
            raise known_here_alone(", ".join(changes))

    def check_inputs(self, hash_file: Hasher) -> None:
        """Raise an `InputError` if an input is gone, or is another one than its key says."""
        try:
            now = _contents(self.inputs, hash_file)
        except (InputError, OSError) as error:
            raise InputError(
                f"{error}; it was there when the study was planned: put it back and run it again"
            ) from error
        for name in _changed(self.contents, now):
            raise InputError(f"the {name} files changed while the study ran; run it again")


@dataclass(frozen=True)
class Manifest:
    """What an artefact is: a job's key, which is the digest of its recipe, its kind and name.

    Attributes:
        files: SHA-256 by relative path.
        bytes: size of all files.
        seconds: time the work took; after an interruption, of the last part.
        made: time of the end, ISO 8601 with its zone.
        machine: where, and what of it can change the last bits of a result.
    """

    key: str
    kind: str
    name: str
    recipe: Mapping[str, Any]
    files: Mapping[str, str]
    bytes: int
    seconds: float
    made: str
    machine: Mapping[str, Any]


@dataclass(frozen=True)
class Work:
    """What a job is done with: a folder to fill, and a place for what an interrupted one left."""

    job: Job
    folder: Path
    partial: Path
    store: Store
    device: str

    def needed(self, what: str) -> Path:
        """Folder with the results of a job that this one needs; `Damaged` if they were changed."""
        return self.store.whole(self.job.needs[what].key)

    def table(self, what: str, name: str = "") -> pd.DataFrame:
        """A table of a job that this one needs, by default the one that is called as it is."""
        schemas = {schema.name: schema for schema in self.job.needs[what].step.schemas}
        name = name or what
        return schemas[name].read(self.needed(what) / TABLES_FOLDER / f"{name}.csv")

    def write_tables(self, tables: Mapping[str, pd.DataFrame]) -> None:
        """Write tables as CSV, those that the step has a schema of with its columns."""
        write_tables(self.folder / TABLES_FOLDER, tables, self.job.step.schemas)

    def empty_tables(self) -> dict[str, pd.DataFrame]:
        """Every table of the step without a row, where there is nothing to tell."""
        import pandas as pd

        schemas = self.job.step.schemas
        return {schema.name: pd.DataFrame(columns=schema.names) for schema in schemas}


def known_here_alone(what: str) -> InputError:
    """The error of a job that can be done in the first process alone."""
    return InputError(
        f"another process finds other things than the first ({what}): what is registered in a "
        "script or notebook is known there alone; offer it in an installed package as an entry "
        "point, or run with one worker in this process"
    )


def _contents(inputs: Mapping[str, Input], hash_file: Hasher) -> dict[str, Any]:
    return {what: plain(read.content(hash_file)) for what, read in inputs.items()}


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """These jobs and all that they need, each once by its key, and after those that it needs."""
    known: dict[str, Job] = {}

    def add(jobs: Iterable[Job]) -> None:
        for job in jobs:
            if job.key not in known:
                add(job.needs.values())
                known[job.key] = job

    add(jobs)
    return list(known.values())


def versions(packages: Sequence[str] = ()) -> dict[str, str | None]:
    """Versions of Python and of packages that results depend on; None for what is not there.

    Of Python the patch version does not count.
    """
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"python": python, **{name: _version(name) for name in (*VERSIONED, *packages)}}


def this_machine() -> dict[str, Any]:
    """The machine, and what of it can change the last bits of a result."""
    import torch

    return {
        "host": platform.node(),
        "system": platform.platform(terse=True),
        "processor": platform.processor() or platform.machine(),
        "cores": torch.get_num_threads(),
        "process": os.getpid(),
    }


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def plain(value: Any) -> Any:
    """Dataclasses, mappings and sequences as JSON has them."""
    if is_dataclass(value) and not isinstance(value, type):
        own = (field.name for field in fields(value) if OF_STUDY not in field.metadata)
        return {name: plain(getattr(value, name)) for name in own}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What changed between two recipes of a job, in words, the most telling first."""
    words = {"settings": "setting {}", "inputs": "input {}", "versions": "package {}"}
    words |= {"code": "{}.py", "needs": "result of {}"}
    changes: list[str] = []
    for part, word in words.items():
        names = _changed(old.get(part) or {}, new.get(part) or {})
        if part == "code":
            names = [name.removeprefix("mechcore.").replace(".", "/") for name in names]
        changes += map(word.format, names)
    return changes


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    names = dict.fromkeys([*before, *after])
    missing = object()
    return [name for name in names if before.get(name, missing) != after.get(name, missing)]
