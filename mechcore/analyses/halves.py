"""Whether other training data would give the same core, from two halves of the training data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mechcore.analyses.base import Analysis, Planning, Tables, tables_in
from mechcore.errors import MechcoreError
from mechcore.steps.base import subnetworks_in
from mechcore.study.step import Job, Work


@dataclass(frozen=True)
class Halves(Analysis):
    """Whether two halves of the training data give the same core."""

    kind = "halves"
    label = "cores of halves of the training data"
    asked = True
    needs = ("masks",)
    schemas = tables_in(
        "mechcore.subnetworks.halves:HALF_OVERLAP",
        "mechcore.subnetworks.halves:HALF_CORES",
        "mechcore.steps.masks:MISSING_HALF_MASKS",
    )

    def jobs(self, plan: Planning) -> Iterator[tuple[str, Job]]:
        """Also needs the subnetworks of each half."""
        yield self.kind, plan.job(self, needs=plan.masks_of_halves())

    def compute(self, work: Work) -> Tables:
        """See `Analysis.compute`."""
        import pandas as pd

        from mechcore.steps.masks import MISSING_HALF_MASKS, half_of, missing_in
        from mechcore.subnetworks.halves import (
            HALVES,
            WHOLE,
            common_masks,
            half_cores,
            half_overlap,
        )

        folders: dict[str, list[Path]] = {data: [] for data in (WHOLE, *HALVES)}
        for what, job in work.job.needs.items():
            half = half_of(job)
            folders[WHOLE if half is None else HALVES[half - 1]].append(work.needed(what))
        parts = [missing_in(of).assign(data=data) for data, of in folders.items()]
        missing = pd.concat(parts, ignore_index=True)[MISSING_HALF_MASKS.required]
        masks = common_masks(
            {
                data: {
                    (s.target_sparsity, s.seed): s.mask for path in of for s in subnetworks_in(path)
                }
                for data, of in folders.items()
            }
        )
        if not masks[WHOLE]:
            reasons = ". ".join(missing["data"] + ": " + missing["reason"])
            raise MechcoreError(
                "halves: no target sparsity and seed has masks of all data and of both halves: "
                f"{reasons}"
            )
        tables = {"half_overlap": half_overlap(masks), "half_cores": half_cores(masks)}
        if len(missing):
            tables["missing_half_masks"] = missing.astype({"seed": int})
        return tables
