"""Running jobs in this process, in others on this machine, or on a Ray cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from mechcore import progress
from mechcore.errors import InputError, MechcoreError, MechcoreWarning, reason, warn
from mechcore.study.step import Job, Work, known_here_alone
from mechcore.study.store import Store, StoreError

RETRIES = 5
"""How often a job is restarted after its worker died; pruning resumes."""


@dataclass(frozen=True)
class Receipt:
    """The outcome of a job; if ``store_failed``, other jobs would fail, too."""

    error: str | None = None
    store_failed: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workers:
    """Runs up to ``capacity`` jobs concurrently; ``begin`` starts one whose needs are done."""

    capacity: int
    begin: Callable[[Job], Future[Receipt]]


Executor: TypeAlias = Callable[[Store], AbstractContextManager[Workers]]
"""Where jobs run: yields workers for as long as the block lasts, or raises `InputError`."""


@dataclass(frozen=True)
class Local:
    """This machine: concurrent jobs, cores per job (None shares them all), device of models."""

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
            yield Workers(1, partial(_here, (store, self.cpus, self.device)))
            return
        cores = self.cpus or max(1, n_cores() // self.workers)
        context = multiprocessing.get_context("spawn")
        others = set(multiprocessing.active_children())
        # Interrupts are for this process alone.
        ignoring = (signal.SIGINT, signal.SIG_IGN)
        with ProcessPoolExecutor(self.workers, context, signal.signal, ignoring) as pool:
            try:
                place = (store.path, cores, self.device)
                yield Workers(self.workers, partial(_beside, pool, place))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in set(multiprocessing.active_children()) - others:
                    process.terminate()
                raise


def _here(place: tuple[Any, ...], job: Job) -> Future[Receipt]:
    future: Future[Receipt] = Future()
    with progress.within(job.name):
        future.set_result(done(job, *place))
    return future


def _beside(pool: ProcessPoolExecutor, place: tuple[Any, ...], job: Job) -> Future[Receipt]:
    future: Future[Receipt] = Future()
    try:
        return pool.submit(_unpacked, pickle.dumps(job), *place)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        future.set_result(Receipt(str(known_here_alone(str(error)))))
    return future


def done(job: Job, store: Store, cpus: int | None, device: str) -> Receipt:
    """Run a job whose needs are done, unless another process has done it meanwhile."""
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
        except (RuntimeError, MemoryError) as failure:  # includes torch running out of memory
            error = reason(failure)
    said = {str(w.message): None for w in caught if issubclass(w.category, MechcoreWarning)}
    return Receipt(error, store_failed, tuple(said))


def _make(job: Job, store: Store, device: str) -> None:
    job.check_inputs(store.hash_file)
    with store.making(job.key, job.step.kind, job.name, job.recipe) as folder:
        job.step.run(Work(job, folder, store.partial(job.key), store, device))
        job.check_inputs(store.hash_file)


def _unpacked(job: bytes, *place: Any) -> Receipt:
    try:
        unpacked: Job = pickle.loads(job)
    except (pickle.UnpicklingError, AttributeError, ImportError) as error:
        return Receipt(str(known_here_alone(str(error))))
    return done_elsewhere(unpacked, *place)


def done_elsewhere(job: Job, store: Path, cpus: int, device: str) -> Receipt:
    """Run a job in another process than the one that planned it, see `done`."""
    try:
        job.check_code()
    except MechcoreError as error:
        return Receipt(str(error))
    return done(job, Store(store), cpus, device)


def n_cores() -> int:
    """Cores available to this process: affinity and quotas can limit them."""
    from joblib import cpu_count

    return int(cpu_count())


def at_most_all(count: int, what: str) -> int:
    """``count`` cores, or all available ones, with a warning that ``what`` requests more."""
    if count > (most := n_cores()):
        warn(f"{what} is {count}, but this machine has {most} cores: using {most}")
    return min(count, most)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Make torch and numerical libraries use ``count`` cores inside the block; None: no change."""
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


@dataclass(frozen=True)
class OnRay:
    """A Ray cluster; without ``address``, a new one on this machine.

    ``cpus`` and ``gpus`` are per job; a job on ``"cuda"`` has a GPU. Raises `InputError` if Ray is
    missing, or ``device`` is one of several GPUs.
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
        """See `Executor`; all machines see files under the same paths."""
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
