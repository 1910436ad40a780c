"""Units of a study whose plan grows with its results, done side by side and kept in a store."""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from threadpoolctl import threadpool_limits

from mechcore import progress
from mechcore.errors import InputError, MechcoreError, MechcoreWarning, reason
from mechcore.study.executors import at_most_all, threads
from mechcore.study.store import Store


class Unit(Protocol):
    """Something to be done as a whole."""

    @property
    def kind(self) -> str:
        """What is done."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def recipe(self) -> Mapping[str, Any]:
        """Everything that the result depends on."""

    @property
    def key(self) -> str:
        """Digest of the recipe."""


U = TypeVar("U", bound=Unit)
U_co = TypeVar("U_co", bound=Unit, covariant=True)


class Plan(Protocol[U_co]):
    """What of a study is to be done next."""

    @property
    def store(self) -> Store:
        """Where results are."""

    @property
    def size(self) -> int:
        """Number of units in the end."""

    def wanted(self) -> Sequence[U_co]:
        """All units known by now, done or ready to be done, the longest first."""


Perform: TypeAlias = Callable[..., list[str]]
"""Does a unit, which comes before further arguments; gives the warnings that it gave."""


def undone(units: Iterable[U], store: Store) -> list[U]:
    """Those that the store does not have, each once."""
    return [unit for unit in {each.key: each for each in units}.values() if not store.has(unit.key)]


def cores_each(what: str, workers: int, n_threads: int | None) -> int:
    """Cores for each of the workers: ``n_threads``, or those there are shared among them.

    More than there are would bring the machine to a halt: then all of them, with a warning.

    Args:
        what: the study, for the message.
        workers: units that are done at the same time.
        n_threads: as asked for.

    Raises:
        InputError: there are none.
    """
    if workers < 1 or (n_threads is not None and n_threads < 1):
        raise InputError(
            f"{what}: {workers} workers of {n_threads} threads; expected 1 or more of each"
        )
    if n_threads is None:
        return max(1, (os.cpu_count() or 1) // workers)
    return at_most_all(n_threads, f"{what}: threads")


def work_through(
    plan: Plan[U],
    out: Path,
    perform: Callable[..., list[str]],
    arguments: tuple[Any, ...],
    *,
    workers: int,
    what: str,
) -> None:
    """Do all units of a plan.

    Args:
        plan: is asked for more units whenever one is done.
        out: folder of the study, which the store remembers as the units' user.
        perform: does a unit; a function of a module, as other processes must find it.
        arguments: what it gets after the unit.
        workers: units that are done at the same time, each in a process of its own; 1 for this
            process.
        what: the study, for people.

    Raises:
        MechcoreError: a unit failed; what was finished is kept.
    """
    running: dict[Future[list[str]], U] = {}
    told = _n_done(plan, out)
    new = plan.size - told
    try:
        with progress.work(what, new) as advance, _pool(workers, perform, arguments) as do:
            while True:
                busy = {unit.key for unit in running.values()}
                free = [u for u in undone(plan.wanted(), plan.store) if u.key not in busy]
                for unit in free[: workers - len(running)]:
                    running[do(unit)] = unit
                if not running:
                    return
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    _collect(running[future], future)
                    del running[future]
                done = _n_done(plan, out)
                advance(done - told)
                told = done
    except BrokenProcessPool as error:
        names = ", ".join(unit.name for unit in running.values())
        raise MechcoreError(
            f"{what}: a worker died during one of {names}: for want of memory, perhaps, or the "
            'study was started by a script without `if __name__ == "__main__"`. What was finished '
            "is kept: run the study again, with fewer workers"
        ) from error


def keep(
    unit: Unit, store: Store, n_threads: int, kind: str, make: Callable[[Path, Path], None]
) -> list[str]:
    """Do a unit unless it is done, and keep its result.

    Args:
        unit: what to do.
        store: where results are.
        n_threads: cores to use.
        kind: what its artefact is called.
        make: does it; given a folder in which an interrupted unit finds what it left there, and
            the folder to fill.

    Returns:
        Warnings that it gave.
    """
    with ExitStack() as stack:
        stack.enter_context(threads(n_threads))
        stack.enter_context(threadpool_limits(n_threads))
        stack.enter_context(store.lock(unit.key, lambda: _say_waiting(unit)))
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always", MechcoreWarning)
        if not store.has(unit.key):
            with store.making(unit.key, kind, unit.name, unit.recipe) as folder:
                make(store.partial(unit.key), folder)
            store.forget_partial(unit.key)
            store.record(unit.key)
    return [str(each.message) for each in caught if issubclass(each.category, MechcoreWarning)]


def _say_waiting(unit: Unit) -> None:
    progress.say(f"{unit.name}: another process is at it; waiting for its result")


def _n_done(plan: Plan[U], out: Path) -> int:
    """How many units are done; all that are known by now are noted as those of this study."""
    wanted = plan.wanted()
    plan.store.remember(out, [unit.key for unit in wanted])
    return len(wanted) - len(undone(wanted, plan.store))


def _collect(unit: Unit, future: Future[list[str]]) -> None:
    try:
        messages = future.result()
    except BrokenProcessPool:
        raise
    except MechcoreError as error:
        error.args = (f"{unit.name}: {error}",)
        raise
    except (RuntimeError, MemoryError) as error:  # torch's want of memory among them
        raise MechcoreError(f"{unit.name}: {reason(error)}") from error
    for message in messages:
        warnings.warn(f"{unit.name}: {message}", MechcoreWarning, stacklevel=2)
    progress.say(f"done: {unit.name}")


@contextmanager
def _pool(
    workers: int, perform: Perform, arguments: tuple[Any, ...]
) -> Iterator[Callable[[Unit], Future[list[str]]]]:
    if workers == 1:
        yield lambda unit: _here(perform, unit, *arguments)
        return
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, context, _leave_interrupts_to_the_parent) as pool:
        try:
            yield lambda unit: pool.submit(perform, unit, *arguments)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise


def _here(perform: Perform, *arguments: Any) -> Future[list[str]]:
    future: Future[list[str]] = Future()
    try:
        future.set_result(perform(*arguments))
    except Exception as error:
        future.set_exception(error)
    return future


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
