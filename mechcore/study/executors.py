"""Doing jobs in this process or in some beside it; what executors have in common."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from mechcore import progress
from mechcore.errors import InputError, MechcoreError, MechcoreWarning, reason, warn
from mechcore.study.step import Job, Work, known_here_alone
from mechcore.study.store import Store, StoreError


@dataclass(frozen=True)
class Receipt:
    """What became of a job.

    Attributes:
        error: why it failed; None if it is done.
        store_failed: whether that is for want of room, or the like, so that nothing else will do.
        warnings: that it gave.
    """

    error: str | None = None
    store_failed: bool = False
    warnings: tuple[str, ...] = ()


class Workers(Protocol):
    """Runs up to ``capacity`` jobs concurrently, as long as an executor keeps it."""

    capacity: int

    def begin(self, job: Job) -> None:
        """Have a job done, all of whose needs are done."""

    def ended(self) -> list[tuple[Job, Receipt]]:
        """Wait until a job ends, or for a moment; those that ended since."""


Executor: TypeAlias = Callable[[Store], AbstractContextManager[Workers]]
"""Where jobs are done: gives workers for as long as the block lasts, or raises an `InputError`."""


@dataclass(frozen=True)
class Local:
    """This machine.

    Attributes:
        workers: jobs that are done at the same time, each in a process of its own; 1 for this
            process. A script that asks for more needs the ``if __name__ == "__main__"`` that
            Python's multiprocessing asks for.
        cpus: cores for each job; None shares those there are. Results are equal to the last bit
            only between runs with equal cores.
        device: where models are put: ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"mps"``.
    """

    workers: int = 1
    cpus: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, count in (("workers", self.workers), ("cpus", self.cpus)):
            if count is not None and count < 1:
                raise InputError(f"{name} is {count}; expected 1 or more")
            if count is not None:
                object.__setattr__(self, name, at_most_all(count, name))

    @contextmanager
    def __call__(self, store: Store) -> Iterator[Workers]:
        """See `Executor`."""
        if self.workers == 1:
            yield _Here(store, self.cpus, self.device)
            return
        cores = self.cpus or max(1, n_cores() // self.workers)
        context = multiprocessing.get_context("spawn")
        others = set(multiprocessing.active_children())
        # Interrupts are for this process alone.
        ignoring = (signal.SIGINT, signal.SIG_IGN)
        with ProcessPoolExecutor(self.workers, context, signal.signal, ignoring) as pool:
            try:
                yield _Beside(pool, self.workers, store.path, cores, self.device)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in set(multiprocessing.active_children()) - others:
                    process.terminate()
                raise


class _Here(Workers):
    """This process, one job after another."""

    capacity = 1

    def __init__(self, *place: Any) -> None:
        self._place = place

    def begin(self, job: Job) -> None:
        with progress.within(job.name):
            self._ended = [(job, done(job, *self._place))]

    def ended(self) -> list[tuple[Job, Receipt]]:
        return self._ended


class _Beside(Workers):
    """Processes of this machine."""

    def __init__(self, pool: ProcessPoolExecutor, workers: int, *place: Any) -> None:
        self.pool, self.capacity, self._place = pool, workers, place
        self._running: dict[Future[Receipt], Job] = {}

    def begin(self, job: Job) -> None:
        future: Future[Receipt] = Future()
        try:
            future = self.pool.submit(_unpacked, pickle.dumps(job), *self._place)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            future.set_result(Receipt(str(known_here_alone(str(error)))))
        self._running[future] = job

    def ended(self) -> list[tuple[Job, Receipt]]:
        finished, _ = wait(self._running, return_when=FIRST_COMPLETED)
        try:
            receipts = {future: future.result() for future in finished}
        except BrokenProcessPool as error:
            names = ", ".join(job.name for job in self._running.values())
            raise MechcoreError(
                f"study: a worker died during one of {names}: for want of memory, perhaps, or the "
                'study was started by a script without `if __name__ == "__main__"`. What was '
                "finished is kept: run the study again, with fewer workers"
            ) from error
        return [(self._running.pop(future), receipt) for future, receipt in receipts.items()]


def done(job: Job, store: Store, cpus: int | None, device: str) -> Receipt:
    """Do a job unless it is done, by this process or meanwhile by another.

    All its needs are done. With no ``cpus``, torch keeps to the cores that it uses by now.
    """
    from mechcore.session import plain_session

    error, store_failed = None, False
    waiting = f"{job.name}: another process is running this job; waiting"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MechcoreWarning)
        try:
            with plain_session(), threads(cpus), store.lock(job.key, lambda: progress.say(waiting)):
                if not store.has(job.key):
                    _make(job, store, device)
        except MechcoreError as failure:
            error, store_failed = str(failure), isinstance(failure, StoreError)
        except (RuntimeError, MemoryError) as failure:  # torch's want of memory among them
            error = reason(failure)
    said = {str(w.message): None for w in caught if issubclass(w.category, MechcoreWarning)}
    return Receipt(error, store_failed, tuple(said))


def _make(job: Job, store: Store, device: str) -> None:
    job.check_inputs(store.hash_file)
    with store.making(job.key, job.step.kind, job.name, job.recipe) as folder:
        job.step.run(Work(job, folder, store.partial(job.key), store, device))
        job.check_inputs(store.hash_file)
    store.forget_partial(job.key)


def _unpacked(job: bytes, *place: Any) -> Receipt:
    try:
        unpacked: Job = pickle.loads(job)
    except (pickle.UnpicklingError, AttributeError, ImportError) as error:
        return Receipt(str(known_here_alone(str(error))))
    return done_elsewhere(unpacked, *place)


def done_elsewhere(job: Job, store: Path, cpus: int, device: str) -> Receipt:
    """Do a job in a process beside the one that planned it, see `done`."""
    try:
        job.check_code()
    except MechcoreError as error:
        return Receipt(str(error))
    return done(job, Store(store), cpus, device)


def n_cores() -> int:
    """Cores that this process may use: affinity and quotas can leave it fewer than there are."""
    from joblib import cpu_count

    return int(cpu_count())


def at_most_all(count: int, what: str) -> int:
    """So many cores, or all that there are, with a warning that ``what`` asks for more."""
    if count > (most := n_cores()):
        warn(f"{what} is {count}, but this machine has {most} cores: using {most}")
    return min(count, most)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Let torch and numerical libraries use so many cores inside the block; None changes nothing.

    More than this machine has would bring it to a halt: then all of them, with a warning.
    """
    if count is None:
        yield
        return
    import torch
    from threadpoolctl import threadpool_limits

    count, before = at_most_all(count, "cpus"), torch.get_num_threads()
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, before)
        torch.set_num_threads(count)
        stack.enter_context(threadpool_limits(count))
        yield
