"""What ablating every single component costs, in domain and out of domain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from mechcore import report
from mechcore.ablation.settings import OOD_MEAN
from mechcore.analyses.base import Ablating, Analysis, Planning, of_study, tables_in
from mechcore.components import ModelShape
from mechcore.components.names import Kind
from mechcore.settings import setting
from mechcore.steps.base import inputs_of, means_of
from mechcore.steps.config import TEST_SPLITS
from mechcore.study.step import Job, Work
from mechcore.wording import ALL

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.ablation import Ablations


@dataclass(frozen=True)
class Swept(Ablating):
    """The answers without each single component, in `mechcore.steps.answers.SWEPT`."""

    kind = "swept"
    label = "ablation one by one"
    for_others = True
    needs: ClassVar[tuple[str, ...]] = ("means",)
    splits: ClassVar[tuple[str, ...]] = TEST_SPLITS
    per_text = 80.0
    components: Kind = "all"

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        from mechcore.ablation import ComponentSet
        from mechcore.steps.answers import SWEPT, save_swept

        inputs = inputs_of(work)
        means, shape = means_of(work, inputs), ModelShape.of(inputs.model)
        alone = [ComponentSet((component,)) for component in shape.kind(self.components)]
        for split in self.splits:
            swept = self.ablations(inputs, means, alone, split, work.partial)
            save_swept(work.folder / SWEPT[split], swept)


@dataclass(frozen=True)
class SweptOodMean(Swept):
    """Out of domain with the mean of its own texts, and what the training mean injects, in nats."""

    kind = OOD_MEAN
    label = "ablation one by one, out-of-domain mean"
    needs: ClassVar[tuple[str, ...]] = ()
    splits: ClassVar[tuple[str, ...]] = ("ood",)

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        import pandas as pd

        from mechcore.pruning.attribution import BATCH_SIZE, margin_slopes
        from mechcore.steps.answers import INJECTED_FILE

        super().run(work)
        inputs = inputs_of(work)
        training, own = (
            margin_slopes(
                inputs.model,
                inputs.data["ood"],
                means_of(work, inputs, needed),
                class_names=inputs.config.class_names,
                batch_size=min(self.batch_size, BATCH_SIZE),
            )
            for needed in ("train means", "means")
        )
        shape = ModelShape.of(inputs.model)
        injected = own - training
        columns = {str(c): injected[(..., *shape.index(c))].numpy() for c in shape.components}
        pd.DataFrame(columns).to_parquet(work.folder / INJECTED_FILE)


@dataclass(frozen=True)
class Sweep(Analysis):
    """What ablating every single component costs."""

    kind = "sweep"
    title = "Every component alone"
    label = "changes, one by one"
    shows = ("sweep",)
    needs = ("means",)
    schemas = tables_in(
        "mechcore.steps.answers:SWEEP",
        "mechcore.ablation.effects.stability:STABILITY",
    )

    components: Kind = setting("all", "Components to ablate one by one.")
    ood_mean: bool = setting(
        True,
        "Out of domain, also ablate with the mean over the out-of-domain texts, and count only "
        "losses and gains that hold with both means; has no effect with other fills.",
        "--ood-mean",
    )
    names: Mapping[str, str] = of_study()
    groups: Mapping[str, tuple[str, ...]] = of_study()
    n_resamples: int = of_study()
    seed: int = of_study()

    def jobs(self, plan: Planning) -> Iterator[tuple[str, Job]]:
        """The jobs of the answers with either mean, and of the tables made from them."""
        swept = {"swept": plan.job(Swept(components=self.components))}
        if self.ood_mean and plan.fill == "mean":
            means = {"means": plan.means("ood"), "train means": plan.known["means"]}
            swept[OOD_MEAN] = plan.job(SweptOodMean(components=self.components), needs=means)
        yield from swept.items()
        yield "sweep", plan.job(replace(self, components="all", ood_mean=True), needs=swept)

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        import pandas as pd

        from mechcore.ablation import ablation_table, information_table
        from mechcore.ablation.effects.change_states import INJECTED
        from mechcore.ablation.effects.information import beside_changes
        from mechcore.ablation.effects.stability import change_stability
        from mechcore.steps.answers import INJECTED_FILE, ablations_in, joined, known_groups

        statistics: dict[str, Any] = {"n_resamples": self.n_resamples, "seed": self.seed}

        def changes(of: Ablations, fill: str) -> pd.DataFrame:
            information = information_table(of, known_groups(of, self.groups), **statistics)
            table = beside_changes(information, ablation_table(of, **statistics).assign(fill=fill))
            return table.assign(fill=fill)  # of groups, too

        swept, job = ablations_in(work.needed("swept"), self.names), work.job.needs["swept"]
        assert isinstance(job.step, Swept)
        parts = [changes(of, job.step.fill) for of in swept.values()]
        stability = joined([change_stability(of, **statistics) for of in swept.values()])
        if OOD_MEAN in work.job.needs:
            again = ablations_in(work.needed(OOD_MEAN), self.names)["ood"]
            own = changes(again, OOD_MEAN)
            injected = pd.read_parquet(work.needed(OOD_MEAN) / INJECTED_FILE)
            groups = again.full.groups(known_groups(again, self.groups))
            means = {subset: injected[members].mean() for subset, members in groups}
            places = zip(own["set"], own["subset"], strict=True)
            own[INJECTED.name] = [means[subset][name] for name, subset in places]
            parts.append(own)
        return {"sweep": joined(parts), "stability": stability}

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """Changes without each component, drawn by layer and head, and in a table."""
        if (sweep := run.swept) is None:
            return
        overall = sweep[sweep["subset"] == ALL]
        n = overall["set"].nunique()
        yield from report.ablation_tables.fill_note(run)
        yield report.Paragraph(f"Each of {n} components was ablated alone.")
        yield from report.groups.one_label_notes(run, sweep)
        for metric in (
            ("accuracy", "margin") if len(report.ablation_figures.by_components(overall, 1)) else ()
        ):
            yield report.Drawing(
                report.ablation_figures.single_changes(overall, metric),
                f"single-changes-{metric}",
                f"Change in {metric} over all examples without each single component. Red: the "
                "model is worse without it; blue: better.",
                f"Grid, layer by head, of the change in {metric}; its numbers are in the table.",
                fold=f"Change in {metric} without each component{report.AS_FIGURE}",
            )
        yield from report.groups.population_note(sweep)
        caption = f"All {n} components, each ablated alone; every subset is in sweep.csv"
        yield report.ablation_tables.ablation_table(sweep, caption, folded=True)
