"""Running jobs on the workers of a Ray cluster, on one or more machines.

All machines must see the store, the models and the data under the same paths.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mechcore.errors import InputError, reason
from mechcore.study.executors import Receipt, Workers, done_elsewhere
from mechcore.study.step import Job
from mechcore.study.store import Store, StoreError

RETRIES = 5
"""How often a job is restarted after its worker died; pruning resumes."""

_LOOK = 0.5
"""Seconds between polls of the workers."""


@dataclass(frozen=True)
class OnRay:
    """A Ray cluster.

    Attributes:
        address: address of the cluster; None starts one on this machine.
        cpus: cores per job.
        gpus: GPUs per job, possibly a fraction; by default one for jobs on ``"cuda"``. A job sees
            no other GPUs.
        device: device of models.

    Raises:
        InputError: Ray is not installed, or the device is one of several GPUs.
    """

    address: str | None = None
    cpus: int = 1
    gpus: float = 0.0
    device: str = "cpu"

    def __post_init__(self) -> None:
        _ray()
        if self.device.startswith("cuda:"):
            raise InputError(
                f"executor ray: device is {self.device}; expected cuda, since Ray gives every job "
                "its own GPU"
            )
        if self.device == "cuda" and not self.gpus:
            object.__setattr__(self, "gpus", 1.0)

    @contextmanager
    def __call__(self, store: Store) -> Iterator[Workers]:
        """See `mechcore.study.executors.Executor`."""
        with _cluster(self.address) as ray:
            yield _Cluster(ray, store, self)


class _Cluster:
    """Workers of a cluster."""

    def __init__(self, ray: Any, store: Store, wanted: OnRay) -> None:
        self.ray, self.store, self.wanted = ray, store, wanted
        self.capacity = self._room()
        resources = {"num_cpus": wanted.cpus, "num_gpus": wanted.gpus}
        remote = ray.remote(**resources, max_retries=RETRIES, retry_exceptions=False)
        self.task = remote(done_elsewhere)  # on a worker, which keeps its models loaded
        self._running: dict[Any, Job] = {}

    def _room(self) -> int:
        """Number of jobs to submit; doubled so that a growing cluster has jobs waiting."""
        resources, room = self.ray.cluster_resources(), []
        for name, wanted in (("CPU", self.wanted.cpus), ("GPU", self.wanted.gpus)):
            if wanted > (known := resources.get(name, 0)):
                raise InputError(
                    f"executor ray: a job requests {wanted:g} {name}, but the cluster has "
                    f"{known:g} in total; lower resources.{name.lower()}s"
                )
            room += [int(known / wanted)] if wanted else []
        return 2 * min(room)

    def begin(self, job: Job) -> None:
        place = (self.store.path.resolve(), self.wanted.cpus, self.wanted.device)
        self._running[self.task.remote(job, *place)] = job

    def ended(self) -> list[tuple[Job, Receipt]]:
        ended, _ = self.ray.wait(list(self._running), num_returns=1, timeout=_LOOK)
        return [(job := self._running.pop(ref), self._receipt(ref, job)) for ref in ended]

    def _receipt(self, ref: Any, job: Job) -> Receipt:
        try:
            receipt: Receipt = self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            times = f"its worker died {RETRIES + 1} times or could not start"
            return Receipt(f"{times}: {reason(error)}")
        if receipt.error is None and not self.store.has(job.key):
            raise StoreError(
                f"store {self.store.path}: a worker finished {job.name}, but its result is not "
                "here; expected all machines to see the store under the same path (a shared file "
                "system)"
            )
        return receipt


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Future versions of Ray leave GPUs visible to tasks that request none, as wanted here.
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
    """A connection, closed at the end of the block unless it already existed."""
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
        raise InputError(
            f"executor ray: no cluster at {address or 'this machine'}: {reason(error)}; start "
            "one with ray start --head, or leave out --address"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()
