"""The engine: runs the jobs of any study, each after its needs, and keeps their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
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
    """The contents of a results folder: tables and files by name, facts for `config.json`."""

    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class Study:
    """A planned study, with subfolders for its results; ``""`` is the study's own folder."""

    folders: Sequence[str] = ("",)

    def __init__(self, known: Sequence[Job]) -> None:
        self.known = known

    def jobs(self) -> Sequence[Job]:
        """The jobs known so far, most urgent first; queried again whenever one is done."""
        return self.known

    @property
    def cost(self) -> float:
        """Estimated total cost of all jobs, in the unit of `Step.cost`."""
        return sum(job.step.cost(job) for job in self.jobs())

    def check(self, pending: Sequence[Job], device: str) -> None:
        """Open the inputs of pending jobs; raises `InputError`, before any work, if unusable."""

    def results(self) -> Mapping[str, Results]:
        """The results of the finished study, for each of its `folders`."""
        return {}


@dataclass(frozen=True)
class Failure:
    """A failed job, and why; with ``because_of``, it was not started because another failed."""

    job: Job
    message: str
    because_of: str | None = None


class StudyError(MechcoreError):
    """Some jobs failed (``failures``); the others are in the store."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        self.failures = list(failures)
        causes = [failure for failure in failures if failure.because_of is None]
        waiting = len(failures) - len(causes)
        more = f"; {waiting} that need their results were not started" if waiting else ""
        reasons = ". ".join(f"{failure.job.name}: {failure.message}" for failure in causes)
        super().__init__(
            f"study: {count(len(causes), 'job')} failed{more}. {reasons}. Finished work is "
            "kept; after changing settings, only what depends on them is redone"
        )


def perform(study: Study, store: Store, executor: Executor, out: Path) -> None:
    """Run the pending jobs of a study in ``out``; raises `StudyError` if some fail."""
    known = in_order(study.jobs())
    store.remember(out, known)
    pending = [job for job in known if not store.has(job.key)]
    if len(pending) < len(known):
        progress.say(f"{len(known) - len(pending)} of {len(known)} jobs are already done")
    if not pending:
        return
    before = sum(job.step.cost(job) for job in known) - sum(j.step.cost(j) for j in pending)
    with progress.bar("study", max(study.cost - before, 1e-9)) as advance, executor(store) as pool:
        failures = _Scheduler(study, store, pool, out, advance).run()
    if failures:
        raise StudyError(failures)


class _Scheduler:
    def __init__(
        self, study: Study, store: Store, workers: Workers, out: Path, advance: progress.Advance
    ) -> None:
        self.study, self.store, self.workers = study, store, workers
        self.out, self.advance = out, advance
        self.running: dict[Future[Receipt], Job] = {}
        self.failures: dict[str, Failure] = {}
        self._warned: set[str] = set()

    def run(self) -> list[Failure]:
        while True:
            ready = self._ready()
            for job in ready[: self.workers.capacity - len(self.running)]:
                self.running[self.workers.begin(job)] = job
            if not self.running:
                return list(self.failures.values())
            for future in wait(self.running, return_when=FIRST_COMPLETED).done:
                receipt = self._receipt(future)
                job = self.running.pop(future)
                self._settle(job, receipt)
                self.advance(job.step.cost(job), job.name)

    def _receipt(self, future: Future[Receipt]) -> Receipt:
        try:
            return future.result()
        except BrokenProcessPool as error:
            names = ", ".join(job.name for job in self.running.values())
            raise MechcoreError(
                f"study: a worker died during one of {names}, perhaps out of memory, or because "
                'the study was started by a script without `if __name__ == "__main__"`. Finished '
                "work is kept: rerun the study with fewer workers"
            ) from error

    def _ready(self) -> list[Job]:
        """Jobs that can start; those that need a failed job are marked as failed."""
        known = in_order(self.study.jobs())
        self.store.remember(self.out, known)
        ready, running = [], {job.key for job in self.running.values()}
        for job in known:
            if job.key in running or job.key in self.failures or self.store.has(job.key):
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
            if message not in self._warned:  # every job that reads the data repeats it
                self._warned.add(message)
                warn(f"{job.name}: {message}")
        if receipt.store_failed:
            raise StoreError(receipt.error)
        if receipt.error is not None:
            self.failures[job.key] = Failure(job, receipt.error)
        elif not self.store.has(job.key):
            raise StoreError(
                f"store {self.store.path}: a worker finished {job.name}, but its result is not "
                "here; expected all machines to see the store under the same path"
            )
