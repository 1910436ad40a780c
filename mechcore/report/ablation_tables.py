"""Tables of ablated sets, and a note on the fill."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from mechcore.ablation.effects.changes import ABLATION, CONTROL_COLUMNS, CONTROLLED, METRIC, SET
from mechcore.ablation.joint.exact import DIVIDENDS, INTERACTIONS, SHAPLEY, directions
from mechcore.evaluation.p_values import FEW_CONTROLS
from mechcore.report.ablation_figures import saturated
from mechcore.report.blocks import Paragraph, Shown, Table, table_of
from mechcore.report.groups import PLACED, placed
from mechcore.report.run_folder import RunFolder
from mechcore.tables import Column
from mechcore.wording import ALL, SIGNIFICANT, effect, with_interval

_FILLED = {
    "zero": "zeros",
    "resample": "its output at a random token of the training data",
    "counterfactual": "its output on an example of another label",
}


def fill_note(run: RunFolder) -> Iterator[Paragraph]:
    """A note on the fill, unless it is the mean."""
    fill = str(run.analyses.get("fill", "mean"))
    if fill != "mean":
        what = _FILLED.get(fill, f"the output of the fill {fill}")
        text = f"Here the output of an ablated component is replaced by {what}, not by its mean."
        yield Paragraph(text, note=True)


def ablated(run: RunFolder) -> str:
    """A noun for what is ablated: a core head, or a named component."""
    settings = run.analyses.get(ABLATION.name) or {}
    named = settings.get("components") or settings.get("sets")
    return "component" if named else "core head"


def share_tables(run: RunFolder) -> Iterator[Table]:
    """Shapley values and dividends over all examples, each in the unit of its metric."""
    beyond = "the change of a set beyond those of all its subsets"
    for schema, name, caption in (
        (SHAPLEY, "shapley", "Shapley values: each component's share of the joint change"),
        (DIVIDENDS, "dividend", f"Dividends: {beyond}; every subset is in dividends.csv"),
    ):
        table = run.filled(schema.name)
        if table is not None:
            rows = placed(table[table["subset"] == ALL])
            ends = (rows[end] for end in (name, "low", "high"))
            values = [with_interval(*row) for row in zip(*ends, rows["metric"], strict=True)]
            shown: list[Shown] = [SET.called("set"), PLACED, "metric", (name, values)]
            yield table_of(rows, schema, caption, shown, folded=len(rows) > 40)


def control_table(ablation: pd.DataFrame, what: str) -> Iterator[Table]:
    """Ablated sets and their controls, each row in the unit of its metric, if there are any."""
    if "n_controls" not in ablation or ablation["n_controls"].isna().all():
        return
    overall = placed(ablation[(ablation["subset"] == ALL) & ablation["n_controls"].notna()])
    caption = (
        f"{what}s, alone and together, against controls: as many other heads per layer, and as "
        f"many MLPs; in brackets the range of 95 % of controls (of all if fewer than "
        f"{FEW_CONTROLS}); p: of a change as large among controls (points for accuracy, nats for "
        "the margin; n examples)"
    )
    parts = []
    for metric in ("accuracy", "margin"):
        own = (effect(change, metric, unit=False) for change in overall[f"{metric}_change_beside"])
        ends = (overall[f"{metric}_control_{end}"] for end in ("change", "low", "high"))
        beside = (with_interval(*row) for row in zip(*ends, [metric] * len(overall), strict=True))
        p = overall[f"{metric}_p_control"]
        parts.append(overall.assign(metric=metric, own=[*own], beside=[*beside], p_control=p))
    rows = pd.concat(parts).sort_index(kind="stable")
    shown: list[Shown] = [SET.called("set"), PLACED, CONTROLLED["n_beside"].called("n"), METRIC]
    shown += [("change", [*rows["own"]]), ("change without controls", [*rows["beside"]])]
    shown += [CONTROLLED["n_controls"].called("controls"), CONTROL_COLUMNS[-1]]
    yield table_of(rows, CONTROLLED, caption, shown)


def ablation_table(ablation: pd.DataFrame, caption: str, *, folded: bool) -> Table:
    """Changes over all examples without each set."""
    overall = placed(ablation[ablation["subset"] == ALL])
    shown: list[Shown] = [
        "set",
        PLACED,
        "accuracy_change",
        "margin_change",
        "accuracy",
        "margin",
        "n",
    ]
    return table_of(overall, ABLATION, caption, shown, folded=folded)


def interaction_table(overall: pd.DataFrame, caption: str = "", *, folded: bool = False) -> Table:
    """Interactions, each in the unit of its metric."""
    rows, metrics = placed(overall), overall["metric"]
    shown: list[Shown] = [SET.called("set"), PLACED, "metric"]
    for name in ("joint_change", "sum_of_single_changes"):
        changes = zip(rows[name], metrics, strict=True)
        shown.append((INTERACTIONS[name].heading, [effect(*row, unit=False) for row in changes]))
    ends = (rows[name] for name in ("interaction", "low", "high"))
    values = [with_interval(*row) for row in zip(*ends, metrics, strict=True)]
    signs = directions(rows, SIGNIFICANT)
    numbers = zip(rows["low"], rows["high"], rows["p"], signs, saturated(overall), strict=True)
    rows["verdict"] = [_verdict(*row) + "; change saturates" * limit for *row, limit in numbers]
    shown.append(("interaction", values))
    if "interaction_in_search" in rows:
        seen = zip(rows["interaction_in_search"], metrics, strict=True)
        shown.append(("in the search half", [effect(*row, unit=False) for row in seen]))
    shown.append(Column("verdict", "text", header="verdict"))
    return table_of(rows, INTERACTIONS, caption, shown, folded=folded)


def _verdict(low: float, high: float, p: float, sign: int) -> str:
    if sign:
        return "superadditive" if sign < 0 else "subadditive"
    if low <= 0 <= high:
        return "includes zero"
    if p == 1:  # an interval that excludes zero only by rounding
        return "no more than rounding"
    return "not known" if math.isnan(low) else "not after correction"
