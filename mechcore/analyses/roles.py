"""What every component is needed for, in domain and out of domain, and which are harmful."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mechcore.ablation.settings import RoleSettings
from mechcore.analyses.base import Analysis, of_study, tables_in
from mechcore.analyses.sweep import OOD_MEAN
from mechcore.study.step import Work

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Roles(RoleSettings, Analysis):
    """What every component is needed for, and which roles found on a half hold on the other."""

    kind: ClassVar[str] = "roles"
    label: ClassVar[str] = "roles of components"
    needs: ClassVar[tuple[str, ...]] = ("sweep", "swept")
    reads: ClassVar[tuple[str, ...]] = (OOD_MEAN,)
    schemas = tables_in("mechcore.ablation.confirmed:ROLES_TABLE")

    names: Mapping[str, str] = of_study()
    seed: int = of_study()

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.ablation import component_roles, confirm_roles
        from mechcore.data.examples import ALL
        from mechcore.steps.ablation import INFORMATION_OOD_MEAN, swept_answers
        from mechcore.steps.config import TEST_ROLES

        table = work.table("sweep", "information")
        table = table[table["subset"] == ALL]
        inside, outside = (table[table["role"] == role] for role in TEST_ROLES)
        own, folders = None, {"swept": work.needed("swept")}
        if OOD_MEAN in work.job.needs:
            own = work.table("sweep", INFORMATION_OOD_MEAN.name)
            own = own[own["subset"] == ALL]
            folders[OOD_MEAN] = work.needed(OOD_MEAN)
        roles = component_roles(inside, outside, self, ood_mean=own)
        answers = swept_answers(folders, self.names)
        return {"roles": confirm_roles(roles, answers, self, seed=self.seed)}
