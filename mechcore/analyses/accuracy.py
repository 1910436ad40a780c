"""How well the full model and every subnetwork do, on every subset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mechcore.analyses.base import Analysis, of_study, tables_in
from mechcore.study.step import Work

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Accuracy(Analysis):
    """Accuracies of the full model and of subnetworks, and the masks that are missing."""

    kind: ClassVar[str] = "accuracy"
    title: ClassVar[str] = "Accuracy"
    label: ClassVar[str] = "accuracies"
    always: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("answers",)
    schemas = tables_in(
        "mechcore.steps.groups:ACCURACY",
        "mechcore.steps.groups:GROUP_ACCURACY",
        "mechcore.steps.tables:SUBNETWORKS",
        "mechcore.subnetworks.core:ACCURACY_SPREAD",
        "mechcore.steps.masks:MISSING_MASKS",
    )

    names: Mapping[str, str] = of_study()
    groups: Mapping[str, tuple[str, ...]] = of_study()

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.steps.answers import answers_of
        from mechcore.steps.masks import missing_in
        from mechcore.steps.tables import answer_tables

        answered = answers_of(work)
        tables = answer_tables(
            answered.full, answered.subnetworks, answered.masked, self.names, self.groups
        )
        missing = missing_in(answered.folders)
        return {**tables, "missing_masks": missing} if len(missing) else tables
