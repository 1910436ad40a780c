"""Steps from a model to its subnetworks: means, masks, and which of them are accepted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.components import ModelShape
from mechcore.errors import warn
from mechcore.files import write_json
from mechcore.masking.means import MeanActivations
from mechcore.pruning import METHODS, PruningError, Request, Subnetwork, subnetwork_name
from mechcore.pruning.mask_training import OffTrackError, accepted
from mechcore.pruning.settings import READING, PruneSettings, check_keeps_some, keeps_some
from mechcore.steps.base import (
    MASKS,
    MEANS_FILE,
    MISSING_FILE,
    WITH_GRADIENT,
    MainStep,
    inputs_of,
    means_of,
    subnetworks_in,
)
from mechcore.steps.bench import DataInput
from mechcore.steps.tables import SUBNETWORK
from mechcore.study.step import Job, Work, plain
from mechcore.tables import CHECKPOINT, SEED, TARGET, Column, Schema

_ACCEPTING = (*READING, "steps", "lr_lambda")
"""Settings of a schedule for accepting trained masks, and for advice on rejected ones."""

MISSING_MASKS = Schema(
    "missing_masks",
    "Unusable masks, and why.",
    (SUBNETWORK, TARGET, SEED, Column("reason", "text", "why it is missing")),
)
MISSING_GRID_MASKS = MISSING_MASKS.after(CHECKPOINT).named("missing_grid_masks")
MISSING_HALF_MASKS = MISSING_MASKS.after(
    Column("data", "text", "data it was pruned on: ``all data``, ``half 1`` or ``half 2``")
).named(
    "missing_half_masks",
    "Unusable masks of halves of the training data, or of all of it, and why; the comparison of "
    "halves omits all masks of the same target and seed.",
)


@dataclass(frozen=True)
class Means(MainStep):
    """Mean activations on the data of one split."""

    kind = "means"
    per_text = 1.0

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        inputs = inputs_of(work)
        (data,) = inputs.data.values()
        MeanActivations.compute(inputs.model, data).save(work.folder / MEANS_FILE)


@dataclass(frozen=True)
class FindMasks(MainStep):
    """Train or rank masks; resumes. A control needs the masks that it matches as ``trained``."""

    kind = "prune"
    method: str
    target_sparsities: tuple[float, ...]
    seeds: tuple[int, ...]
    schedule: PruneSettings
    data_seed: int

    def settings(self) -> dict[str, Any]:
        """The settings without those that do not affect training: discretisation and saving."""
        settings = super().settings()
        for name in ("save_every", *READING):
            del settings["schedule"][name]
        return settings

    def check_targets(self, shape: ModelShape) -> None:
        """Raise `InputError` if a method that keeps an exact number would keep no component."""
        if self.method != "l0" or self.schedule.discretisation == "ranking":
            check_keeps_some(self.target_sparsities, shape)

    def uses(self) -> list[object]:
        """The method."""
        return [METHODS[self.method]]

    def cost(self, job: Job) -> float:
        """See `Step.cost`."""
        steps = sum(map(self.schedule.total_steps, self.target_sparsities))
        return WITH_GRADIENT * steps * self.schedule.batch_size * len(self.seeds)

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        inputs = inputs_of(work)
        # `AcceptMasks` decides which masks are accepted, and discretises them.
        schedule, shape = replace(self.schedule, tolerance=1.0), ModelShape.of(inputs.model)
        if all(keeps_some(target_sparsity, shape) for target_sparsity in self.target_sparsities):
            schedule = replace(schedule, discretisation="ranking")
        matched = "trained" in work.job.needs
        trained = subnetworks_in(work.needed("trained")) if matched else []
        request = Request(
            inputs.model,
            inputs.data["train"],
            means_of(work, inputs),
            self.target_sparsities,
            self.seeds,
            schedule,
            self.data_seed,
            work.partial,
            trained,
        )
        masks, diverged = list[Subnetwork](), dict[str, str]()
        try:
            if trained or not matched:
                masks = METHODS[self.method](request)
        except PruningError as error:
            masks, diverged = error.finished, error.missing
        for mask in masks:
            mask.save(work.folder / MASKS / f"{mask.name}.safetensors")
        write_json(work.folder / MISSING_FILE, diverged)


@dataclass(frozen=True)
class AcceptMasks(MainStep):
    """Accepts the masks that reached their target, and says why others are missing."""

    kind = "masks"
    method: str
    target_sparsity: float
    seeds: tuple[int, ...]
    schedule: PruneSettings

    def settings(self) -> dict[str, Any]:
        """The settings without those that matter only to training."""
        schedule = plain({name: getattr(self.schedule, name) for name in _ACCEPTING})
        return {**super().settings(), "schedule": schedule}

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        trained = work.needed("trained")
        missing = json.loads((trained / MISSING_FILE).read_text(encoding="utf-8"))
        for mask in subnetworks_in(trained):
            if mask.target_sparsity == self.target_sparsity:
                try:  # masks of a ranking are always accepted
                    kept = accepted(mask, self.schedule) if len(mask.history) else mask
                    kept.save(work.folder / MASKS / f"{mask.name}.safetensors")
                except OffTrackError as error:
                    missing[mask.name] = str(error)
        rows = []
        for seed in self.seeds:
            name = subnetwork_name(self.target_sparsity, seed, self.method)
            if name in missing:
                warn(f"{name} is missing: {missing[name]}")
                rows.append((name, self.target_sparsity, seed, missing[name]))
        write_json(work.folder / MISSING_FILE, rows)


def no_mask(missing: pd.DataFrame) -> str:
    """A message that there is no mask, and why; ``missing`` comes from `missing_in`."""
    return f"no mask reached its target: {'. '.join(missing['reason'])}"


def missing_in(folders: Iterable[Path]) -> pd.DataFrame:
    """The masks missing from jobs of `AcceptMasks`: the columns of `MISSING_MASKS`."""
    texts = [(folder / MISSING_FILE).read_text(encoding="utf-8") for folder in folders]
    rows = [row for text in texts for row in json.loads(text)]
    table = pd.DataFrame(rows, columns=MISSING_MASKS.required)
    return table.sort_values([TARGET.name, SEED.name], ignore_index=True)


def half_of(job: Job) -> int | None:
    """The half of the training data that a job prunes on, 1 or 2; None for all of it."""
    data = job.needs["trained"].inputs["train"]
    assert isinstance(data, DataInput)
    return data.half
