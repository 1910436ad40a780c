"""The sections on ablated sets: what each costs, and what sets cost beyond their members."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from mechcore.ablation.controls import ABLATION_CONTROLS
from mechcore.ablation.effects import ABLATION, SET
from mechcore.ablation.superadditivity import INTERACTIONS, directions
from mechcore.evaluation.p_values import FEW_CONTROLS
from mechcore.report import ablation_figures, figures, interaction_figures
from mechcore.report.blocks import (
    AS_FIGURE,
    Block,
    Drawing,
    Paragraph,
    Section,
    Shown,
    Table,
    not_run,
    table_of,
)
from mechcore.report.groups import (
    PLACED,
    data_sets,
    one_label_notes,
    placed,
    population_note,
    subsets_of,
)
from mechcore.report.interaction_sentences import interaction_sentences
from mechcore.report.run_folder import SINGLE, RunFolder
from mechcore.tables import Column
from mechcore.wording import ALL, SIGNIFICANT, effect, role_name, with_interval

_FILLED = {
    "zero": "zeros",
    "resample": "its output at a random token of the training data",
    "counterfactual": "its output on an example of another label",
}


def ablation_section(run: RunFolder) -> Section:
    """Drops without core heads, alone and together, and without every component alone."""
    title, files = "Ablation", ["ablation.csv", "ablation_controls.csv", "sweep.csv"]
    ablation, controls, sweep = map(run.table, ("ablation", "ablation_controls", "sweep"))
    blocks: list[Block] = (
        [*not_run("ablation", title, "the ablation of core heads from the full model").blocks]
        if ablation is None
        else [*_sets(run, ablation)]
    )
    if controls is not None and len(controls):
        blocks.append(_control_table(controls))
    if text := _other_fill(run):
        blocks.insert(0, Paragraph(text, note=True))
    drops = [table for table in (ablation, sweep) if table is not None]
    blocks += one_label_notes(run, pd.concat(drops)) if drops else []
    if sweep is not None and len(sweep):
        blocks += _every_component(sweep)
    return Section("ablation", title, blocks, files)


def _other_fill(run: RunFolder) -> str:
    """What replaces ablated outputs where it is not their mean; empty where it is."""
    fill = str(run.analyses.get("fill", "mean"))
    if fill == "mean":
        return ""
    what = _FILLED.get(fill, f"what the fill {fill} gives")
    return f"Here the output of what is ablated is replaced by {what}, not by its mean."


def _sets(run: RunFolder, ablation: pd.DataFrame) -> Iterator[Block]:
    if len(ablation) == 0:
        yield Paragraph(f"There was no head to ablate: {run.no_core}.", note=True)
        return
    n_sets = ablation["set"].nunique()
    drawn = len(figures.sets_to_draw(ablation))
    left_out = (
        f" Of {n_sets} sets, {drawn} are drawn: all but the joint sets with smaller changes of "
        "accuracy out of domain."
        if drawn < n_sets
        else ""
    )
    how = "To the left of zero the model is worse without them. "
    lines = "Lines are 95 % intervals over examples." + left_out
    if (ablation["kind"] == SINGLE).any():
        together = " and together" if n_sets > 1 else ""
        yield Paragraph(f"Heads are ablated in the full model, alone{together}.")
    else:
        yield Paragraph(
            f"{run.no_core.capitalize()}, so no core head was ablated; the other heads show what "
            "is usual.",
            note=True,
        )
    for metric in ("accuracy", "margin"):
        yield Drawing(
            figures.ablation_drops(ablation, metric),
            f"ablation-{metric}",
            f"Change of {metric} over all examples without a set of heads. {how}{lines}",
            f"Dot plot of the change of {metric} by set; its numbers are in the table below.",
        )
    for i, (role, data) in enumerate(data_sets(ablation)):
        if len(subsets_of(ablation, role, data)) > 2:
            yield Drawing(
                figures.ablation_by_subset(ablation, role, data),
                f"ablation-subsets-{i + 1}",
                f"Change of accuracy in points by subset of {data} ({role_name(role)}).{left_out}",
                f"Heatmap of changes of accuracy, ablated sets by subsets of {data}; "
                "the numbers are in ablation.csv, with the other sign.",
                fold=f"By subset of {data} (in-domain)" if role == "id" else "",
            )
    yield from population_note(ablation)
    caption = "Ablation over all examples, with intervals; every subset is in ablation.csv"
    yield _ablation_table(ablation, caption, folded=n_sets > 20)


def _control_table(controls: pd.DataFrame) -> Table:
    """The core and its heads beside other heads, each row in the unit of its metric."""
    rows = placed(controls[controls["subset"] == ALL])
    own = zip(-rows["drop"], rows["metric"], strict=True)
    ends = (-rows[f"control_{name}"] for name in ("drop", "high", "low"))
    beside = zip(*ends, rows["metric"], strict=True)
    caption = (
        "Core heads, alone and together, beside other heads: as many of each layer, outside the "
        f"core; in brackets what 95 % of these (all of fewer than {FEW_CONTROLS}) are between, and "
        "p of so large a change among them (points for accuracy, nats for the margin; n examples)"
    )
    shown: list[Shown] = [SET.called("set"), PLACED, "n", "metric"]
    shown += [("change", [effect(*each, unit=False) for each in own])]
    shown += [("change without other heads", [with_interval(*each) for each in beside])]
    shown += [ABLATION_CONTROLS["n_controls"].called("sets of these"), "p_control"]
    return table_of(rows, ABLATION_CONTROLS, caption, shown)


def _every_component(sweep: pd.DataFrame) -> Iterator[Block]:
    overall = sweep[sweep["subset"] == ALL]
    n = overall["set"].nunique()
    yield Paragraph(f"Each of {n} components was also ablated alone.")
    if len(ablation_figures.by_components(overall, 1)):
        for metric in ("accuracy", "margin"):
            yield Drawing(
                ablation_figures.single_drops(overall, metric),
                f"single-drops-{metric}",
                f"Change of {metric} over all examples without each single component. Red: the "
                "model is worse without it; blue: better.",
                f"Grid, layer by head, of the change of {metric}; its numbers are in the table.",
                fold=f"Change of {metric} without each component{AS_FIGURE}",
            )
    yield from population_note(sweep)
    caption = f"All {n} components, each ablated alone; every subset is in sweep.csv"
    yield _ablation_table(sweep, caption, folded=True)


def _ablation_table(ablation: pd.DataFrame, caption: str, folded: bool) -> Table:
    overall = placed(ablation[ablation["subset"] == ALL])
    shown: list[Shown] = ["set", PLACED, "n", "accuracy", "accuracy_drop", "margin", "margin_drop"]
    return table_of(overall, ABLATION, caption, shown, folded=folded)


# -- interactions -------------------------------------------------------------------------------


def interactions_section(run: RunFolder) -> Section:
    """What sets of core heads cost beyond their members."""
    title, table = "Interactions", run.table("interactions")
    if table is None:
        return not_run("interactions", title, "the joint ablation of sets of core heads")
    blocks = [*_interactions(run, table)]
    return Section("interactions", title, blocks, ["interactions.csv"])


def _interactions(run: RunFolder, table: pd.DataFrame) -> Iterator[Block]:
    if len(table) == 0:
        few = run.no_core if run.no_masks else "the core has fewer than two heads"
        text = f"There is no interaction to report: {few}."
        yield Paragraph(text, note=True)
        return
    for sentence in interaction_sentences(run):
        yield Paragraph(sentence)
    yield from one_label_notes(run, table)
    overall = table[table["subset"] == ALL]
    drawn = ablation_figures.largest_interactions(overall)
    n_sets = overall["set"].nunique()
    left_out = (
        f" Of {n_sets} sets the {len(drawn)} with the largest interaction on a margin, in either "
        "direction, are drawn."
        if len(drawn) < n_sets
        else ""
    )
    hollow = (
        " Hollow marks: accuracy has so little left to lose, or to gain, that the joint change "
        "saturates; go by the margin there."
        if interaction_figures.saturated(table).any()
        else ""
    )
    yield Drawing(
        interaction_figures.interactions(table, drawn),
        "interactions",
        "Interaction of jointly ablated heads: the joint change less the sum of the single "
        f"changes. To the left of zero the set is superadditive.{hollow}{left_out}",
        "Dot plot of interactions on accuracy and margin; the numbers are in the table below.",
    )
    largest = str(overall["set"].iloc[int(overall["size"].argmax())])
    if (table["subset"] != ALL).any():
        yield Drawing(
            interaction_figures.interactions_by_subset(table, largest),
            "interactions-subsets",
            f"The interaction of {largest}, the largest set, on every subset.",
            "Dot plot of one set's interaction by subset; its numbers are in interactions.csv.",
        )
    caption = "Interactions over all examples, with intervals; every subset is in interactions.csv"
    yield interaction_table(overall, caption, folded=len(overall) > 40)


def interaction_table(overall: pd.DataFrame, caption: str = "", *, folded: bool = False) -> Table:
    """Interactions, each in the unit of its metric."""
    rows, metrics = placed(overall), overall["metric"]
    sides = {
        INTERACTIONS[name].heading: [
            effect(*row, unit=False) for row in zip(-rows[name], metrics, strict=True)
        ]
        for name in ("joint_drop", "sum_of_single_drops")
    }
    ends = (-rows[name] for name in ("interaction", "high", "low"))
    parts = zip(*ends, metrics, strict=True)
    values = [with_interval(*row) for row in parts]
    limits = interaction_figures.saturated(overall)
    signs = directions(rows, SIGNIFICANT)
    numbers = zip(rows["low"], rows["high"], rows["p"], signs, limits, strict=True)
    rows["verdict"] = [_verdict(*row) + "; change saturates" * limit for *row, limit in numbers]
    shown: list[Shown] = [SET.called("set"), PLACED, "metric", *sides.items()]
    shown += [("interaction", values), Column("verdict", "text", header="verdict")]
    return table_of(rows, INTERACTIONS, caption, shown, folded=folded)


def _verdict(low: float, high: float, p: float, sign: int) -> str:
    if sign:
        return "superadditive" if sign > 0 else "subadditive"
    if low <= 0 <= high:
        return "includes zero"
    if p == 1:  # the interval that leaves out zero is that of rounding
        return "no more than rounding"
    return "not known" if math.isnan(low) else "not after correction"
