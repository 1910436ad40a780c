"""How few components each checkpoint of a training run needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BeforeValidator

from mechcore.analyses.base import Analysis, Planning, of_study, tables_in
from mechcore.errors import MechcoreError
from mechcore.pruning.settings import PruneSettings, check_runs
from mechcore.settings import check, setting
from mechcore.study.folder import TABLES_FOLDER
from mechcore.study.step import Job, Work

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class EffectiveSize(Analysis):
    """Effective size over the checkpoints of a training run."""

    kind: ClassVar[str] = "effective_size"
    title: ClassVar[str] = "Effective size"
    label: ClassVar[str] = "effective size"
    study_options: ClassVar[tuple[str, ...]] = ("checkpoints",)
    schemas = tables_in(
        "mechcore.steps.sizes:FULL_TABLE",
        "mechcore.steps.sizes:GRID_TABLE",
        "mechcore.subnetworks.effective_size:EFFECTIVE_SIZE",
        "mechcore.subnetworks.effective_size:MEAN_EFFECTIVE_SIZE",
        "mechcore.steps.masks:MISSING_GRID_MASKS",
    )

    sparsities: tuple[float, ...] = setting(
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        "Grid of sparsities, in [0, 1), that every checkpoint is pruned to.",
    )
    tolerance: float = setting(
        0.03,
        "Accuracy (share) that a subnetwork may lose and still be faithful.",
        "--tolerance",
        least=0,
        below=1,
    )
    seeds: tuple[int, ...] | None = setting(
        None, "Seeds of the pruning runs; else those of the study."
    )
    prune: Annotated[PruneSettings | None, BeforeValidator(PruneSettings.presets.read)] = setting(
        None, "The pruning schedule; else that of the study.", example="{preset: paper}"
    )
    groups: Mapping[str, tuple[str, ...]] = of_study()
    checkpoints: tuple[int | str, ...] = of_study()
    """Names of the needs that are the accuracies of the checkpoints, in order."""

    def __post_init__(self) -> None:
        check_runs((0,) if self.seeds is None else self.seeds, self.sparsities)
        check(self, "effective_size")

    def jobs(self, plan: Planning) -> Iterator[tuple[str, Job]]:
        """It needs the accuracies of every checkpoint; a study without any has none of this."""
        accuracies = plan.at_checkpoints(self.sparsities, self.seeds, self.prune)
        if accuracies:
            needs = {str(step): job for step, job in accuracies.items()}
            sizes = replace(self, checkpoints=tuple(accuracies), seeds=None, prune=None)
            yield self.kind, plan.job(sizes, needs=needs)

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        import pandas as pd

        from mechcore.steps.masks import MISSING_GRID_MASKS, MISSING_MASKS, no_mask
        from mechcore.steps.sizes import accuracies_by_checkpoint, size_tables

        accuracies = {step: work.table(str(step), "accuracy") for step in self.checkpoints}
        lost: list[pd.DataFrame] = []
        for step in self.checkpoints:
            path = work.needed(str(step)) / TABLES_FOLDER / "missing_masks.csv"
            if path.is_file():
                lost.append(MISSING_MASKS.read(path).assign(checkpoint=step))
        missing = pd.concat(lost, ignore_index=True) if lost else None
        kept = {step: _subnetworks(work, str(step)) for step in self.checkpoints}
        full, grid, groups = accuracies_by_checkpoint(accuracies, self.groups, kept)
        if grid.empty and missing is not None:
            raise MechcoreError(no_mask(missing))
        tables = size_tables(full, grid, groups, self.tolerance)
        if missing is not None:
            columns = MISSING_GRID_MASKS.required
            tables["missing_grid_masks"] = missing[columns].astype({"seed": int})
        return tables


def _subnetworks(work: Work, what: str) -> pd.DataFrame:
    """The table of that name, without a row where no mask was made."""
    import pandas as pd

    from mechcore.steps.tables import SUBNETWORKS

    path = work.needed(what) / TABLES_FOLDER / f"{SUBNETWORKS.name}.csv"
    if path.is_file():
        return SUBNETWORKS.read(path)
    return pd.DataFrame(columns=SUBNETWORKS.names)
