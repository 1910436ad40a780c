"""What units of work cost: in passes of one example through the model, in time and in memory."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import torch

from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.data.task import ROLES
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.means import MeanActivations
from mechcore.models.running import device_of
from mechcore.pruning import prune, prune_settings
from mechcore.study.bench import Workbench
from mechcore.study.config import TEST_ROLES, DataConfig
from mechcore.study.fitting import fitting_of
from mechcore.study.inputs import Inputs, open_model, read_role
from mechcore.study.units import TRAINING, Unit
from mechcore.training.run_folder import publish

WITH_GRADIENT = 3.0
"""A pass forward and back, in passes forward."""

SHARED = 0.5
"""Share of a pass that an ablation costs on the prefix tree."""

CORE = 0.2
"""Share of heads in a core that is not known yet."""

_TABLES = 20.0
"""Passes that writing tables is worth."""

_UNKNOWN = 2000
"""Examples in a file that was not read yet, where there is no limit."""

_PRUNE_STEPS = 3
_EXAMPLES = 64
_BATCH = 16
_REPEATS = 3
"""The first run is slower, and others disturb; the shortest time counts."""


@dataclass(frozen=True)
class Size:
    """What the cost depends on: examples by role, components."""

    examples: Mapping[str, int]
    n_heads: int
    n_mlps: int

    @classmethod
    def of(cls, inputs: Inputs) -> Size:
        """The size of a study's inputs."""
        shape = ModelShape.of(inputs.model)
        counts = {role: len(data) for role, data in inputs.data.items()}
        return cls(counts, len(shape.heads), len(shape.mlps))


def passes(unit: Unit, size: Size | None = None, masks: Mapping[str, int] | None = None) -> float:
    """About how many passes of one example forward through the model a unit costs.

    Args:
        unit: the unit.
        size: of what it works on; None for a coarse guess.
        masks: number of subnetworks by key of the unit that holds them.
    """
    settings = unit.settings
    counts = size.examples if size is not None else {}
    n = {role: counts.get(role) or unit.recipe["data"][role]["limit"] or _UNKNOWN
         for role in unit.roles}  # fmt: skip
    n_heads, n_mlps = (size.n_heads, size.n_mlps) if size is not None else (144, 12)
    tested = sum(n.get(role, 0) for role in TEST_ROLES)
    if unit.kind == "train":
        schedule = settings["training"]
        return WITH_GRADIENT * settings["steps"] * schedule["batch_size"] * schedule["accumulate"]
    if unit.kind == "prune":
        schedule = prune_settings(**settings["schedule"])
        steps = schedule.total_steps(settings["target"])
        return WITH_GRADIENT * steps * schedule.batch_size * len(settings["seeds"])
    if unit.kind == "answers":
        return n[settings["role"]] * (masks or {}).get(unit.needs.get("subnetworks", ""), 1)
    if unit.kind == "heads":
        return float(min(settings["max_examples"], n["id"]))
    if unit.kind == "ablate":
        joint = settings["max_joint"]
        n_sets = CORE * n_heads + joint * (joint - 1) / 2 + settings["max_non_core"]
        return SHARED * n_sets * tested
    if unit.kind == "search":
        pairs = settings["n_pairs"] * (settings["max_size"] - 1)
        return SHARED * pairs * n[settings["role"]]
    if unit.kind == "sweep":
        chosen = {"heads": n_heads, "mlps": n_mlps, "all": n_heads + n_mlps}
        return SHARED * chosen[settings["components"]] * tested
    return float(n["train"]) if unit.kind == "means" else _TABLES


def masks_of(units: Mapping[str, Unit]) -> dict[str, int]:
    """How many subnetworks each unit holds, by key, if none is missing."""
    return {key: len(u.settings["seeds"]) for key, u in units.items() if u.kind == "masks"}


def estimate(
    units: Sequence[Unit], all_units: Mapping[str, Unit], bench: Workbench
) -> pd.DataFrame:
    """Measure passes on this machine, and work out time and memory of units from them.

    For every model among the units some examples are run, and a few steps of pruning.

    Args:
        units: those to do.
        all_units: these and those that they need.
        bench: opens models and data.

    Returns:
        One row per unit: kind, name, seconds, and memory, the largest that the process used while
        it measured such work, in GiB, on a GPU what was allocated there.

    Raises:
        InputError: a model or its data cannot be used.
    """
    masks = masks_of(all_units)
    measured: dict[str, _Measured] = {}
    rows = []
    for unit in units:
        if unit.model is None:
            rows.append((unit.kind, unit.name, 1.0, 0.0))
            continue
        model = _model_of(unit)
        if model not in measured:
            measured[model] = _measure(unit, all_units, bench)
        found = measured[model]
        training = unit.kind in ("prune", "train")
        rate = found.training if training else found.forward
        cost = passes(unit, found.size, masks) / (WITH_GRADIENT if training else 1)
        memory = found.memory_training if training else found.memory
        rows.append((unit.kind, unit.name, cost * rate, memory))
    return pd.DataFrame(rows, columns=["kind", "name", "seconds", "memory"])


def _model_of(unit: Unit) -> str:
    """What units of one model have in common; all checkpoints of a training cost the same."""
    if unit.kind == "train":
        return unit.key
    return unit.needs.get(TRAINING) or str(unit.recipe["model"])


@dataclass(frozen=True)
class _Measured:
    """Seconds per example and pass, and GiB."""

    size: Size
    forward: float
    training: float
    memory: float
    memory_training: float


def _measure(unit: Unit, units: Mapping[str, Unit], bench: Workbench) -> _Measured:
    of_model = [
        u
        for u in units.values()
        if u.model is not None and u.kind != "train" and _model_of(u) == _model_of(unit)
    ]
    training = units.get(_model_of(unit))
    if training is None or bench.store.has(training.key):
        roles = {role: u for u in of_model for role in u.roles}
        inputs = Inputs.merged([bench.inputs(u) for u in dict.fromkeys(roles.values())])
    else:
        inputs = _untrained(training, of_model[0].data, bench.device)
    model, size = inputs.model, Size.of(inputs)
    role = next(role for role in ("id", "ood", "train") if role in inputs.data)
    data = inputs.data[role]
    part = data.part(_typical(data))
    labels = inputs.config.class_labels

    def run() -> None:
        evaluate(model, part, class_labels=labels, in_domain=False, batch_size=_BATCH)

    forward = min(_seconds(run) for _ in range(_REPEATS)) / len(part)
    memory = _peak(model)
    pruning = next((u for u in of_model if u.kind == "prune"), None)
    if pruning is None:
        return _Measured(size, forward, WITH_GRADIENT * forward, memory, memory)
    schedule = replace(
        prune_settings(**pruning.settings["schedule"]),
        steps=_PRUNE_STEPS, steps_per_percent=0.0, ramp_per_percent=0.0, tolerance=1.0,
    )  # fmt: skip
    train = inputs.data["train"]
    longest = sorted(range(len(train)), key=lambda i: -len(train.input_ids[i]))
    sample = train.part(longest[:: max(1, len(train) // (schedule.batch_size * _PRUNE_STEPS))])
    means = MeanActivations.compute(model, sample)
    seeds = pruning.settings["seeds"]
    options = {"sparsity": 0.5, "seeds": seeds, "preset": schedule}
    seconds = min(_seconds(lambda: prune(model, sample, means, **options)) for _ in range(2))
    with_gradient = seconds / (_PRUNE_STEPS * schedule.batch_size * len(seeds))
    return _Measured(size, forward, with_gradient, memory, _peak(model))


def _typical(data: EncodedExamples) -> list[int]:
    """Rows whose batches are as those of all data: each of texts of about one length."""
    order = sorted(range(len(data)), key=lambda i: len(data.input_ids[i]))
    n = _EXAMPLES // _BATCH
    starts = [i * max(0, len(order) - _BATCH) // max(1, n - 1) for i in range(n)]
    return sorted({row for start in starts for row in order[start : start + _BATCH]})


def _untrained(training: Unit, data: DataConfig, device: str) -> Inputs:
    """What a training begins with, in place of what will come of it."""
    fitting = fitting_of(training, device)
    assert training.model is not None
    with tempfile.TemporaryDirectory() as folder:
        publish(fitting.model, fitting.objective.tokenizer, Path(folder) / "untrained")
        source = str(Path(folder) / "untrained")
        model = replace(training.model, source=source, class_labels=None, revision=None)
        inputs = open_model(model, device=device)
    for role in ROLES:
        inputs.add(role, *read_role(role, training.model, data))
    return inputs


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _peak(model: object) -> float:
    """The most memory that this process ever used, in GiB; on a GPU what was allocated there."""
    if device_of(model).type == "cuda":
        return torch.cuda.max_memory_allocated(device_of(model)) / 2**30
    status = Path("/proc/self/status")
    if status.exists():  # getrusage begins with the peak of the process that started this one
        return float(status.read_text().split("VmHWM:")[1].split()[0]) / 2**20
    import resource  # not there on Windows

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (2**30 if sys.platform == "darwin" else 2**20)
