"""Doing units on the workers of a Ray cluster, of this machine or of many.

Ray schedules: every unit is a task that waits for the tasks whose results it reads. All machines
must see the store, the models and the data under the same paths.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mechcore import progress
from mechcore.errors import InputError, MechcoreError, MechcoreWarning
from mechcore.study.bench import bench_of
from mechcore.study.config import Resources
from mechcore.study.executors import Executor, Failure, blocking, threads
from mechcore.study.store import Store, StoreError
from mechcore.study.units import Unit
from mechcore.study.work import perform

RETRIES = 5
"""How often a unit is begun again after its worker died; pruning goes on where it was."""

_LOOK = 0.5
"""Seconds between looks at the workers' progress."""


@dataclass(frozen=True)
class Receipt:
    """What a worker says of a unit: done, or failed and why."""

    error: str | None = None
    full: bool = False
    warnings: tuple[str, ...] = ()


def on_ray(address: str | None = None) -> Executor:
    """An executor on the Ray cluster at ``address``; None starts one on this machine.

    Raises:
        InputError: Ray is not installed.
    """
    _ray()

    def execute(
        units: Sequence[Unit], store: Store, resources: Resources, costs: Mapping[str, float]
    ) -> list[Failure]:
        with _cluster(address) as ray:
            return _execute(ray, units, store, resources, costs)

    return execute


def _execute(
    ray: Any,
    units: Sequence[Unit],
    store: Store,
    resources: Resources,
    costs: Mapping[str, float],
) -> list[Failure]:
    cpus = resources.cpus or 1
    _check_room(ray, cpus, resources.gpus)
    board = ray.remote(num_cpus=0)(_Board).remote()
    task = ray.remote(
        num_cpus=cpus, num_gpus=resources.gpus, max_retries=RETRIES, retry_exceptions=False
    )(_work)
    named = {unit.key: unit for unit in units}
    refs: dict[Any, str] = {}
    of_key: dict[str, Any] = {}
    for unit in units:
        needs = [of_key[key] for key in unit.needs.values() if key in of_key]
        ref = task.remote(str(store.path.resolve()), unit, resources.place, cpus, board, *needs)
        of_key[unit.key] = ref
        refs[ref] = unit.key
    failures: dict[str, Failure] = {}
    told: set[str] = set()
    with progress.work("study", sum(costs.values())) as advance:
        shown = 0.0
        done: set[str] = set()
        while refs:
            ended, _ = ray.wait(list(refs), num_returns=1, timeout=_LOOK)
            for ref in ended:
                key = refs.pop(ref)
                failure = _settle(ray, ref, named[key], store, failures, told)
                if failure is not None:
                    failures[key] = failure
                done.add(key)
            shares = ray.get(board.shares.remote())
            now = sum(costs[key] * (1 if key in done else shares.get(key, 0)) for key in named)
            if now > shown:
                advance(now - shown)
                shown = now
    return list(failures.values())


def _settle(
    ray: Any,
    ref: Any,
    unit: Unit,
    store: Store,
    failures: Mapping[str, Failure],
    told: set[str],
) -> Failure | None:
    """Take in what became of a unit."""
    try:
        receipt: Receipt = ray.get(ref)
    except ray.exceptions.RayError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        message = f"its worker died {RETRIES + 1} times or could not start: {reason}"
        return blocking(unit, failures) or Failure(unit, message)
    for message in receipt.warnings:
        if message not in told:  # every worker that reads the data says the same
            told.add(message)
            warnings.warn(message, MechcoreWarning, stacklevel=2)
    if receipt.full:
        raise StoreError(receipt.error)
    if receipt.error is not None:
        return blocking(unit, failures) or Failure(unit, receipt.error)
    if not store.has(unit.key):
        raise StoreError(
            f"store {store.path}: a worker finished {unit.name}, but its result is not here; "
            "expected all machines to see the store under the same path (a shared file system)"
        )
    store.record(unit.key)
    return None


def _work(path: str, unit: Unit, place: str, cpus: int, board: Any, *needs: Receipt) -> Receipt:
    """Do a unit; runs on a worker, which keeps its models open for the next one."""
    if any(need.error is not None for need in needs):
        return Receipt("needs a unit that failed")
    store = Store(path)
    relay = progress.Relay(lambda share: board.tell.remote(unit.key, share))
    with warnings.catch_warnings(record=True) as caught, threads(cpus), progress.shown_on(relay):
        warnings.simplefilter("always", MechcoreWarning)
        error = None
        full = False
        try:
            perform(unit, store, bench_of(store, place))
        except MechcoreError as failure:
            error, full = str(failure), isinstance(failure, StoreError)
    said = [str(each.message) for each in caught if issubclass(each.category, MechcoreWarning)]
    return Receipt(error, full, tuple(said))


class _Board:
    """What share of each unit is done, told by the workers."""

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}

    def tell(self, key: str, share: float) -> None:
        """Note a share."""
        self._shares[key] = share

    def shares(self) -> dict[str, float]:
        """All shares."""
        return self._shares


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray will soon leave GPUs visible to tasks that asked for none, as we want it.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "executor ray: the package ray is not installed; pip install mechcore[ray], or leave "
            "out --executor"
        ) from error
    return ray


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """A connection, which ends with the block unless it was there before."""
    ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(
            address=address or "local",
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"executor ray: no cluster at {address or 'this machine'}: {reason}; start one with "
            "ray start --head, or leave out --address"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_room(ray: Any, cpus: int, gpus: float) -> None:
    there = ray.cluster_resources()
    for name, wanted in (("CPU", cpus), ("GPU", gpus)):
        if wanted > there.get(name, 0):
            raise InputError(
                f"executor ray: a unit asks for {wanted:g} {name}, but the cluster has "
                f"{there.get(name, 0):g} in all; lower resources.{name.lower()}s"
            )
