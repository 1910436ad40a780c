"""Which heads every subnetwork keeps: the heuristic core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mechcore.analyses.base import Analysis, tables_in
from mechcore.errors import warn
from mechcore.steps.base import subnetworks_in
from mechcore.study.step import Work

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Core(Analysis):
    """The heuristic core, and what else the subnetworks share."""

    kind: ClassVar[str] = "core"
    title: ClassVar[str] = "Heuristic core"
    always: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("masks",)
    schemas = tables_in(
        "mechcore.steps.tables:CORE",
        "mechcore.steps.tables:CORE_SUMMARY",
        "mechcore.subnetworks.core:HEAD_FREQUENCY",
        "mechcore.subnetworks.core:HEAD_OVERLAP",
    )

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        import pandas as pd

        from mechcore.steps.tables import core_tables

        subnetworks = [
            subnetwork
            for what in work.job.needs
            for subnetwork in subnetworks_in(work.needed(what))
        ]
        if not subnetworks:
            warn(
                "no mask reached its target, so there is no core; what follows is about the full "
                "model alone"
            )
            return {schema.name: pd.DataFrame(columns=schema.names) for schema in self.schemas}
        subnetworks.sort(key=lambda subnetwork: (subnetwork.target, subnetwork.seed))
        return core_tables(subnetworks)[1]
