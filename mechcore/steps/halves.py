"""A step that compares subnetworks of halves of the training data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pandas as pd

from mechcore.components import Mask
from mechcore.errors import MechcoreError
from mechcore.steps.base import MainStep, subnetworks_in
from mechcore.steps.masks import MISSING_MASKS, missing_in
from mechcore.study.step import Work
from mechcore.subnetworks.halves import (
    HALF_CORES,
    HALF_OVERLAP,
    HALVES,
    WHOLE,
    Pruned,
    half_cores,
    half_overlap,
)
from mechcore.tables import Column, Schema

MISSING_HALF_MASKS = MISSING_MASKS.after(
    Column("data", "text", "what it was pruned on: ``all data``, ``half 1`` or ``half 2``")
).named(
    "missing_half_masks",
    "Masks of halves of the training data, or of all of it, that could not be used, and why; those "
    "of the same target and seed are left out of the comparison of halves.",
)


@dataclass(frozen=True)
class Halves(MainStep):
    """Overlap of subnetworks and cores between halves of the training data, and between seeds."""

    kind: ClassVar[str] = "halves"
    schemas: ClassVar[tuple[Schema, ...]] = (HALF_OVERLAP, HALF_CORES, MISSING_HALF_MASKS)

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        folders: dict[str, list[Path]] = {data: [] for data in (WHOLE, *HALVES)}
        for what in work.job.needs:
            folders[what.partition(":")[0]].append(work.needed(what))
        parts = [missing_in(each).assign(data=data) for data, each in folders.items()]
        missing = pd.concat(parts, ignore_index=True)[MISSING_HALF_MASKS.required]
        found = common_masks(
            {
                data: {(s.target, s.seed): s.mask for f in each for s in subnetworks_in(f)}
                for data, each in folders.items()
            }
        )
        if not found[WHOLE]:
            reasons = ". ".join(missing["data"] + ": " + missing["reason"])
            raise MechcoreError(
                f"halves: no target and seed has masks of all data and of both halves: {reasons}"
            )
        work.write_tables({"half_overlap": half_overlap(found), "half_cores": half_cores(found)})
        if len(missing):
            work.write_tables({"missing_half_masks": missing.astype({"seed": int})})


def common_masks(
    masks: Mapping[str, Mapping[Pruned, Mask]],
) -> dict[str, dict[Pruned, Mask]]:
    """Those of the targets and seeds that no data lack, in order.

    Args:
        masks: by what they were pruned on, then by target and seed.
    """
    common = sorted(set.intersection(*(set(each) for each in masks.values())))
    return {data: {key: each[key] for key in common} for data, each in masks.items()}
