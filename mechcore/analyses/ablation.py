"""What the core costs, or components in its place: ablated alone and together, beside others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mechcore.analyses.base import Analysis, of_study, tables_in
from mechcore.analyses.sweep import AblatingNamed
from mechcore.components import KINDS, ModelShape, parse_components
from mechcore.errors import InputError
from mechcore.settings import check, setting
from mechcore.steps.base import CORE, SHARED, Size, inputs_of, means_of
from mechcore.steps.config import TEST_SPLITS
from mechcore.study.step import Job, Work
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
    from mechcore.report.blocks import Block, Shown, Table, Tile
    from mechcore.report.run_folder import RunFolder
    from mechcore.steps.inputs import Inputs


@dataclass(frozen=True)
class Ablation(AblatingNamed, Analysis):
    """Ablation of the core's heads, or of components, alone and together, beside others."""

    kind: ClassVar[str] = "ablation"
    title: ClassVar[str] = "Ablation"
    label: ClassVar[str] = "ablation alone and together"
    needs: ClassVar[tuple[str, ...]] = ("means", "core")
    reads: ClassVar[tuple[str, ...]] = ("swept",)
    shows: ClassVar[tuple[str, ...]] = ("ablation", "ablation_controls", "shapley", "dividends")
    splits: ClassVar[tuple[str, ...]] = TEST_SPLITS
    schemas = tables_in(
        "mechcore.ablation.effects.changes:ABLATION",
        "mechcore.ablation.interactions.exact:INTERACTIONS",
        "mechcore.ablation.effects.stability:INTERACTION_STABILITY",
        "mechcore.ablation.effects.controls:ABLATION_CONTROLS",
        "mechcore.ablation.interactions.dividends:DIVIDENDS",
        "mechcore.ablation.interactions.dividends:SHAPLEY",
    )

    sets: tuple[str, ...] = setting((), "Sets to ablate besides: L1.H0+L2.MLP,L0.H3+L1.H1.")
    subsets: bool = setting(
        False, "Ablate all subsets of the components named, 10 at most, for their Shapley values."
    )
    max_joint: int = setting(
        4, "Components to ablate in pairs, those that matter most out of domain.", least=0
    )
    max_non_core: int = setting(
        16,
        "Other heads of the same layers, or MLPs, to ablate for comparison, drawn at random.",
        "--max-non-core",
        rare=True,
        least=0,
    )
    controls: int = setting(
        99,
        "Random sets of as many other heads of the same layers, and MLPs, to ablate beside all "
        "components together; all there are, if there are fewer.",
        least=0,
    )
    control_examples: int = setting(
        100, "Examples of each kind of test data for these, at most.", least=1
    )
    names: Mapping[str, str] = of_study()
    n_resamples: int = of_study()

    def __post_init__(self) -> None:
        check(self, "ablation")
        self.check_components()
        for text in self.sets:
            if not parse_components(text.split("+")):
                raise InputError(
                    f"ablation: the set {text!r} contains no component; example: L1.H0+L2.MLP"
                )
        if self.subsets and not self.components:
            raise InputError(
                "ablation: subsets are those of components that are named, and none is; name 2 to "
                "10 (--components), or leave subsets out"
            )

    def may_read(self) -> Sequence[str]:
        """See `MainStep.may_read`; the core's heads are among what is swept."""
        return () if self.components else self.reads

    @property
    def further(self) -> list[ComponentSet]:
        """The sets besides."""
        from mechcore.ablation import ComponentSet

        return [ComponentSet.of(text.split("+")) for text in self.sets]

    def check_inputs(self, inputs: Inputs) -> None:
        """See `Analysis.check_inputs`."""
        from mechcore.ablation.sets import MOST_EXACT

        shape = ModelShape.of(inputs.model)
        n = len(self.named(shape))
        for each in self.further:
            each.mask(shape)
        if self.subsets and not 2 <= n <= MOST_EXACT:
            raise InputError(
                f"ablation: {n} component{'s' * (n > 1)} named; expected 2 to {MOST_EXACT} for all "
                "subsets (--components)"
            )

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        named = [size.components(name) if name in KINDS else 1 for name in self.components]
        n = sum(named) or CORE * size.n_heads
        paired = min(self.max_joint, n)
        n_sets = paired * (paired - 1) / 2 + len(self.sets) + self.subsets * 2**n
        if "swept" not in job.needs:
            n_sets += n + self.max_non_core
        sampled = sum(min(self.control_examples, size.examples.get(r, 0)) for r in TEST_SPLITS)
        return SHARED * (n_sets * size.tested + self.controls * sampled)

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.steps.ablation import ablations_in
        from mechcore.steps.core_ablation import core_ablation_tables

        inputs = inputs_of(work)
        means, members = means_of(work, inputs), self.members(work, ModelShape.of(inputs.model))
        known = ablations_in(work.needed("swept"), self.names) if "swept" in work.job.needs else {}
        return core_ablation_tables(inputs, means, members, self, known, work.partial)

    @classmethod
    def blocks(cls, run: RunFolder) -> Iterator[Block]:
        """Changes without components, alone and together, and beside others."""
        from mechcore.report.ablation_tables import ablated, ablation_table, fill_note, share_tables
        from mechcore.report.blocks import Paragraph, missing
        from mechcore.report.groups import one_label_notes, population_note
        from mechcore.report.run_folder import SINGLE

        ablation, controls = run.table("ablation"), run.filled("ablation_controls")
        if ablation is None:
            yield missing(f"the ablation of {ablated(run)}s from the full model")
            return
        yield from fill_note(run)
        if ablation.empty:
            yield Paragraph(f"There was no head to ablate: {run.no_core}.", note=True)
            return
        n_sets = ablation["set"].nunique()
        if (ablation["kind"] == SINGLE).any():
            together = " and together" if n_sets > 1 else ""
            what = ablated(run).capitalize()
            yield Paragraph(f"{what}s are ablated in the full model, alone{together}.")
        else:
            text = f"{run.no_core.capitalize()}, so no core head was ablated; the other heads show "
            yield Paragraph(f"{text}what is usual.", note=True)
        yield from _drawings(ablation, n_sets)
        yield from population_note(ablation)
        caption = "Ablation over all examples, with intervals; every subset is in ablation.csv"
        yield ablation_table(ablation, caption, folded=n_sets > 20)
        if controls is not None:
            yield _control_table(controls, ablated(run).capitalize())
        yield from share_tables(run)
        yield from one_label_notes(run, ablation)

    @classmethod
    def headlines(cls, run: RunFolder) -> Iterator[str]:
        """What single components, and all of them, change out of domain."""
        ablation, controls = run.table("ablation"), run.filled("ablation_controls")
        if ablation is not None:
            yield from _single_heads(run, ablation[ablation["subset"] == ALL], controls)
        core = _beside(controls, "margin")
        if core is not None:
            yield _together(core, run)

    @classmethod
    def tiles(cls, run: RunFolder) -> Iterator[Tile]:
        """The component that costs most out of domain."""
        from mechcore.report.blocks import Tile
        from mechcore.report.groups import over_subsets

        worst = _worst_single(run)
        if worst is not None:
            value = f"{effect(worst['accuracy_change'], 'accuracy', unit=False)} points"
            subsets = over_subsets(run.table("accuracy"), "ood", worst["data"])
            yield Tile(f"Without {worst['set']}, out-of-domain", value, f"{worst['data']}{subsets}")


def _worst_single(run: RunFolder) -> pd.Series | None:
    """The single ablation with the lowest change over all examples of an out-of-domain set."""
    from mechcore.report.run_folder import SINGLE

    table = run.table("ablation")
    if table is None:
        return None
    chosen = (table["kind"] == SINGLE) & (table["split"] == "ood") & (table["subset"] == ALL)
    singles = table[chosen].dropna(subset=["accuracy_change"])
    if len(singles) == 0 or singles["accuracy_change"].min() >= 0:
        return None
    return singles.iloc[int(singles["accuracy_change"].argmin())]


def _drawings(ablation: pd.DataFrame, n_sets: int) -> Iterator[Block]:
    from mechcore.report import figures
    from mechcore.report.blocks import Drawing
    from mechcore.report.groups import data_sets, subsets_of

    drawn = len(figures.sets_to_draw(ablation))
    left_out = (drawn < n_sets) * (
        f" Of {n_sets} sets, {drawn} are drawn: all but the joint sets with smaller changes of "
        "accuracy out of domain."
    )
    for metric in ("accuracy", "margin"):
        yield Drawing(
            figures.ablation_changes(ablation, metric),
            f"ablation-{metric}",
            f"Change of {metric} over all examples without each set. To the left of zero the model "
            f"is worse without it. Lines are 95 % intervals over examples.{left_out}",
            f"Dot plot of the change of {metric} by set; its numbers are in the table below.",
        )
    for i, (split, data) in enumerate(data_sets(ablation), start=1):
        if len(subsets_of(ablation, split, data)) > 2:
            yield Drawing(
                figures.ablation_by_subset(ablation, split, data),
                f"ablation-subsets-{i}",
                f"Change of accuracy in points by subset of {data} ({split_name(split)})."
                f"{left_out}",
                f"Heatmap of changes of accuracy, ablated sets by subsets of {data}; "
                "the numbers are in ablation.csv.",
                fold=f"By subset of {data} (in-domain)" if split == "id" else "",
            )


def _control_table(controls: pd.DataFrame, what: str) -> Table:
    """What was ablated beside others, each row in the unit of its metric."""
    from mechcore.ablation.effects.changes import SET
    from mechcore.ablation.effects.controls import ABLATION_CONTROLS
    from mechcore.evaluation.p_values import FEW_CONTROLS
    from mechcore.report.blocks import table_of
    from mechcore.report.groups import PLACED, placed

    rows = placed(controls[controls["subset"] == ALL])
    metrics, ends = rows["metric"], (rows[f"control_{name}"] for name in ("change", "low", "high"))
    caption = (
        f"{what}s, alone and together, beside others: as many heads of each layer, and as many "
        f"MLPs; in brackets what 95 % of these (all of fewer than {FEW_CONTROLS}) are between, and "
        "p of so large a change among them (points for accuracy, nats for the margin; n examples)"
    )
    shown: list[Shown] = [SET.called("set"), PLACED, "n", "metric"]
    own, beside = zip(rows["change"], metrics, strict=True), zip(*ends, metrics, strict=True)
    shown += [("change", [effect(*row, unit=False) for row in own])]
    shown += [("change without others", [with_interval(*row) for row in beside])]
    shown += [ABLATION_CONTROLS["n_controls"].called("sets of these"), "p_control"]
    return table_of(rows, ABLATION_CONTROLS, caption, shown)


def _single_heads(
    run: RunFolder, overall: pd.DataFrame, controls: pd.DataFrame | None
) -> Iterator[str]:
    """The component whose ablation lowers out-of-domain accuracy most, and one that raises it."""
    from mechcore.report.ablation_tables import ablated
    from mechcore.report.run_folder import SINGLE

    what = ablated(run)
    singles = overall[(overall["kind"] == SINGLE) & (overall["split"] == "ood")]
    if singles.empty:
        return
    if singles["accuracy_change"].isna().all():
        yield f"What ablating a single {what} does to out-of-domain accuracy is not known."
        return
    several, worst = singles["set"].nunique() > 1, _worst_single(run)
    if worst is None:
        which = "any" if several else "the"
        yield f"Ablating {which} {what} alone does not lower out-of-domain accuracy."
    else:
        lead = f"Of the {what}s, ablating" if several else "Ablating"
        yield _worst(worst, overall, _beside(controls, "accuracy", worst["set"]), lead, several)
    gains = singles[singles["accuracy_change_low"] > 0]  # False where there is no interval
    if len(gains):
        best = gains.iloc[int(gains["accuracy_change"].argmax())]
        yield (
            f"Without the {what} {best['set']} out-of-domain accuracy is higher: "
            f"{_change(best)}, at {percent(best['accuracy'])}{_in_domain(overall, best['set'])}."
        )


def _worst(
    worst: pd.Series, overall: pd.DataFrame, beside: pd.Series | None, lead: str, several: bool
) -> str:
    most = " most" * several
    text = (
        f"{lead} {worst['set']} alone lowers out-of-domain accuracy{most}: {_change(worst)}, to "
        f"{percent(worst['accuracy'])}{_in_domain(overall, worst['set'])}"
    )
    if beside is not None and beside["n_controls"] > 0:
        change = effect(beside["control_change"], "accuracy")
        is_mlp = worst["set"].endswith("MLP")
        others = count(beside["n_controls"], "other MLP" if is_mlp else "other head")
        others += "" if is_mlp else " of its layer"
        text += f". Ablating one of {others} changes it by {change} on average"
        text += f" ({p_value(beside['p_control'])} of so large a change among these)"
    text += "."
    if worst["accuracy_change_low"] <= 0 <= worst["accuracy_change_high"]:
        text += " The interval includes zero, so this change may be no effect at all."
    if not math.isfinite(worst["accuracy_change_low"]):
        text += " Its interval is not known, so this change may be no effect at all."
    if several:
        text += " (The largest of several; its interval does not allow for that choice.)"
    return text


def _beside(controls: pd.DataFrame | None, metric: str, name: str = "") -> pd.Series | None:
    """A set out of domain beside its controls; without a name the largest set."""
    if controls is None:
        return None
    rows = controls[(controls["split"] == "ood") & (controls["subset"] == ALL)]
    rows = rows[rows["metric"] == metric]
    rows = rows[rows["set"] == name] if name else rows[rows["size"] > 1]
    return None if rows.empty else rows.iloc[0]


def _together(row: pd.Series, run: RunFolder) -> str:
    """What all of them together cost out of domain, beside as many others."""
    from mechcore.evaluation.p_values import FEW_CONTROLS

    change, members = effect(row["change"], "margin"), row["set"].split("+")
    of_core = set(members) == set(run.core)
    what = "the whole core" if of_core else f"the {len(members)} components together"
    others = "components of these kinds" if "MLP" in row["set"] else "heads of each layer"
    text = f"Without {what} the out-of-domain margin changes by {change}"
    if row["n_controls"] == 0:
        return f"{text}; there are too few other {others} for sets to compare that with."
    mean, low, high = (row[f"control_{end}"] for end in ("change", "low", "high"))
    ends = (effect(end, "margin", unit=False) for end in (low, high))
    sets = count(row["n_controls"], "set")
    most = "95 %" if row["n_controls"] >= FEW_CONTROLS else "all"
    return (
        f"{text}, and without as many other {others} by {effect(mean, 'margin')} on "
        f"average ({most} of {sets} between {' and '.join(ends)}, {p_value(row['p_control'])} of "
        f"so large a change among these; n = {whole(row['n'])})."
    )


def _in_domain(overall: pd.DataFrame, name: str) -> str:
    inside = overall[(overall["split"] == "id") & (overall["set"] == name)]
    changes = listed([_change(row) for _, row in inside.iterrows()])
    return f"; in-domain accuracy changes by {changes}" if changes else ""


def _change(row: pd.Series) -> str:
    change, low, high = (row[f"accuracy_change{end}"] for end in ("", "_low", "_high"))
    return f"{with_interval(change, low, high, 'accuracy', unit=True)} on {row['data']}"
