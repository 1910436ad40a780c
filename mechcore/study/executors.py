"""Doing units one after another in this process; what executors have in common."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from mechcore import progress
from mechcore.errors import MechcoreError, MechcoreWarning
from mechcore.study.bench import bench_of
from mechcore.study.config import Resources
from mechcore.study.store import Store, StoreError
from mechcore.study.units import Unit
from mechcore.study.work import perform


@dataclass(frozen=True)
class Failure:
    """A unit that failed, and why; ``because_of`` another, it was not begun."""

    unit: Unit
    message: str
    because_of: str | None = None


class Executor(Protocol):
    """Does units, each after those that it needs; goes on with the others if one fails."""

    def __call__(
        self,
        units: Sequence[Unit],
        store: Store,
        resources: Resources,
        costs: Mapping[str, float],
    ) -> list[Failure]:
        """Do the units; ``costs`` by key are for the progress bar.

        Raises:
            StoreError: the store cannot be written.
        """


def in_process(
    units: Sequence[Unit], store: Store, resources: Resources, costs: Mapping[str, float]
) -> list[Failure]:
    """Do units one after another, see `Executor`."""
    bench = bench_of(store, resources.place)
    failures: dict[str, Failure] = {}
    with threads(resources.cpus), progress.work("study", sum(costs.values())) as advance:
        for i, unit in enumerate(units):
            blocked = blocking(unit, failures)
            if blocked is not None:
                failures[unit.key] = blocked
            else:
                with progress.within(f"{i + 1}/{len(units)} {unit.name}"):
                    try:
                        perform(unit, store, bench, waiting=_waiting(unit))
                        store.record(unit.key)
                    except StoreError:
                        raise
                    except MechcoreError as error:
                        failures[unit.key] = Failure(unit, str(error))
            advance(costs[unit.key])
    return list(failures.values())


def blocking(unit: Unit, failures: Mapping[str, Failure]) -> Failure | None:
    """Why a unit cannot be begun, if it needs one that failed."""
    for key in unit.needs.values():
        if key in failures:
            cause = failures[key].because_of or failures[key].unit.name
            return Failure(unit, f"needs {cause}", cause)
    return None


def at_most_all(count: int, what: str) -> int:
    """So many cores, or all that this machine has, with a warning that ``what`` asks for more."""
    there = os.cpu_count() or 1
    if count > there:
        warnings.warn(
            f"{what} is {count}, but this machine has {there} cores: going on with {there}",
            MechcoreWarning,
            stacklevel=3,
        )
    return min(count, there)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Let torch use so many cores inside the block; None leaves it as it is.

    More than this machine has would bring it to a halt: then all of them, with a warning.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else at_most_all(count, "cpus"))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _waiting(unit: Unit) -> Callable[[], None]:
    return lambda: progress.say(f"{unit.name}: another process is at it; waiting for its result")
