"""Who reads the core, and who writes the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mechcore.analyses.base import Analysis, of_study, tables_in
from mechcore.analyses.sweep import Ablating
from mechcore.settings import check, setting
from mechcore.steps.base import BEHIND, CORE, Size, core_of, inputs_of, means_of
from mechcore.steps.config import TEST_ROLES
from mechcore.study.step import Job, Work

if TYPE_CHECKING:
    import pandas as pd

FORWARDS = 4.0
"""Of the full model, which all sets share, and all answers."""

MOST_READERS = 10
"""Components that stand beside controls, about."""


@dataclass(frozen=True)
class Paths(Ablating, Analysis):
    """What components lose that do not see the core, and what the answer that does not see them."""

    kind: ClassVar[str] = "paths"
    title: ClassVar[str] = "Who reads the core"
    label: ClassVar[str] = "readers of the core"
    needs: ClassVar[tuple[str, ...]] = ("means", "core")
    reads: ClassVar[tuple[str, ...]] = ("roles", "swept")
    roles: ClassVar[tuple[str, ...]] = TEST_ROLES
    schemas = tables_in(
        "mechcore.paths.tables:PATHS",
        "mechcore.paths.tables:PATH_INFORMATION",
        "mechcore.paths.dependence:CORE_DEPENDENCE",
        "mechcore.paths.verdict:CORE_VERDICT",
    )

    controls: int = setting(
        20,
        "Random sets of heads in place of the core, out of domain, for the components that change "
        "most and those that the verdict is about; fewer than 20 can neither support the claim "
        "nor speak against it.",
        least=0,
    )
    max_examples: int = setting(300, "Examples of each kind of test data at most.", least=1)
    names: Mapping[str, str] = of_study()
    groups: Mapping[str, tuple[str, ...]] = of_study()
    n_resamples: int = of_study()
    least: float = of_study()
    """Least effect of interest, a share of balanced accuracy."""

    def __post_init__(self) -> None:
        check(self, "paths")

    @classmethod
    def works_with(cls, fill: str) -> bool:
        """Paths cannot be cut with outputs on other examples."""
        return fill != "counterfactual"

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        tested, outside = (
            sum(min(self.max_examples, size.examples.get(role, 0)) for role in roles)
            for roles in (TEST_ROLES, TEST_ROLES[1:])
        )
        n_all, n_core = size.components("all"), CORE * size.n_heads
        sets = n_all + min(MOST_READERS, n_all) * n_core
        sets += 0 if self._reuses(job) else n_all
        controls = self.controls * min(MOST_READERS, n_all) if "roles" in job.needs else 0
        return tested * (FORWARDS + BEHIND * sets) + outside * BEHIND * controls

    def _reuses(self, job: Job) -> bool:
        """Whether drops of the sweep are taken over; other fills draw anew for other examples."""
        return "swept" in job.needs and self.fill in ("mean", "zero")

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        import numpy as np
        import pandas as pd

        from mechcore.steps.ablation import ablations_in
        from mechcore.steps.paths import core_tables

        core = core_of(work)
        if not core:
            return {schema.name: pd.DataFrame(columns=schema.names) for schema in self.schemas}
        inputs = inputs_of(work)
        roles = work.table("roles", "roles") if "roles" in work.job.needs else None
        known = ablations_in(work.needed("swept"), self.names) if self._reuses(work.job) else {}
        sampled = inputs.sampled(TEST_ROLES, self.max_examples, self.seed)
        for role, swept in known.items():
            rows = inputs.data[role].examples.sample_rows(self.max_examples, self.seed)
            known[role] = swept.part(np.array(rows))
        return core_tables(sampled, means_of(work, inputs), core, self, roles, known)
