"""What the core costs: its heads ablated alone and together, beside other heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mechcore.analyses.base import Analysis, of_study, tables_in
from mechcore.analyses.sweep import Ablating
from mechcore.settings import check, setting
from mechcore.steps.base import CORE, SHARED, Size, core_of, inputs_of, means_of
from mechcore.steps.config import TEST_ROLES
from mechcore.study.step import Job, Work

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class CoreAblation(Ablating, Analysis):
    """Ablation of the core, alone and jointly, beside other heads.

    What a sweep ablated is not ablated again.
    """

    kind: ClassVar[str] = "ablation"
    title: ClassVar[str] = "Ablation"
    label: ClassVar[str] = "ablation of the core"
    needs: ClassVar[tuple[str, ...]] = ("means", "core")
    reads: ClassVar[tuple[str, ...]] = ("swept",)
    roles: ClassVar[tuple[str, ...]] = TEST_ROLES
    schemas = tables_in(
        "mechcore.ablation.effects:ABLATION",
        "mechcore.ablation.superadditivity:INTERACTIONS",
        "mechcore.ablation.stability:INTERACTION_STABILITY",
        "mechcore.ablation.controls:ABLATION_CONTROLS",
    )

    max_joint: int = setting(
        4, "Core heads to ablate in pairs, those that matter most out of domain.", least=0
    )
    max_non_core: int = setting(
        16,
        "Heads outside the core to ablate for comparison, drawn at random from its layers.",
        "--max-non-core",
        rare=True,
        least=0,
    )
    controls: int = setting(
        99,
        "Random sets of as many other heads of the same layers to ablate beside the whole core; "
        "all there are, if there are fewer.",
        least=0,
    )
    control_examples: int = setting(
        100, "Examples of each kind of test data for these, at most.", least=1
    )
    names: Mapping[str, str] = of_study()
    n_resamples: int = of_study()

    def __post_init__(self) -> None:
        check(self, "ablation")

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        n_sets = self.max_joint * (self.max_joint - 1) / 2
        if "swept" not in job.needs:
            n_sets += CORE * size.n_heads + self.max_non_core
        sampled = sum(min(self.control_examples, size.examples.get(r, 0)) for r in TEST_ROLES)
        return SHARED * (n_sets * size.tested + self.controls * sampled)

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.steps.ablation import ablations_in
        from mechcore.steps.core_ablation import core_ablation_tables

        inputs = inputs_of(work)
        means, core = means_of(work, inputs), core_of(work)
        known = ablations_in(work.needed("swept"), self.names) if "swept" in work.job.needs else {}
        return core_ablation_tables(inputs, means, core, self, known)
