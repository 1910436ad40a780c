"""Whether a component's effect grows with how much of it is ablated, and what is repaired."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mechcore.analyses.base import Analysis, of_study, tables_in
from mechcore.analyses.sweep import Ablating
from mechcore.settings import check, setting
from mechcore.steps.base import BEHIND, Size, inputs_of, means_of
from mechcore.steps.config import TEST_ROLES
from mechcore.study.step import Job, Work

if TYPE_CHECKING:
    import pandas as pd

_LEVELS = 4
"""Values of a mask that are tried."""


@dataclass(frozen=True)
class Dose(Ablating, Analysis):
    """The components whose role matters most, ablated by degrees and cut off from the answer."""

    kind: ClassVar[str] = "dose"
    title: ClassVar[str] = "Do effects grow with the dose, and are they repaired?"
    label: ClassVar[str] = "doses"
    needs: ClassVar[tuple[str, ...]] = ("means", "roles")
    roles: ClassVar[tuple[str, ...]] = TEST_ROLES
    schemas = tables_in("mechcore.ablation.dose:DOSE")

    components: int = setting(
        6,
        "Components, those whose role matters most, that are ablated by degrees, see "
        "`mechcore.ablation.dose`.",
        least=1,
    )
    max_examples: int = setting(300, "Examples of each kind of test data at most.", least=1)
    n_resamples: int = of_study()

    def __post_init__(self) -> None:
        check(self, "dose")

    @classmethod
    def works_with(cls, fill: str) -> bool:
        """The answer cannot be cut off with outputs on other examples."""
        return fill != "counterfactual"

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        tested = sum(min(self.max_examples, size.examples.get(role, 0)) for role in TEST_ROLES)
        return tested * self.components * (_LEVELS + BEHIND)

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.ablation.dose import dose_table
        from mechcore.ablation.roles import ranked
        from mechcore.steps.ablation import joined

        inputs = inputs_of(work).sampled(TEST_ROLES, self.max_examples, self.seed)
        components = ranked(work.table("roles", "roles"))["component"].tolist()
        options: dict[str, Any] = {"fill": self.fill, "class_names": inputs.config.class_names}
        options |= {"batch_size": self.batch_size, "n_resamples": self.n_resamples}
        model, means, chosen = inputs.model, means_of(work, inputs), components[: self.components]
        tables = []
        for role in TEST_ROLES:
            options |= {"role": role, "seed": self.seed}
            tables.append(dose_table(model, chosen, inputs.data[role], means, **options))
        return {"dose": joined(tables)}
