"""What ablating the core, or named components, costs: alone, together and against controls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mechcore import report
from mechcore.analyses.base import Ablating, Analysis, of_study, tables_in
from mechcore.components import KINDS, Component, ModelShape, parse_components
from mechcore.errors import InputError
from mechcore.settings import setting
from mechcore.steps.base import core_of, inputs_of, means_of
from mechcore.steps.config import TEST_SPLITS
from mechcore.study.step import Work
from mechcore.wording import (
    ALL,
    count,
    effect,
    listed,
    p_value,
    percent,
    split_name,
    whole,
    with_interval,
)

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.ablation import ComponentSet
    from mechcore.steps.inputs import Inputs


@dataclass(frozen=True)
class Ablation(Ablating, Analysis):
    """What ablating the core's heads, or named components, costs, alone and together."""

    kind = "ablation"
    title = "Ablation"
    label = "ablation alone and together"
    needs = ("means", "core")
    reads = ("swept",)
    shows = ("ablation", "shapley", "dividends")
    splits = TEST_SPLITS
    per_text = 20.0
    schemas = tables_in(
        "mechcore.ablation.effects.changes:CONTROLLED",
        "mechcore.ablation.joint.exact:INTERACTIONS",
        "mechcore.ablation.effects.stability:STABILITY",
        "mechcore.ablation.joint.exact:DIVIDENDS",
        "mechcore.ablation.joint.exact:SHAPLEY",
    )

    components: tuple[str, ...] = setting(
        (), "Components to ablate instead of the core: L1.H0,L2.MLP; or heads, mlps or all."
    )
    sets: tuple[str, ...] = setting((), "Further sets to ablate: L1.H0+L2.MLP,L0.H3+L1.H1.")
    subsets: bool = setting(
        False, "Ablate every subset of the named components (at most 10) for Shapley values."
    )
    max_joint: int | None = setting(
        None,
        "Ablate all pairs of this many components, those that matter most out of domain. By "
        "default 4 of the core, or 10 of those named.",
        least=0,
    )
    max_non_core: int = setting(
        16,
        "Number of random control components: other heads of the same layers, or other MLPs.",
        "--max-non-core",
        rare=True,
        least=0,
    )
    controls: int = setting(
        99,
        "Number of random control sets with as many heads per layer, and MLPs, as the whole set; "
        "fewer if fewer exist.",
        least=0,
    )
    control_examples: int = setting(
        100, "Maximum number of examples of each test split for the controls.", least=1
    )
    names: Mapping[str, str] = of_study()
    n_resamples: int = of_study()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in {*self.components} - {*KINDS}:
            Component.parse(name)
        for text in self.sets:
            if not parse_components(text.split("+")):
                raise InputError(
                    f"ablation: the set {text!r} contains no component; example: L1.H0+L2.MLP"
                )

    def wants(self) -> Sequence[str]:
        """See `MainStep.wants`; the core is not needed if components are named."""
        return [name for name in self.needs if name != "core" or not self.components]

    def may_read(self) -> Sequence[str]:
        """See `MainStep.may_read`; the sweep includes the core's heads."""
        return () if self.components else self.reads

    def named(self, shape: ModelShape) -> list[Component]:
        """The named components; raises `InputError` if the model lacks one of them."""
        named: set[Component] = set()
        for name in self.components:
            named |= {*shape.kind(name)} if name in KINDS else {Component.parse(name)}
        for component in named:
            shape.index(component)
        return sorted(named)

    @property
    def n_joint(self) -> int:
        """Of how many components pairs are ablated, at most."""
        from mechcore.ablation.sets import MOST_EXACT

        if self.max_joint is not None:
            return self.max_joint
        return MOST_EXACT if self.components else 4

    @property
    def further(self) -> list[ComponentSet]:
        """The additional sets."""
        from mechcore.ablation import ComponentSet

        return [ComponentSet.of(text.split("+")) for text in self.sets]

    def check_inputs(self, inputs: Inputs) -> None:
        """See `Analysis.check_inputs`."""
        from mechcore.ablation.sets import MOST_EXACT

        shape = ModelShape.of(inputs.model)
        n = len(self.named(shape))
        for one in self.further:
            one.mask(shape)
        if self.subsets and not 2 <= n <= MOST_EXACT:
            raise InputError(
                f"ablation: {count(n, 'component')} named; expected 2 to {MOST_EXACT} for all "
                "subsets (--components)"
            )

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.steps.answers import ablations_in
        from mechcore.steps.core_ablation import core_ablation_tables

        inputs = inputs_of(work)
        means = means_of(work, inputs)
        members = self.named(ModelShape.of(inputs.model)) if self.components else core_of(work)
        known = ablations_in(work.needed("swept"), self.names) if "swept" in work.job.needs else {}
        return core_ablation_tables(inputs, means, members, self, known, work.partial)

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """Changes from ablating components, alone, together and against controls."""
        tables = report.ablation_tables
        if (ablation := run.table(cls.kind)) is None:
            yield report.missing(f"the ablation of {tables.ablated(run)}s from the full model")
            return
        yield from tables.fill_note(run)
        if ablation.empty:
            yield report.Paragraph(f"There was no head to ablate: {run.no_core}.", note=True)
            return
        n_sets = ablation["set"].nunique()
        if (ablation["kind"] == report.SINGLE).any():
            together = " and together" if n_sets > 1 else ""
            what = tables.ablated(run).capitalize()
            yield report.Paragraph(f"{what}s are ablated in the full model, alone{together}.")
        else:
            text = f"{run.no_core.capitalize()}, so other heads are shown for reference."
            yield report.Paragraph(text, note=True)
        yield from _drawings(ablation, n_sets)
        yield from report.groups.population_note(ablation)
        caption = "Ablation over all examples, with intervals; every subset is in ablation.csv"
        yield tables.ablation_table(ablation, caption, folded=n_sets > 20)
        yield from tables.control_table(ablation, tables.ablated(run).capitalize())
        yield from tables.share_tables(run)
        yield from report.groups.one_label_notes(run, ablation)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """The out-of-domain change from ablating single components, and all of them."""
        if (ablation := run.filled(cls.kind)) is None:
            return
        overall = ablation[ablation["subset"] == ALL]
        yield from _alone(run, overall)
        if "n_controls" in overall:
            several = (overall["split"] == "ood") & (overall["kind"] == "joint")
            for _, row in overall[several & overall["n_controls"].notna()][:1].iterrows():
                yield _together(row, run)

    @classmethod
    def tiles(cls, run: report.RunFolder) -> Iterator[report.Tile]:
        """The component whose ablation costs most out of domain."""
        ablation = run.filled(cls.kind)
        singles = None if ablation is None else _singles(ablation[ablation["subset"] == ALL])
        if singles is not None and len(singles) and singles["accuracy_change"].iloc[0] < 0:
            worst = singles.iloc[0]
            value = f"{effect(worst['accuracy_change'], 'accuracy', unit=False)} points"
            subsets = report.groups.over_subsets(run.accuracy, "ood", worst["data"])
            yield report.Tile(
                f"Without {worst['set']}, out-of-domain", value, f"{worst['data']}{subsets}"
            )


def _singles(overall: pd.DataFrame) -> pd.DataFrame:
    """Single components with a known out-of-domain accuracy change, worst first."""
    singles = overall[(overall["kind"] == report.SINGLE) & (overall["split"] == "ood")]
    return singles.dropna(subset=["accuracy_change"]).sort_values("accuracy_change", kind="stable")


def _drawings(ablation: pd.DataFrame, n_sets: int) -> Iterator[report.Block]:
    drawn = len(report.figures.sets_to_draw(ablation))
    left_out = f" {drawn} of {n_sets} sets are drawn; joint sets with smaller changes are omitted."
    left_out *= drawn < n_sets
    for metric in ("accuracy", "margin"):
        yield report.Drawing(
            report.figures.ablation_changes(ablation, metric),
            f"ablation-{metric}",
            f"Change in {metric} over all examples without each set. To the left of zero the model "
            f"is worse without it. Lines are 95 % intervals over examples.{left_out}",
            f"Dot plot of the change in {metric} by set; its numbers are in the table below.",
        )
    for i, (split, data) in enumerate(report.groups.data_sets(ablation), start=1):
        if len(report.groups.subsets_of(ablation, split, data)) > 2:
            yield report.Drawing(
                report.figures.ablation_by_subset(ablation, split, data),
                f"ablation-subsets-{i}",
                f"Change in accuracy (points) by subset of {data} ({split_name(split)}).{left_out}",
                f"Heatmap, ablated sets by subsets of {data}; the numbers are in ablation.csv.",
                fold=f"By subset of {data} (in-domain)" if split == "id" else "",
            )


def _alone(run: report.RunFolder, overall: pd.DataFrame) -> Iterator[str]:
    """The component whose ablation lowers out-of-domain accuracy most, and one that raises it."""
    what, singles = report.ablation_tables.ablated(run), _singles(overall)
    if singles.empty:
        return
    worst, best = singles.iloc[0], singles.iloc[-1]
    if worst["accuracy_change"] >= 0:
        yield f"Ablating a single {what} does not lower out-of-domain accuracy."
    else:
        text = (
            f"Of {count(len(singles), what)} ablated alone, {worst['set']} lowers out-of-domain "
            f"accuracy most: {_change(worst)}, to {percent(worst['accuracy'])}"
            f"{_in_domain(overall, worst['set'])}"
        )
        if worst.get("n_controls", 0) > 0:
            kind, of = ("MLP", "") if "MLP" in worst["set"] else ("head", " of its layer")
            others = count(worst["n_controls"], f"other {kind}") + of
            change = effect(worst["accuracy_control_change"], "accuracy")
            text += f". Ablating one of {others} changes it by {change} on average "
            text += f"({p_value(worst['accuracy_p_control'])} against these controls)"
        if not worst["accuracy_change_high"] < 0:  # nor where there is no interval
            text += ". The interval does not exclude zero, so this may be no effect at all"
        yield f"{text}. (Not corrected for selection.)" if len(singles) > 1 else f"{text}."
    if best["accuracy_change_low"] > 0:
        yield (
            f"Ablating the {what} {best['set']} raises out-of-domain accuracy: "
            f"{_change(best)}, to {percent(best['accuracy'])}{_in_domain(overall, best['set'])}."
        )


def _together(row: pd.Series, run: report.RunFolder) -> str:
    """What ablating all of them costs out of domain, against as many control components."""
    from mechcore.evaluation.p_values import FEW_CONTROLS

    members = row["set"].split("+")
    of_core = set(members) == set(run.core)
    what = "the whole core" if of_core else f"the {len(members)} components together"
    others = "components of these kinds" if "MLP" in row["set"] else "heads of each layer"
    change = effect(row["margin_change_beside"], "margin")
    text = f"Without {what} the out-of-domain margin changes by {change}"
    if row["n_controls"] == 0:
        return f"{text}; there are too few other {others} for a comparison."
    ends = (row[f"margin_control_{end}"] for end in ("change", "low", "high"))
    mean, low, high = (effect(end, "margin") for end in ends)
    most = "95 %" if row["n_controls"] >= FEW_CONTROLS else "all"
    return (
        f"{text}, and without as many other {others} by {mean} on average ({most} of "
        f"{count(row['n_controls'], 'set')} between {low} and {high}, "
        f"{p_value(row['margin_p_control'])} against these controls; n = {whole(row['n_beside'])})."
    )


def _in_domain(overall: pd.DataFrame, name: str) -> str:
    inside = overall[(overall["split"] == "id") & (overall["set"] == name)]
    changes = listed([_change(row) for _, row in inside.iterrows()])
    return f"; in-domain accuracy changes by {changes}" if changes else ""


def _change(row: pd.Series) -> str:
    change, low, high = (row[f"accuracy_change{end}"] for end in ("", "_low", "_high"))
    return f"{with_interval(change, low, high, 'accuracy', unit=True)} on {row['data']}"
