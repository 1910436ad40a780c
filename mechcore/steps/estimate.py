"""What jobs cost on this machine, in time and memory."""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import torch

from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import Examples
from mechcore.data.task import ROLES
from mechcore.errors import MechcoreWarning
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.means import MeanActivations
from mechcore.models.running import device_of
from mechcore.pruning import PruneSettings, prune
from mechcore.steps.base import WITH_GRADIENT, MainStep, Size
from mechcore.steps.bench import (
    MODEL,
    TRAINING,
    Workbench,
    data_inputs,
    model_digest,
    model_input,
)
from mechcore.steps.config import TEST_ROLES, DataConfig
from mechcore.steps.fitting import Fitting, fitting_of
from mechcore.steps.inputs import Inputs, open_model, read_role
from mechcore.steps.masks import FindMasks, Train
from mechcore.study.step import Job
from mechcore.training.run_folder import publish

_PRUNE_STEPS = 3
_TRAIN_STEPS = 5
_STANDSTILL = 1e-12
"""A learning rate at which the weights, and with them the loss, stay as they are."""
_EXAMPLES = 64
_BATCH = 16
_REPEATS = 3
"""The first run is slower, and others disturb; the shortest time counts."""


def estimate(jobs: Sequence[Job], all_jobs: Sequence[Job], bench: Workbench) -> pd.DataFrame:
    """Measure passes on this machine, and work out time and memory of jobs from them.

    For every model among the jobs some examples are run, and a few steps of pruning. Memory is that
    of batches of the longest texts; a long run may take somewhat more, as the allocator and, in
    bfloat16 on a processor, torch's kernels keep some for every length of text.

    Args:
        jobs: those to do.
        all_jobs: these and those that they need.
        bench: opens models and data.

    Returns:
        One row per job: kind, name, seconds, and memory, the largest that the process used while
        it measured such work, in GiB, on a GPU what was allocated there.

    Raises:
        InputError: a model or its data cannot be used.
    """
    measured: dict[str, _Measured] = {}
    rows = []
    for job in jobs:
        step = job.step
        if MODEL not in job.inputs or not isinstance(step, MainStep):
            rows.append((step.kind, job.name, 1.0, 0.0))
            continue
        model = _model_of(job)
        if model not in measured:
            measured[model] = _measure(job, all_jobs, bench)
        found = measured[model]
        passes, rate = step.passes(job, found.size), found.forward
        if isinstance(step, (FindMasks, Train)):
            passes /= WITH_GRADIENT
            rate = found.pruning if isinstance(step, FindMasks) else found.training
        else:
            passes *= found.length(data_inputs(job))
        rows.append((step.kind, job.name, passes * rate.seconds, rate.memory))
    return pd.DataFrame(rows, columns=["kind", "name", "seconds", "memory"])


def _model_of(job: Job) -> str:
    """What jobs of one model have in common; all checkpoints of a training cost the same."""
    if isinstance(job.step, Train):
        return job.key
    training = job.needs.get(TRAINING)
    return model_digest(job) if training is None else training.key


@dataclass(frozen=True)
class _Rate:
    """Seconds per example, and GiB."""

    seconds: float
    memory: float


@dataclass(frozen=True)
class _Measured:
    """Cost of a forward pass, and of a forward and backward pass in pruning and in training.

    ``lengths`` are the mean lengths of each role's texts, as shares of those that were run.
    """

    size: Size
    lengths: Mapping[str, float]
    forward: _Rate
    pruning: _Rate
    training: _Rate

    def length(self, roles: Iterable[str]) -> float:
        """Mean length of the texts of some roles, as a share of those that were run."""
        n = {role: self.size.examples[role] for role in roles}
        return sum(n[role] * self.lengths[role] for role in n) / sum(n.values()) if n else 1.0


def _measure(job: Job, jobs: Sequence[Job], bench: Workbench) -> _Measured:
    about = _model_of(job)
    of_model = [
        each
        for each in jobs
        if MODEL in each.inputs and not isinstance(each.step, Train) and _model_of(each) == about
    ]
    training = next((each for each in jobs if each.key == about), None)
    fitting = None
    if training is None or bench.store.has(training.key):
        roles = {
            role: each
            for each in of_model
            for role, data in data_inputs(each).items()
            if data.half is None
        }
        inputs = Inputs.merged([bench.inputs(each) for each in dict.fromkeys(roles.values())])
    else:
        source = next(data for each in of_model for data in data_inputs(each).values())
        assert isinstance(training.step, Train)
        fitting = fitting_of(training, training.step.training, bench.device)
        inputs = _untrained(training, fitting, source.data, bench.device)
    size = Size.of(inputs)
    run = _mean_length(inputs.data[_first(inputs)], typical=True)
    lengths = {role: _mean_length(data) / run for role, data in inputs.data.items()}
    largest = max(getattr(each.step, "batch_size", 0) for each in of_model)
    forward = _forward(inputs, largest or _BATCH)
    assumed = replace(forward, seconds=WITH_GRADIENT * forward.seconds)
    steps = [each.step for each in of_model if isinstance(each.step, FindMasks)]
    most = max(steps, key=lambda step: len(step.seeds), default=None)
    pruning = assumed if most is None else _pruning(inputs, most)
    training_rate = assumed if fitting is None else _training(fitting)
    return _Measured(size, lengths, forward, pruning, training_rate)


def _forward(inputs: Inputs, batch_size: int) -> _Rate:
    model, data = inputs.model, inputs.data[_first(inputs)]
    part = data.part(_typical(data))
    labels = inputs.config.class_names

    def run(part: EncodedExamples, batch_size: int = _BATCH) -> None:
        evaluate(model, part, class_names=labels, in_domain=False, batch_size=batch_size)

    seconds = min(_seconds(lambda: run(part)) for _ in range(_REPEATS))
    for role in TEST_ROLES:
        if role in inputs.data:
            run(_longest(inputs.data[role], batch_size), batch_size)
    return _Rate(seconds / len(part), _peak(device_of(model)))


def _pruning(inputs: Inputs, step: FindMasks) -> _Rate:
    model = inputs.model
    schedule = replace(
        step.schedule,
        steps=_PRUNE_STEPS, steps_per_percent=0.0, ramp_per_percent=0.0, tolerance=1.0,
    )  # fmt: skip
    train = inputs.data["train"]
    ordered = _by_length(train)
    sample = train.part(ordered[:: max(1, len(train) // (schedule.batch_size * _PRUNE_STEPS))])
    means = MeanActivations.compute(model, sample)

    def run(sample: EncodedExamples, schedule: PruneSettings = schedule) -> None:
        prune(model, sample, means, sparsity=0.5, seeds=step.seeds, preset=schedule)

    seconds = min(_seconds(lambda: run(sample)) for _ in range(2))
    for _ in range(2):  # the second beside what the allocator keeps of the first
        run(_longest(train, schedule.batch_size), replace(schedule, steps=1))
    n = _PRUNE_STEPS * schedule.batch_size * len(step.seeds)
    return _Rate(seconds / n, _peak(device_of(model)))


def _training(fitting: Fitting) -> _Rate:
    """Some steps on a sample; what a run of one step takes too, such as its start, is left out."""
    settings = fitting.settings
    n = settings.batch_size * settings.accumulate
    sample = fitting.examples.sample(_TRAIN_STEPS * n, 0)
    texts = fitting.examples.frame
    characters = texts["text_a"].str.len() + texts["text_b"].str.len()
    longest = Examples(sample.name, texts.loc[[characters.idxmax()] * n])
    evaluations = {role: data.sample(1, 0) for role, data in fitting.evaluations.items()}

    def run(steps: int, sample: Examples = sample) -> float:
        changed = replace(
            settings,
            epochs=None, steps=steps, warmup_steps=0, evaluate_every=steps, checkpoint_every=steps,
            patience=None, min_delta=0.0, watch=None,
            learning_rate=_STANDSTILL,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            short = replace(fitting, examples=sample, evaluations=evaluations, settings=changed)
            return _seconds(lambda: short.run(folder, progress=False))

    one, more = (min(run(steps) for _ in range(_REPEATS)) for steps in (1, _TRAIN_STEPS))
    seconds = max(more - one, more / _TRAIN_STEPS)  # the difference of short times may be noise
    with warnings.catch_warnings():  # that this text is cut, so many times
        warnings.simplefilter("ignore", MechcoreWarning)
        run(1, longest)
    return _Rate(seconds / ((_TRAIN_STEPS - 1) * n), _peak(fitting.model.device))


def _first(inputs: Inputs) -> str:
    """The role whose examples are run."""
    return next(role for role in ("id", "ood", "train") if role in inputs.data)


def _mean_length(data: EncodedExamples, *, typical: bool = False) -> float:
    """Mean number of tokens, of all examples or of `_typical` ones."""
    rows = _typical(data) if typical else range(len(data))
    return sum(len(data.input_ids[row]) for row in rows) / len(rows)


def _typical(data: EncodedExamples) -> list[int]:
    """Rows whose batches are as those of all data: each of texts of about one length."""
    order = _by_length(data)
    n = _EXAMPLES // _BATCH
    starts = [i * max(0, len(order) - _BATCH) // max(1, n - 1) for i in range(n)]
    return sorted({row for start in starts for row in order[start : start + _BATCH]})


def _longest(data: EncodedExamples, n: int) -> EncodedExamples:
    """The longest text so many times: as large as a batch can be, which a sample rarely has."""
    return data.part(_by_length(data)[:1] * n)


def _by_length(data: EncodedExamples) -> list[int]:
    return sorted(range(len(data)), key=lambda i: -len(data.input_ids[i]))


def _untrained(training: Job, fitting: Fitting, data: DataConfig, device: str) -> Inputs:
    """What a training begins with, in place of what will come of it."""
    base = model_input(training).config
    with tempfile.TemporaryDirectory() as folder:
        publish(fitting.model, fitting.objective.tokenizer, Path(folder) / "untrained")
        source = str(Path(folder) / "untrained")
        model = replace(base, source=source, class_names=None, revision=None)
        inputs = open_model(model, device=device)
    for role in ROLES:
        inputs.add(role, *read_role(role, base, data))
    return inputs


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _peak(device: torch.device) -> float:
    """The most memory that this process ever used, in GiB; on a GPU what was allocated there."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    status = Path("/proc/self/status")
    if status.exists():  # getrusage begins with the peak of the process that started this one
        return float(status.read_text().split("VmHWM:")[1].split()[0]) / 2**20
    import resource  # not there on Windows

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (2**30 if sys.platform == "darwin" else 2**20)
