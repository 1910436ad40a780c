"""Steps and jobs, and digests of what they read: the contract of the engine with a study."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from fnmatch import fnmatch
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from mechcore.errors import InputError
from mechcore.settings import OF_STUDY
from mechcore.source_code import VERSIONED, code_digests
from mechcore.tables import Schema, write_tables

TABLES_FOLDER = "tables"

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.study.store import Store


CHECKPOINT_FILES = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "*.bin",
    "*.bin.index.json",
    "tokenizer*.json",
    "chat_template.*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
)
"""Files of a model and its tokenizer; other files in the folder do not matter."""

Hasher = Callable[[Path], str]


class Input(Protocol):
    """Something outside the store that a job reads."""

    def content(self, hash_file: Hasher) -> Any:
        """Its content, wherever it lies, as a JSON value; raises `InputError` if it is unusable."""

    def uses(self) -> Sequence[object]:
        """Code used for reading it that no step imports: registered functions and classes."""
        return ()


class Step(ABC):
    """A unit of work; a frozen dataclass whose fields are its settings.

    Attributes:
        kind: the kind of work, in a word.
        schemas: schemas of the tables that it writes.
        packages: packages whose versions matter in addition to `VERSIONED`.
        without_effect: names of settings that change how it runs but not its results.
    """

    kind: ClassVar[str]
    schemas: ClassVar[tuple[Schema, ...]] = ()
    packages: ClassVar[tuple[str, ...]] = ()
    without_effect: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def run(self, work: Work) -> None:
        """Do the work; only ``work.partial`` is kept if it raises `MechcoreError`."""

    def cost(self, job: Job) -> float:
        """Its approximate cost, in forward passes of one example."""
        return 1.0

    def uses(self) -> Sequence[object]:
        """Code that it runs but its module does not import: registered functions and classes."""
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
    """A step with the jobs and inputs that it reads, by role, and their contents when planned."""

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
        """Plan a job whose inputs exist; only their content is read."""
        read = dict(inputs or {})
        return cls(step, name, dict(needs or {}), read, _contents(read, hash_file))

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Its settings with effect, inputs, needs, versions of packages, and source code."""
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
        """Raise `InputError` if code was registered, or edited, only in the first process."""
        try:
            changes = differences(self.recipe, replace(self).recipe)
        except InputError as error:
            changes = [str(error)]
        if changes:
            raise known_here_alone(", ".join(changes))

    def check_inputs(self, hash_file: Hasher) -> None:
        """Raise `InputError` if an input is gone, or no longer matches the job's key."""
        try:
            now = _contents(self.inputs, hash_file)
        except (InputError, OSError) as error:
            raise InputError(
                f"{error}; it existed when the study was planned: restore it and rerun"
            ) from error
        for name in _changed(self.contents, now):
            raise InputError(f"the {name} files changed while the study ran; rerun it")


@dataclass(frozen=True)
class Manifest:
    """The description of an artefact: SHA-256 of files, bytes of all, seconds of its last part."""

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
    """The environment of a running job: its output folder, and one for partial results."""

    job: Job
    folder: Path
    partial: Path
    store: Store
    device: str

    def needed(self, what: str) -> Path:
        """Folder with the results of a needed job; raises `Damaged` if they were changed."""
        return self.store.whole(self.job.needs[what].key)

    def table(self, what: str, name: str = "", *, optional: bool = False) -> pd.DataFrame:
        """A table of a needed job, by default named like the need; empty if none and optional."""
        schemas = {schema.name: schema for schema in self.job.needs[what].step.schemas}
        schema = schemas[name or what]
        path = self.needed(what) / TABLES_FOLDER / f"{schema.name}.csv"
        return schema.frame([]) if optional and not path.is_file() else schema.read(path)

    def write_tables(self, tables: Mapping[str, pd.DataFrame]) -> None:
        """Write tables as CSV, with the columns of the step's schemas where there are any."""
        write_tables(self.folder / TABLES_FOLDER, tables, self.job.step.schemas)

    def empty_tables(self) -> dict[str, pd.DataFrame]:
        """Every table of the step without rows, if there are no results."""
        import pandas as pd

        schemas = self.job.step.schemas
        return {schema.name: pd.DataFrame(columns=schema.names) for schema in schemas}


def known_here_alone(what: str) -> InputError:
    """The error of a job that can run only in the first process."""
    return InputError(
        f"another process lacks code of the first ({what}): code registered in a "
        "script or notebook is known only there; provide it in an installed package as an entry "
        "point, or run with one worker in this process"
    )


def _contents(inputs: Mapping[str, Input], hash_file: Hasher) -> dict[str, Any]:
    return {what: plain(read.content(hash_file)) for what, read in inputs.items()}


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """These jobs and all that they need, each once by key and after the jobs it needs."""
    known: dict[str, Job] = {}

    def add(jobs: Iterable[Job]) -> None:
        for job in jobs:
            if job.key not in known:
                add(job.needs.values())
                known[job.key] = job

    add(jobs)
    return list(known.values())


def versions(packages: Sequence[str] = ()) -> dict[str, str | None]:
    """Versions of Python (major and minor) and packages; None for missing packages."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"python": python, **{name: _version(name) for name in (*VERSIONED, *packages)}}


def this_machine() -> dict[str, Any]:
    """The machine, with properties that can change the last bits of a result."""
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
    """Dataclasses, mappings and sequences as plain JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        own = (field.name for field in fields(value) if OF_STUDY not in field.metadata)
        return {name: plain(getattr(value, name)) for name in own}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What changed between two recipes of a job, in words, the most informative first."""
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


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value, hexadecimal; equal values have equal digests."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def checkpoint_content(source: str, revision: str | None, hasher: Hasher = hash_file) -> Any:
    """Digests of the files of a checkpoint (a folder or GGUF file), or the commit of a hub id."""
    path = Path(source)
    if path.is_file():
        return {path.suffix: hasher(path)}
    if not path.is_dir():
        return {"hub": source, "commit": _commit(source, revision)}
    files = {
        file.name: hasher(file)
        for file in sorted(path.iterdir())
        if file.is_file() and any(fnmatch(file.name, pattern) for pattern in CHECKPOINT_FILES)
    }
    if not files:
        raise InputError(f"checkpoint {source}: no config.json and no weights in this folder")
    return files


def architecture_code(source: str, revision: str | None) -> Sequence[object]:
    """The class of a checkpoint's architecture, looked up by name; none if it is unusable."""
    from mechcore.models.architectures.base import architecture_of
    from mechcore.models.loading import read_config

    with suppress(InputError):
        return [type(architecture_of(read_config(source, revision)))]
    return []


def _commit(source: str, revision: str | None) -> str:
    """The commit of a hub id, which is fetched if necessary."""
    from mechcore.models.loading import read_config

    if commit := getattr(read_config(source, revision), "_commit_hash", None):
        return str(commit)
    raise InputError(
        f"checkpoint {source}: its commit, which identifies results, is unknown; expected a "
        "snapshot of the hub; name a local folder instead"
    )
