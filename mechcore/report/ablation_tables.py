"""Tables of ablated sets and of cut paths, the graph of paths, and notes on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from mechcore.ablation.effects.changes import ABLATION, CONTROL_COLUMNS, CONTROLLED, METRIC, SET
from mechcore.ablation.joint.exact import DIVIDENDS, INTERACTIONS, SHAPLEY, directions
from mechcore.ablation.paths.dependence import CORE_DEPENDENCE
from mechcore.ablation.paths.tables import PATHS
from mechcore.components import Component
from mechcore.components.names import ANSWER
from mechcore.evaluation.p_values import FEW_CONTROLS
from mechcore.report.ablation_figures import saturated
from mechcore.report.blocks import Drawing, Paragraph, Shown, Table, table_of
from mechcore.report.component_figures import LEAST_DRAWN, Edge, Node, Reading, drawn_of, graph
from mechcore.report.groups import PLACED, placed
from mechcore.report.run_folder import RunFolder
from mechcore.tables import Column
from mechcore.wording import (
    ALL,
    OUT_FIRST,
    PLACES,
    SIGNIFICANT,
    count,
    effect,
    listed,
    whole,
    with_interval,
)

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


def cut_on(run: RunFolder, split: str) -> pd.DataFrame:
    """Changes over all examples of a split from cutting single paths."""
    table = run.tables[PATHS.name]
    return table[(table["subset"] == ALL) & (table["split"] == split)]


def change_of(row: Mapping[Any, Any], change: str, metric: str) -> str:
    """A change with its interval."""
    value, low, high = (row[f"{change}{end}"] for end in ("", "_low", "_high"))
    unit_of = "accuracy" if metric == "information" else metric
    return with_interval(value, low, high, unit_of, unit=True)


def graph_of(
    run: RunFolder,
    metric: str,
    blind: pd.DataFrame,
    readers: Sequence[str],
    senders: tuple[Sequence[str], str],
) -> Drawing:
    """Paths from senders (names, collective name) to ``blind`` readers, and to the answer."""
    sending, who = senders
    core = who == "the core"
    one = "in the core" if core else "a sender"
    noun = ("head of the core", "heads of the core") if core else ("sender",)
    cut, change = cut_on(run, "ood"), f"{metric}_change"
    direct = {row["senders"]: row for row in cut[cut["receiver"] == ANSWER].to_dict("records")}
    without = {(row["receiver"], row["split"]): row for row in blind.to_dict("records")}
    nodes = []
    for name in dict.fromkeys([*readers, *sending]):
        sends = name in sending
        changes = [
            f"{change_of(without[name, split], 'blind_change', metric)} {PLACES[split]}"
            for split in OUT_FIRST
            if (name, split) in without
        ]
        words = f"{name}, {one}." if sends else f"{name}."
        words += f" Paths from {who} cut: {'; '.join(changes)}." if changes else ""
        words += " Path to the answer cut: "
        words += f"{change_of(direct[name], change, metric)} out of domain."
        component = Component.parse(name)
        heading = f"layer {component.layer}" if component.is_head else f"MLP {component.layer}"
        column = (0, component.layer, not component.is_head)
        nodes.append(Node(name, words, column, heading, _SENDER if sends else _READER))
    nodes.append(Node(ANSWER, "The answer: its edges are direct effects on it.", (1,), "", _ANSWER))
    drawn = {node.name for node in nodes}
    ends = [f"{change}{end}" for end in ("", "_low", "_high")]
    edges = [
        Edge(row["senders"], row["receiver"], Reading(*(row[end] for end in ends)))
        for row in cut.dropna(subset=[change]).to_dict("records")
        if {row["senders"], row["receiver"]} <= drawn
    ]
    caption = (
        f"Paths from the {count(len(sending), *noun)} to the "
        f"{count(len(readers), 'component')} that depend on it most, and from all of these "
        f"to the answer. Width: change in {metric} out of domain when only this path is cut "
        f"({whole(cut['n'].max())} examples)."
    )
    if left := len(edges) - len(drawn_of(edges)):
        caption += (
            f" {left} of {len(edges)} paths are not drawn: their changes are below "
            f"{100 * LEAST_DRAWN:.0f} % of the largest."
        )
    legend = [(_SENDER, one), (_READER, "components that depend on it most")]
    figure = graph(nodes, edges, [*legend, (_ANSWER, "the answer")])
    alt = "Graph of paths from layer to layer; effects are in the tables."
    return Drawing(figure, "paths", caption, alt, spots=nodes)


def reader_table(overall: pd.DataFrame, metric: str, readers: Sequence[str], who: str) -> Table:
    """The components that change most when their paths from the senders are cut."""

    def of(split: str, metric: str) -> pd.DataFrame:
        rows = overall[(overall["split"] == split) & (overall["metric"] == metric)]
        return rows.set_index("receiver").reindex(list(readers)).reset_index()

    def column(name: str, header: str, metric: str = metric) -> Column:
        unit = {"unit": "nats"} if metric == "margin" else {"kind": "points"}
        return CORE_DEPENDENCE[name].called(header, signed=True, **unit)

    columns: list[Shown] = [
        "receiver",
        column("change", "without it"),
        column("blind_change", f"blind to {who}"),
        CORE_DEPENDENCE["share"],
        column("control_change", "blind to random heads"),
        CORE_DEPENDENCE["p_control"].called("p"),
    ]
    for split, other, header in (
        ("ood", "threshold", f"threshold, blind to {who}"),
        ("id", metric, f"blind to {who}, in domain"),
    ):
        rows, blind = of(split, other), column("blind_change", header, other)
        if rows["blind_change"].notna().any():
            columns.append((blind.heading, blind.texts(rows)))
    caption = (
        f"The {count(len(readers), 'component')} whose {metric} changes most out of domain "
        f"when blind to {who} (paths cut), with the change without the component and the share of "
        "it, where it is known not to be 0; random heads: as many per layer"
    )
    return table_of(of("ood", metric), CORE_DEPENDENCE, caption, columns)


def kinds_note(outside: pd.DataFrame, readers: Sequence[str], who: str) -> Paragraph:
    """A note on whether each effect is on information, the threshold or both."""
    differs = (outside["blind_change_low"] > 0) | (outside["blind_change_high"] < 0)
    names: dict[tuple[bool, ...], list[str]] = {}
    for name in readers:
        kinds = tuple(bool(differs.loc[name, metric]) for metric in ("information", "threshold"))
        names.setdefault(kinds, []).append(name)
    parts = [f"{what} for {listed(names[kinds])}" for kinds, what in _KINDS if kinds in names]
    texts = [f"cutting the paths from {who} changes {'; '.join(parts)}"] if parts else []
    if neither := names.get((False, False)):
        texts.append(
            f"neither information nor the threshold is shown to change for {listed(neither)}"
        )
    text = f"Out of domain, judged by intervals, {'; '.join(texts)}."
    return Paragraph(f"{text} An effect that is not shown may still exist.")


def cut_table(run: RunFolder, metric: str, *, direct: bool) -> Table:
    """Direct effects on the answer, or all other paths, largest first."""
    change = f"{metric}_change"
    cut = {split: cut_on(run, split).set_index("set") for split in OUT_FIRST}
    outside = cut["ood"]
    alone = (outside["receiver"] == ANSWER) & ~outside["senders"].str.contains("+", regex=False)
    outside = outside[alone == direct]
    order = outside[change].abs().sort_values(ascending=False, kind="stable").index
    ends = {"senders": "component"} if direct else {n: n for n in ("senders", "receiver", "input")}
    columns: list[Shown] = [(ends[n], [*outside.loc[order, n]]) for n in ends]
    for split, table in cut.items():
        shown = PATHS[change].called(f"{metric} {PLACES[split]}")
        columns.append((shown.heading, shown.texts(table.loc[order])))
    which = "a component to the answer" if direct else "the senders to a receiver"
    caption = f"Change from cutting the path from {which}: all {len(order)}"
    return table_of(outside, PATHS, caption, columns, folded=direct)


_KINDS = (
    ((True, False), "only information"),
    ((False, True), "only the threshold"),
    ((True, True), "information and the threshold"),
)
_SENDER, _READER, _ANSWER = "#0072B2", "#1c2128", "#8a939d"
