"""How few components each checkpoint of a training run needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator

from mechcore import report
from mechcore.analyses.base import Analysis, Planning, of_study, tables_in
from mechcore.errors import MechcoreError
from mechcore.pruning.settings import PruneSettings, as_runs
from mechcore.settings import setting
from mechcore.study.step import Job, Work
from mechcore.wording import count, listed, percent, sparsity, whole

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class EffectiveSize(Analysis):
    """How few components each checkpoint of a training run needs: its effective size."""

    kind = "effective_size"
    section = "effective-size"
    title = "Effective size over training"
    label = "effective size"
    study_options = ("checkpoints",)
    schemas = tables_in(
        "mechcore.subnetworks.effective_size:MEAN_EFFECTIVE_SIZE",
        "mechcore.subnetworks.effective_size:EFFECTIVE_SIZE",
        "mechcore.steps.sizes:FULL_TABLE",
        "mechcore.steps.sizes:GRID_TABLE",
        "mechcore.steps.masks:MISSING_GRID_MASKS",
    )

    target_sparsities: tuple[float, ...] = setting(
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        "Grid of target sparsities in [0, 1) for every checkpoint.",
    )
    tolerance: float = setting(
        0.03,
        "Maximum accuracy loss (share) of a faithful subnetwork.",
        "--tolerance",
        least=0,
        below=1,
    )
    seeds: tuple[int, ...] | None = setting(
        None, "Seeds of the pruning runs; by default the study's."
    )
    prune: Annotated[PruneSettings | None, BeforeValidator(PruneSettings.presets.read)] = setting(
        None, "The pruning schedule; by default the study's.", example="{preset: paper}"
    )
    groups: Mapping[str, tuple[str, ...]] = of_study()
    checkpoints: tuple[int | str, ...] = of_study()
    """Names of the needed checkpoint accuracies, in order."""

    def __post_init__(self) -> None:
        as_runs(self.target_sparsities, (0,) if self.seeds is None else self.seeds)
        super().__post_init__()

    def jobs(self, plan: Planning) -> Iterator[tuple[str, Job]]:
        """Needs the accuracies of every checkpoint; a study without checkpoints has no such job."""
        accuracies = plan.at_checkpoints(self.target_sparsities, self.seeds, self.prune)
        if accuracies:
            needs = {str(step): job for step, job in accuracies.items()}
            sizes = replace(self, checkpoints=tuple(accuracies), seeds=None, prune=None)
            yield self.kind, plan.job(sizes, needs=needs)

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.steps.answers import joined
        from mechcore.steps.masks import MISSING_GRID_MASKS, no_mask
        from mechcore.steps.sizes import accuracies_by_checkpoint, size_tables

        accuracies, kept, lost = {}, {}, []
        for step in self.checkpoints:
            accuracies[step] = work.table(str(step), "accuracy")
            kept[step] = work.table(str(step), "subnetworks", optional=True)
            missing = work.table(str(step), "missing_masks", optional=True)
            lost.append(missing.assign(checkpoint=step)[MISSING_GRID_MASKS.required])
        full, grid, groups = accuracies_by_checkpoint(accuracies, self.groups, kept)
        missing = joined(lost)
        if grid.empty and len(missing):
            raise MechcoreError(no_mask(missing))
        tables = size_tables(full, grid, groups, self.tolerance)
        if len(missing):
            tables["missing_grid_masks"] = missing.astype({"seed": int})
        return tables

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """Sizes by checkpoint and the full model's accuracy, over seeds and per seed."""
        from mechcore.subnetworks.effective_size import EFFECTIVE_SIZE, MEAN_EFFECTIVE_SIZE

        means, sizes = run.filled("mean_effective_size"), run.filled(cls.kind)
        if means is None:
            return
        yield from map(report.Paragraph, cls.headlines(run))
        if members := report.groups.members_sentence(run, [*dict.fromkeys(means["group"])]):
            yield report.Paragraph(members)
        yield report.Drawing(
            report.subnetwork_figures.effective_sizes(means),
            "effective-size",
            "Left: accuracy of the full model at each checkpoint. Right: its effective size, the "
            "share of components that the sparsest faithful subnetwork keeps; the band spans the "
            "seeds. Open marks: a seed had no faithful subnetwork, which counts as 100 %.",
            "Two line charts over checkpoints; their numbers are in the table below.",
        )
        size, seeds = MEAN_EFFECTIVE_SIZE["effective_size"], means[["n_faithful", "n_seeds"]]
        ranges = [*map(size.between, means["low"], means["high"])]
        faithful = [" of ".join(map(whole, row)) for row in seeds.to_numpy()]
        columns: list[report.Shown] = ["group", "checkpoint", "effective_size"]
        columns += [("over seeds", ranges), ("faithful", faithful), "full_accuracy"]
        yield report.table_of(means, MEAN_EFFECTIVE_SIZE, _OVER_SEEDS, columns, folded=True)
        if sizes is not None:
            names = [name for name in EFFECTIVE_SIZE.names if name != "faithful"]
            yield report.table_of(sizes, EFFECTIVE_SIZE, _OF_SEEDS, names, folded=True)
        if run.filled("missing_grid_masks") is not None:
            yield report.groups.missing_table(run, "missing_grid_masks")

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """The sizes at the first and the last checkpoint; bounds and missing masks."""
        means, missing = run.filled("mean_effective_size"), run.filled("missing_grid_masks")
        if means is None:
            return
        groups, sizes = list(dict.fromkeys(means["group"])), []
        n = len(groups) if len(groups) <= _MOST_GROUPS else _MOST_GROUPS - 1
        for group in groups[:n]:
            part = means[means["group"] == group]
            ends = dict.fromkeys([0, len(part) - 1])
            sizes.append(f"{' to '.join(_size_at(part.iloc[end]) for end in ends)} on {group}")
        changes = "changes over checkpoints from" if means["checkpoint"].nunique() > 1 else "is"
        further = f" The table also lists {listed(groups[n:])}." if groups[n:] else ""
        yield f"The effective size {changes} {listed(sizes)}.{further}"
        yield from _bounds(run)
        if missing is not None:
            named = [
                f"{listed(part['subnetwork'].tolist())} at checkpoint {checkpoint}"
                for checkpoint, part in missing.groupby("checkpoint", sort=False)
            ]
            yield (
                f"The training of some masks failed: {'; '.join(named)}. A seed's "
                "effective size is the smallest among its remaining masks, so it can be too "
                "large; a seed or checkpoint without masks has none."
            )


def _size_at(row: pd.Series) -> str:
    """A size at its checkpoint, and how many seeds had no faithful subnetwork (100 %)."""
    text = f"{percent(row['effective_size'])} at {row['checkpoint']}"
    if without := int(row["n_seeds"] - row["n_faithful"]):
        text += f" (100 % for {without} of {count(row['n_seeds'], 'seed')}, which had no faithful "
        text += "subnetwork)"
    return text


def _bounds(run: report.RunFolder) -> Iterator[str]:
    """Where even the sparsest subnetworks of the grid are faithful, so sizes are upper bounds."""
    sizes, grid = run.table(EffectiveSize.kind), run.filled("grid")
    if sizes is None or grid is None:
        return
    sparsest = grid["target_sparsity"].max()
    by = ["group", "checkpoint"]
    at_bound = sizes.assign(bound=sizes["target_sparsity"] == sparsest)
    bound = at_bound.groupby(by, sort=False)["bound"].all()
    where = [
        f"on {group} at {bounds.sum()} of {count(len(bounds), 'checkpoint')}"
        for group, bounds in bound.groupby("group", sort=False)
        if bounds.any()
    ]
    if where:
        yield (
            f"Even at a sparsity of {sparsity(sparsest)}, the largest of the grid, the subnetworks "
            f"of all seeds are faithful {listed(where)}. Effective sizes there are upper bounds. "
            "Any subnetwork of a model at chance counts as faithful."
        )


_MOST_GROUPS = 3  # number of groups whose effective size the sentence states
_OVER_SEEDS = (
    "Effective size: mean with interval and range over seeds; number of seeds with a "
    "faithful subnetwork; accuracy of the full model"
)
_OF_SEEDS = "Effective size of every seed: the sparsest faithful subnetwork and its accuracy"
