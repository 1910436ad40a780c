"""Running jobs on a Ray cluster, whose machines see all files under the same paths."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mechcore.errors import InputError, reason
from mechcore.study.executors import Receipt, Workers, done_elsewhere
from mechcore.study.step import Job
from mechcore.study.store import Store

RETRIES = 5
"""How often a job is restarted after its worker died; pruning resumes."""


@dataclass(frozen=True)
class OnRay:
    """A Ray cluster; without ``address``, a new one on this machine.

    Attributes:
        cpus: cores per job.
        gpus: GPUs per job, possibly a fraction; by default one for jobs on ``"cuda"``. A job sees
            no other GPUs.

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
            resources = {"num_cpus": self.cpus, "num_gpus": self.gpus}
            remote = ray.remote(**resources, max_retries=RETRIES, retry_exceptions=False)
            task = remote(done_elsewhere)  # on a worker, which keeps its models loaded

            def begin(job: Job) -> Future[Receipt]:
                receipt: Future[Receipt] = Future()

                def end(result: Future[Receipt]) -> None:
                    try:
                        receipt.set_result(result.result())
                    except Exception as error:
                        times = f"its worker died {RETRIES + 1} times or could not start"
                        receipt.set_result(Receipt(f"{times}: {reason(error)}"))

                running = task.remote(job, store.path.resolve(), self.cpus, self.device)
                running.future().add_done_callback(end)
                return receipt

            yield Workers(self._room(ray.cluster_resources()), begin)

    def _room(self, resources: Mapping[str, float]) -> int:
        """Number of jobs to submit; doubled so that a growing cluster has jobs waiting."""
        room = []
        for name, wanted in (("CPU", self.cpus), ("GPU", self.gpus)):
            if wanted > (known := resources.get(name, 0)):
                raise InputError(
                    f"executor ray: a job requests {wanted:g} {name}, but the cluster has "
                    f"{known:g} in total; lower resources.{name.lower()}s"
                )
            room += [int(known / wanted)] if wanted else []
        return 2 * min(room)


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
