"""Who reads the core: the verdict, the graph of paths, and the components that lose most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mechcore.components import Component
from mechcore.components.paths import ANSWER
from mechcore.evaluation.recalibration import CANNOT_TELL
from mechcore.paths.dependence import CORE_DEPENDENCE, largest_readers
from mechcore.paths.tables import PATHS
from mechcore.report.blocks import Block, Paragraph, Section, Table, table_of
from mechcore.report.graph_block import Edge, Graph, Node, graph
from mechcore.report.run_folder import RunFolder
from mechcore.tables import Column
from mechcore.wording import ALL, OUT_FIRST, PLACES, count, listed, number, whole

_TITLE = "Who reads the core"
_FILES = ["core_verdict.csv", "core_dependence.csv", "paths.csv", "path_information.csv"]


@dataclass(frozen=True)
class _Measure:
    """What effects are measured in: ``information``, or ``margin`` where that is not known."""

    name: str

    @property
    def unit(self) -> str:
        return "points" if self.name == "information" else "nats"

    def change(self, drop: float) -> float:
        """A drop as a change in its unit, below zero where it is for the worse."""
        return 0.0 - drop * (100 if self.name == "information" else 1)

    def column(self, name: str, header: str, like: Column) -> Column:
        """A column of drops as changes."""
        kind = "points" if self.name == "information" else "number"
        unit = "" if kind == "points" else "nats"
        return like.alike(name, "", header=header, kind=kind, unit=unit, negated=True, signed=True)

    def told(self, row: Any, drop: str) -> str:
        """A drop of a row as a change with its interval."""
        digits = 1 if self.name == "information" else 2
        ends = (self.change(row[f"{drop}{end}"]) for end in ("", "_low", "_high"))
        value, high, low = (number(end, digits, signed=True) for end in ends)
        return f"{value} {self.unit} [{low}, {high}]"


def readers_section(run: RunFolder) -> Section | None:
    """The verdict, the graph and the table of those that read the core; None if not asked."""
    paths, dependence = run.table("paths"), run.table("core_dependence")
    if paths is None or dependence is None:
        return None
    if paths.empty:
        text = f"{run.no_core.capitalize()}: there is nothing to read, and no path was cut."
        return Section("readers", _TITLE, [Paragraph(text, note=True)])
    blocks: list[Block] = [_verdict(run)]
    outside = dependence[dependence["role"] == "ood"]
    known = "information" in set(outside["metric"]) and run.table("path_information") is not None
    measure = _Measure("information" if known else "margin")
    if measure.name == "margin":
        text = (
            "Out of domain, information is not known. Told of is the change of margin, which "
            f"{CANNOT_TELL}."
        )
        blocks.append(Paragraph(text, note=True))
    names = largest_readers(dependence)
    edges = _effects(run, measure, "ood")
    blocks.append(_graph(run, measure, names, edges))
    if names:
        blocks += [_table(dependence, measure, names), *_kinds(outside, names)]
    blocks.append(_answer(run, measure))
    return Section("readers", _TITLE, blocks, _FILES)


def _verdict(run: RunFolder) -> Paragraph:
    table = run.filled("core_verdict")
    if table is None:
        text = "There is no verdict: the roles of components are not known (analyses: sweep)."
        return Paragraph(text, note=True)
    row = table.iloc[0]
    claim = "The claim that components that generalise read the core is"
    return Paragraph(f"{claim} {row['verdict']}: {row['explanation']}.", lead=True)


# -- the graph ----------------------------------------------------------------------------------


def _effects(run: RunFolder, measure: _Measure, role: str) -> pd.DataFrame:
    """What changes over all examples of a role where single paths are cut."""
    table = run.table("path_information" if measure.name == "information" else "paths")
    assert table is not None
    return table[(table["subset"] == ALL) & (table["role"] == role)]


def _graph(
    run: RunFolder, measure: _Measure, readers: Sequence[str], effects: pd.DataFrame
) -> Graph:
    dependence = run.tables["core_dependence"]
    rows = dependence[(dependence["subset"] == ALL) & (dependence["metric"] == measure.name)]
    blind = {role: part.set_index("receiver") for role, part in rows.groupby("role")}
    drop = f"{measure.name}_drop"
    shown = [*readers, *(head for head in run.core if head not in readers)]
    to_answer = effects[effects["receiver"] == ANSWER].set_index("senders")
    nodes = []
    for name in shown:
        parts = [name, "in the core"] if name in run.core else [name]
        told = [
            f"{measure.told(table.loc[name], 'blind_drop')} {PLACES[role]}"
            for role in OUT_FIRST
            if (table := blind.get(role)) is not None and name in table.index
        ]
        sentences = [f"{', '.join(parts)}."]
        if told:
            sentences.append(f"Blind to the core: {'; '.join(told)}.")
        direct = measure.told(to_answer.loc[name], drop)
        sentences.append(f"An answer that does not see it: {direct} out of domain.")
        component = Component.parse(name)
        heading = f"layer {component.layer}" if component.is_head else f"MLP {component.layer}"
        column = (0, component.layer, not component.is_head)
        look = "in" if name in run.core else "both"
        nodes.append(Node(name, column, heading, look, " ".join(sentences)))
    nodes.append(Node(ANSWER, (1,), "", "none", "The answer: its edges are direct effects on it."))
    known = {node.name for node in nodes}
    edges = [
        Edge(
            row["senders"],
            row["receiver"],
            measure.change(row[drop]),
            measure.change(row[f"{drop}_high"]),
            measure.change(row[f"{drop}_low"]),
        )
        for _, row in effects.iterrows()
        if row["senders"] in known and row["receiver"] in known and pd.notna(row[drop])
    ]
    n = whole(effects["n"].max())
    caption = (
        f"Paths from the {count(len(run.core), 'head')} of the core to the "
        f"{count(len(readers), 'component')} that change most without it, and from all of these "
        f"to the answer. Width: how much {measure.name} changes out of domain when the receiver "
        f"alone does not see the sender ({n} examples). Choose a component to see more; arrow "
        "keys go from one to the next."
    )
    legend = [
        ("in", "in the core"),
        ("both", "others that change most without it"),
        ("none", "the answer"),
        ("worse", "worse when cut"),
        ("better", "better when cut"),
        ("unsure", "interval has 0 in it"),
    ]
    return graph(caption, nodes, edges, legend)


# -- tables and sentences -----------------------------------------------------------------------


def _table(dependence: pd.DataFrame, measure: _Measure, names: Sequence[str]) -> Table:
    rows = dependence[(dependence["subset"] == ALL) & dependence["receiver"].isin(names)]

    def of(role: str, metric: str) -> pd.DataFrame:
        part = rows[(rows["role"] == role) & (rows["metric"] == metric)]
        return part.set_index("receiver").reindex(list(names)).reset_index()

    first, drop = of("ood", measure.name), CORE_DEPENDENCE["drop"]
    blind = CORE_DEPENDENCE["blind_drop"]
    shown: list[str | Column | tuple[str, Sequence[str]]] = [
        "receiver",
        measure.column("drop", "without it", drop),
        measure.column("blind_drop", "blind to the core", blind),
        CORE_DEPENDENCE["share"].called("share"),
        measure.column("control_drop", "blind to random heads", CORE_DEPENDENCE["control_drop"]),
        CORE_DEPENDENCE["p_control"].called("p"),
    ]
    threshold, inside = of("ood", "threshold"), of("id", measure.name)
    points = _Measure("information").column("blind_drop", "", blind)
    if len(threshold.dropna(subset=["blind_drop"])):
        shown.append(("threshold, blind to the core (points)", points.texts(threshold)))
    if len(inside.dropna(subset=["blind_drop"])):
        own = measure.column("blind_drop", "blind to the core, in domain", blind)
        shown.append((own.heading, own.texts(inside)))
    caption = (
        f"The {count(len(names), 'component')} whose {measure.name} changes most out of domain "
        "when they do not see the core, beside the change without the component and the share of "
        "that, where it is known not to be 0; random heads are as many of each layer"
    )
    return table_of(first, CORE_DEPENDENCE, caption, shown)


def _kinds(outside: pd.DataFrame, names: Sequence[str]) -> Iterator[Paragraph]:
    """Whether each effect is of information, of the threshold or of both."""
    rows = outside[outside["subset"] == ALL].set_index(["receiver", "metric"])
    if "information" not in set(outside["metric"]):
        return
    found: dict[tuple[bool, bool], list[str]] = {}
    for name in names:
        sure = []
        for metric in ("information", "threshold"):
            row: Any = rows.loc[(name, metric)]
            sure.append(bool(row["blind_drop_low"] > 0 or row["blind_drop_high"] < 0))
        found.setdefault((sure[0], sure[1]), []).append(name)
    words = {
        (True, False): "information alone for",
        (False, True): "the threshold alone for",
        (True, True): "information and the threshold for",
    }
    parts = [f"{what} {listed(found[key])}" for key, what in words.items() if key in found]
    texts = [f"being blind to the core changes {'; '.join(parts)}"] if parts else []
    if (False, False) in found:
        texts.append(f"for {listed(found[False, False])} a change of neither is shown")
    text = f"Out of domain, by intervals, {'; '.join(texts)}."
    yield Paragraph(f"{text} What is not shown may be there all the same.")


def _answer(run: RunFolder, measure: _Measure) -> Table:
    """Direct effects of all components, largest first."""
    drop = f"{measure.name}_drop"
    tables = {role: _effects(run, measure, role) for role in OUT_FIRST}
    tables = {role: t[t["receiver"] == ANSWER].set_index("senders") for role, t in tables.items()}
    order = tables["ood"][drop].abs().sort_values(ascending=False, kind="stable").index
    rows = tables["ood"].loc[order].reset_index()
    like = run.schemas["path_information" if measure.name == "information" else "paths"][drop]
    columns = [
        (heading.heading, heading.texts(table.reindex(order)))
        for role, table in tables.items()
        for heading in [measure.column(drop, f"{measure.name} {PLACES[role]}", like)]
    ]
    caption = f"What changes when the answer does not see a component: all {len(rows)}"
    return table_of(
        rows, PATHS, caption, [("component", rows["senders"].tolist()), *columns], folded=True
    )
