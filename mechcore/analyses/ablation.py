"""What the core costs: its heads ablated alone and together, beside other heads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mechcore.analyses.base import Analysis, of_study, tables_in
from mechcore.analyses.sweep import Ablating
from mechcore.settings import check, setting
from mechcore.steps.base import CORE, SHARED, Size, core_of, inputs_of, means_of
from mechcore.steps.config import TEST_ROLES
from mechcore.study.step import Job, Work
from mechcore.wording import (
    ALL,
    count,
    effect,
    listed,
    p_value,
    percent,
    role_name,
    whole,
    with_interval,
)

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.report.blocks import Block, Shown, Table, Tile
    from mechcore.report.run_folder import RunFolder


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
    shows: ClassVar[tuple[str, ...]] = ("ablation", "ablation_controls")
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

    @classmethod
    def blocks(cls, run: RunFolder) -> Iterator[Block]:
        """Changes without core heads, alone and together, and beside other heads."""
        from mechcore.report.ablation_tables import ablation_table, fill_note
        from mechcore.report.blocks import Paragraph, missing
        from mechcore.report.groups import one_label_notes, population_note
        from mechcore.report.run_folder import SINGLE

        ablation, controls = run.table("ablation"), run.filled("ablation_controls")
        if ablation is None:
            yield missing("the ablation of core heads from the full model")
            return
        yield from fill_note(run)
        if ablation.empty:
            yield Paragraph(f"There was no head to ablate: {run.no_core}.", note=True)
            return
        n_sets = ablation["set"].nunique()
        if (ablation["kind"] == SINGLE).any():
            together = " and together" if n_sets > 1 else ""
            yield Paragraph(f"Heads are ablated in the full model, alone{together}.")
        else:
            text = f"{run.no_core.capitalize()}, so no core head was ablated; the other heads show "
            yield Paragraph(f"{text}what is usual.", note=True)
        yield from _drawings(ablation, n_sets)
        yield from population_note(ablation)
        caption = "Ablation over all examples, with intervals; every subset is in ablation.csv"
        yield ablation_table(ablation, caption, folded=n_sets > 20)
        if controls is not None:
            yield _control_table(controls)
        yield from one_label_notes(run, ablation)

    @classmethod
    def headlines(cls, run: RunFolder) -> Iterator[str]:
        """What single core heads, and the whole core, change out of domain."""
        ablation, controls = run.table("ablation"), run.filled("ablation_controls")
        if ablation is not None:
            yield from _single_heads(run, ablation[ablation["subset"] == ALL], controls)
        core = _beside(controls, "margin")
        if core is not None:
            yield _whole_core(core)

    @classmethod
    def tiles(cls, run: RunFolder) -> Iterator[Tile]:
        """The core head that costs most out of domain."""
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
    chosen = (table["kind"] == SINGLE) & (table["role"] == "ood") & (table["subset"] == ALL)
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
            f"Change of {metric} over all examples without a set of heads. To the left of zero the "
            f"model is worse without them. Lines are 95 % intervals over examples.{left_out}",
            f"Dot plot of the change of {metric} by set; its numbers are in the table below.",
        )
    for i, (role, data) in enumerate(data_sets(ablation), start=1):
        if len(subsets_of(ablation, role, data)) > 2:
            yield Drawing(
                figures.ablation_by_subset(ablation, role, data),
                f"ablation-subsets-{i}",
                f"Change of accuracy in points by subset of {data} ({role_name(role)}).{left_out}",
                f"Heatmap of changes of accuracy, ablated sets by subsets of {data}; "
                "the numbers are in ablation.csv.",
                fold=f"By subset of {data} (in-domain)" if role == "id" else "",
            )


def _control_table(controls: pd.DataFrame) -> Table:
    """The core and its heads beside other heads, each row in the unit of its metric."""
    from mechcore.ablation.controls import ABLATION_CONTROLS
    from mechcore.ablation.effects import SET
    from mechcore.evaluation.p_values import FEW_CONTROLS
    from mechcore.report.blocks import table_of
    from mechcore.report.groups import PLACED, placed

    rows = placed(controls[controls["subset"] == ALL])
    metrics, ends = rows["metric"], (rows[f"control_{name}"] for name in ("change", "low", "high"))
    caption = (
        "Core heads, alone and together, beside other heads: as many of each layer, outside the "
        f"core; in brackets what 95 % of these (all of fewer than {FEW_CONTROLS}) are between, and "
        "p of so large a change among them (points for accuracy, nats for the margin; n examples)"
    )
    shown: list[Shown] = [SET.called("set"), PLACED, "n", "metric"]
    own, beside = zip(rows["change"], metrics, strict=True), zip(*ends, metrics, strict=True)
    shown += [("change", [effect(*row, unit=False) for row in own])]
    shown += [("change without other heads", [with_interval(*row) for row in beside])]
    shown += [ABLATION_CONTROLS["n_controls"].called("sets of these"), "p_control"]
    return table_of(rows, ABLATION_CONTROLS, caption, shown)


def _single_heads(
    run: RunFolder, overall: pd.DataFrame, controls: pd.DataFrame | None
) -> Iterator[str]:
    """The core head whose ablation lowers out-of-domain accuracy most, and one that raises it."""
    from mechcore.report.run_folder import SINGLE

    singles = overall[(overall["kind"] == SINGLE) & (overall["role"] == "ood")]
    if singles.empty:
        return
    if singles["accuracy_change"].isna().all():
        yield "What ablating a single core head does to out-of-domain accuracy is not known."
        return
    several, worst = singles["set"].nunique() > 1, _worst_single(run)
    if worst is None:
        heads = "any core head" if several else "the core head"
        yield f"Ablating {heads} alone does not lower out-of-domain accuracy."
    else:
        yield _worst(worst, overall, _beside(controls, "accuracy", worst["set"]), several)
    gains = singles[singles["accuracy_change_low"] > 0]  # False where there is no interval
    if len(gains):
        best = gains.iloc[int(gains["accuracy_change"].argmax())]
        yield (
            f"Without the core head {best['set']} out-of-domain accuracy is higher: "
            f"{_change(best)}, at {percent(best['accuracy'])}{_in_domain(overall, best['set'])}."
        )


def _worst(worst: pd.Series, overall: pd.DataFrame, beside: pd.Series | None, several: bool) -> str:
    which, most = ("Of the core heads, ablating", " most") if several else ("Ablating", "")
    text = (
        f"{which} {worst['set']} alone lowers out-of-domain accuracy{most}: {_change(worst)}, to "
        f"{percent(worst['accuracy'])}{_in_domain(overall, worst['set'])}"
    )
    if beside is not None and beside["n_controls"] > 0:
        change = effect(beside["control_change"], "accuracy")
        heads = count(beside["n_controls"], "other head")
        text += f". Ablating one of {heads} of its layer changes it by {change} on average"
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
    rows = controls[(controls["role"] == "ood") & (controls["subset"] == ALL)]
    rows = rows[rows["metric"] == metric]
    rows = rows[rows["set"] == name] if name else rows[rows["size"] > 1]
    return None if rows.empty else rows.iloc[0]


def _whole_core(row: pd.Series) -> str:
    """What the whole core costs out of domain, beside as many other heads."""
    from mechcore.evaluation.p_values import FEW_CONTROLS

    change = effect(row["change"], "margin")
    text = f"Without the whole core the out-of-domain margin changes by {change}"
    if row["n_controls"] == 0:
        return f"{text}; its layers have too few other heads for sets to compare that with."
    mean, low, high = (row[f"control_{end}"] for end in ("change", "low", "high"))
    ends = (effect(end, "margin", unit=False) for end in (low, high))
    sets = count(row["n_controls"], "set")
    most = "95 %" if row["n_controls"] >= FEW_CONTROLS else "all"
    return (
        f"{text}, and without as many other heads of each layer by {effect(mean, 'margin')} on "
        f"average ({most} of {sets} between {' and '.join(ends)}, {p_value(row['p_control'])} of "
        f"so large a change among these; n = {whole(row['n'])})."
    )


def _in_domain(overall: pd.DataFrame, name: str) -> str:
    inside = overall[(overall["role"] == "id") & (overall["set"] == name)]
    changes = listed([_change(row) for _, row in inside.iterrows()])
    return f"; in-domain accuracy changes by {changes}" if changes else ""


def _change(row: pd.Series) -> str:
    change, low, high = (row[f"accuracy_change{end}"] for end in ("", "_low", "_high"))
    return f"{with_interval(change, low, high, 'accuracy', unit=True)} on {row['data']}"
