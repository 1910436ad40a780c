"""The engine: does the jobs of any study, and keeps what comes of them.

A study says which jobs it has, as far as the results so far tell; the engine does those that are
not done, each after its needs, and asks again. A job that fails holds up only those that need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechcore import progress
from mechcore.errors import MechcoreError, warn
from mechcore.study.executors import Executor, Receipt, Workers
from mechcore.study.step import Job, in_order
from mechcore.study.store import Store, StoreError
from mechcore.wording import count

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Results:
    """What goes into a folder: tables and files of the store by name, facts for `config.json`."""

    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class Study:
    """A study that was planned: its settings are checked, its inputs are there.

    Attributes:
        folders: in that of the study, that its results go into; ``""`` is the study's own.
    """

    folders: Sequence[str] = ("",)

    def jobs(self) -> Sequence[Job]:
        """The jobs known by now, the most urgent first; asked again whenever one is done."""
        raise NotImplementedError

    @property
    def cost(self) -> float:
        """Estimated total cost of all jobs, in the unit of `Step.cost`."""
        return sum(job.step.cost(job) for job in self.jobs())

    def check(self, pending: Sequence[Job], device: str) -> None:
        """Open what the pending jobs read; an `InputError`, before the work, if it is unusable."""

    def results(self) -> Mapping[str, Results]:
        """Of the finished study, for each of its `folders`."""
        return {}


class Jobs(Study):
    """Jobs that are all known, for their files in the store alone."""

    def __init__(self, known: Sequence[Job]) -> None:
        self.known = known

    def jobs(self) -> Sequence[Job]:
        """See `Study.jobs`."""
        return self.known


@dataclass(frozen=True)
class Failure:
    """A job that failed, and why; ``because_of`` another, it was not begun."""

    job: Job
    message: str
    because_of: str | None = None


class StudyError(MechcoreError):
    """Some jobs failed (``failures``); the others are in the store."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        self.failures = list(failures)
        causes = [failure for failure in failures if failure.because_of is None]
        waiting = len(failures) - len(causes)
        more = f"; {waiting} that need their results were not begun" if waiting else ""
        reasons = ". ".join(f"{failure.job.name}: {failure.message}" for failure in causes)
        super().__init__(
            f"study: {count(len(causes), 'job')} failed{more}. {reasons}. What was finished is "
            "kept; after a change of settings only what depends on them is done again"
        )


def perform(study: Study, store: Store, executor: Executor, out: Path) -> None:
    """Do all jobs of a study that are not done; the store remembers that ``out`` uses the results.

    Raises:
        StudyError: jobs failed; all that do not need them were done.
        StoreError: the disk is full.
    """
    known = in_order(study.jobs())
    store.remember(out, known)
    pending = [job for job in known if not store.has(job.key)]
    if len(pending) < len(known):
        progress.say(f"{len(known) - len(pending)} of {len(known)} jobs were done before")
    if not pending:
        return
    before = sum(job.step.cost(job) for job in known) - sum(j.step.cost(j) for j in pending)
    with progress.work("study", max(study.cost - before, 1e-9)) as advance, executor(store) as pool:
        failures = _Scheduler(study, store, pool, out, advance).run()
    if failures:
        raise StudyError(failures)


class _Scheduler:
    """Gives jobs to workers, each after its needs."""

    def __init__(
        self, study: Study, store: Store, workers: Workers, out: Path, advance: progress.Advance
    ) -> None:
        self.study, self.store, self.workers = study, store, workers
        self.out, self.advance = out, advance
        self.running: dict[str, Job] = {}
        self.failures: dict[str, Failure] = {}
        self._warned: set[str] = set()

    def run(self) -> list[Failure]:
        while True:
            ready = self._ready()
            for job in ready[: self.workers.capacity - len(self.running)]:
                self.running[job.key] = job
                self.workers.begin(job)
            if not self.running:
                return list(self.failures.values())
            for job, receipt in self.workers.ended():
                del self.running[job.key]
                self._settle(job, receipt)
                self.advance(job.step.cost(job))

    def _ready(self) -> list[Job]:
        """Jobs that can be begun; those that need a failed one are noted as failed, too."""
        known = in_order(self.study.jobs())
        self.store.remember(self.out, known)
        ready = []
        for job in known:
            if job.key in self.running or job.key in self.failures or self.store.has(job.key):
                continue
            needs = job.needs.values()
            failed = [self.failures[need.key] for need in needs if need.key in self.failures]
            if failed:
                cause = failed[0].because_of or failed[0].job.name
                self.failures[job.key] = Failure(job, f"needs {cause}", cause)
            elif all(self.store.has(need.key) for need in needs):
                ready.append(job)
        return ready

    def _settle(self, job: Job, receipt: Receipt) -> None:
        for message in receipt.warnings:
            if message not in self._warned:  # every job that reads the data says the same
                self._warned.add(message)
                warn(f"{job.name}: {message}")
        if receipt.store_failed:
            raise StoreError(receipt.error)
        if receipt.error is not None:
            self.failures[job.key] = Failure(job, receipt.error)
