"""A made-up study of sums and products: an engine's work without a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from mechcore.errors import InputError, MechcoreError, MechcoreWarning
from mechcore.registry import Registry
from mechcore.report.kinds import REPORTS, StudyReport, Words
from mechcore.study.engine import Results, Study
from mechcore.study.kinds import STUDIES, StudyKind
from mechcore.study.step import Hasher, Input, Job, Step, Work, hash_file
from mechcore.study.store import Store

RESULT = "result"

OPERATIONS: Registry[Callable[[int], int]] = Registry("operation", "made-up.operations")


def write(work: Work, number: int) -> None:
    (work.folder / RESULT).write_text(str(number))


def read(folder: Path) -> int:
    return int((folder / RESULT).read_text())


@dataclass(frozen=True)
class Number(Input):
    """A number in a file."""

    path: Path

    def content(self, hash_file: Hasher) -> Any:
        if not self.path.exists():
            raise InputError(f"{self.path}: no such file")
        return hash_file(self.path)


@dataclass(frozen=True)
class Read(Step):
    """The number of a file, times a factor."""

    kind: ClassVar[str] = "read"
    without_effect: ClassVar[frozenset[str]] = frozenset({"colour"})
    factor: int = 1
    colour: str = "red"

    def run(self, work: Work) -> None:
        number = work.job.inputs["number"]
        assert isinstance(number, Number)
        write(work, int(number.path.read_text()) * self.factor)


@dataclass(frozen=True)
class Add(Step):
    """The sum of all that it needs."""

    kind: ClassVar[str] = "add"
    more: int = 0

    def cost(self, job: Job) -> float:
        return float(len(job.needs))

    def run(self, work: Work) -> None:
        write(work, self.more + sum(read(work.needed(what)) for what in work.job.needs))


@dataclass(frozen=True)
class Apply(Step):
    """A registered operation on what it needs."""

    kind: ClassVar[str] = "apply"
    operation: str

    def uses(self) -> Sequence[object]:
        return [OPERATIONS[self.operation]]

    def run(self, work: Work) -> None:
        (number,) = (read(work.needed(what)) for what in work.job.needs)
        write(work, OPERATIONS[self.operation](number))


@dataclass(frozen=True)
class Fail(Step):
    """Cannot be done, but leaves something to go on with."""

    kind: ClassVar[str] = "fail"
    message: str = "it cannot be"

    def run(self, work: Work) -> None:
        (work.folder / RESULT).write_text("half")
        warnings.warn("something is odd", MechcoreWarning, stacklevel=2)
        raise MechcoreError(self.message)


@dataclass(frozen=True)
class Settings:
    """Of the study of sums: the folder of numbers, the factor of each, and what is added."""

    folder: str = "."
    factor: int = 1
    colour: str = "red"
    more: int = 0


@dataclass(frozen=True)
class Sums(Study):
    """Reads all numbers, adds them up, then adds as many ones as the sum says, up to three."""

    settings: Settings
    store: Store

    def jobs(self) -> Sequence[Job]:
        numbers = [
            job(Read(self.settings.factor, self.settings.colour), f"read {path.name}", path=path)
            for path in sorted(Path(self.settings.folder).iterdir())
        ]
        total = job(Add(self.settings.more), "total", *numbers)
        if not self.store.has(total.key):
            return [total]
        jobs, last = [total], total
        for i in range(min(3, read(self.store.folder(total.key)))):
            last = job(Add(1), f"one more, {i}", last)
            jobs.append(last)
        return jobs

    @property
    def cost(self) -> float:
        return 10.0

    def results(self) -> Mapping[str, Results]:
        rows = [(done.name, read(self.store.whole(done.key))) for done in self.jobs()]
        table = pd.DataFrame(rows, columns=["name", "number"])
        last = self.store.whole(self.jobs()[-1].key) / RESULT
        return {"": Results({"numbers": table}, {"last.txt": last}, {"steps": len(rows)})}


SUMS = StudyKind(Settings, Sums)

REPORT = StudyReport(
    title=lambda model, config: "Sums",
    subtitle="",
    tables=list,
    tiles=lambda run: [],
    findings=lambda run: [],
    sections=lambda run: [],
    words=Words("", (), ""),
)


@contextmanager
def registered(name: str, plan: Callable[..., Any]) -> Iterator[str]:
    """A kind of study, inside the block."""
    STUDIES.register(name)(replace(SUMS, plan=plan))
    REPORTS.register(name)(REPORT)
    yield name
    STUDIES.remove(name)
    REPORTS.remove(name)


def job(step: Step, name: str, *needs: Job, path: Path | None = None) -> Job:
    """A job whose needs go by their names; it may read a file."""
    named = {need.name: need for need in needs}
    inputs = {} if path is None else {"number": Number(path)}
    return Job.of(step, name, needs=named, inputs=inputs, hash_file=hash_file)
