"""Who reads the core, and who writes the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mechcore.analyses.base import Analysis, of_study, tables_in
from mechcore.analyses.sweep import Ablating
from mechcore.components import Component
from mechcore.components.paths import ANSWER
from mechcore.settings import check, setting
from mechcore.steps.base import BEHIND, CORE, Size, core_of, inputs_of, means_of
from mechcore.steps.config import TEST_ROLES
from mechcore.study.step import Job, Work
from mechcore.wording import ALL, OUT_FIRST, PLACES, count, listed, whole, with_interval

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.report.blocks import Block, Paragraph, Shown, Table
    from mechcore.report.graph_block import Graph
    from mechcore.report.run_folder import RunFolder
    from mechcore.tables import Column

FORWARDS = 4.0
"""Of the full model, which all sets share, and all answers."""


@dataclass(frozen=True)
class Paths(Ablating, Analysis):
    """What components lose that do not see the core, and what the answer that does not see them."""

    kind: ClassVar[str] = "paths"
    section: ClassVar[str] = "readers"
    title: ClassVar[str] = "Who reads the core"
    label: ClassVar[str] = "readers of the core"
    needs: ClassVar[tuple[str, ...]] = ("means", "core")
    reads: ClassVar[tuple[str, ...]] = ("roles", "swept")
    roles: ClassVar[tuple[str, ...]] = TEST_ROLES
    schemas = tables_in(
        "mechcore.paths.dependence:CORE_DEPENDENCE",
        "mechcore.paths.verdict:CORE_VERDICT",
        "mechcore.paths.tables:PATHS",
        "mechcore.paths.tables:PATH_INFORMATION",
    )

    controls: int = setting(
        20,
        "Random sets of heads in place of the core, out of domain, for the components that change "
        "most and those that the verdict is about; fewer than 20 can neither support the claim "
        "nor speak against it.",
        least=0,
    )
    max_examples: int = setting(300, "Examples of each kind of test data at most.", least=1)
    names: Mapping[str, str] = of_study()
    groups: Mapping[str, tuple[str, ...]] = of_study()
    n_resamples: int = of_study()
    least: float = of_study()
    """Least effect of interest, a share of balanced accuracy."""

    def __post_init__(self) -> None:
        check(self, "paths")

    @classmethod
    def works_with(cls, fill: str) -> bool:
        """Paths cannot be cut with outputs on other examples."""
        return fill != "counterfactual"

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        from mechcore.paths.dependence import MOST_READERS

        tested, outside = (
            sum(min(self.max_examples, size.examples.get(role, 0)) for role in roles)
            for roles in (TEST_ROLES, TEST_ROLES[1:])
        )
        n_all, n_core = size.components("all"), CORE * size.n_heads
        sets = n_all + min(MOST_READERS, n_all) * n_core
        sets += 0 if self._reuses(job) else n_all
        controls = self.controls * min(MOST_READERS, n_all) if "roles" in job.needs else 0
        return tested * (FORWARDS + BEHIND * sets) + outside * BEHIND * controls

    def _reuses(self, job: Job) -> bool:
        """Whether changes of the sweep are taken over; other fills draw anew for other examples."""
        return "swept" in job.needs and self.fill in ("mean", "zero")

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        import numpy as np

        from mechcore.steps.ablation import ablations_in
        from mechcore.steps.paths import core_tables

        core = core_of(work)
        if not core:
            return work.empty_tables()
        inputs = inputs_of(work)
        roles = work.table("roles", "roles") if "roles" in work.job.needs else None
        known = ablations_in(work.needed("swept"), self.names) if self._reuses(work.job) else {}
        sampled = inputs.sampled(TEST_ROLES, self.max_examples, self.seed)
        for role, swept in known.items():
            rows = inputs.data[role].examples.sample_rows(self.max_examples, self.seed)
            known[role] = swept.part(np.array(rows))
        return core_tables(sampled, means_of(work, inputs), core, self, roles, known)

    @classmethod
    def blocks(cls, run: RunFolder) -> Iterator[Block]:
        """The verdict, the graph of paths, the components that change most, and direct effects."""
        from mechcore.paths.dependence import largest_readers
        from mechcore.report.blocks import Paragraph

        paths, dependence = run.table("paths"), run.table("core_dependence")
        if paths is None or dependence is None:
            return
        if paths.empty:
            text = f"{run.no_core.capitalize()}: there is nothing to read, and no path was cut."
            yield Paragraph(text, note=True)
            return
        verdict = [Paragraph(text, lead=True) for text in cls.headlines(run)]
        yield from verdict or [Paragraph(_NO_VERDICT, note=True)]
        overall = dependence[dependence["subset"] == ALL]
        outside = overall[overall["role"] == "ood"].set_index(["receiver", "metric"])
        has_information = "information" in outside.index.get_level_values("metric")
        metric = "margin"
        if has_information and run.table("path_information") is not None:
            metric = "information"
        else:
            yield Paragraph(_MARGIN_ALONE, note=True)
        readers = largest_readers(dependence)
        yield _graph(run, metric, overall[overall["metric"] == metric], readers)
        if readers:
            yield _table(overall, metric, readers)
        if readers and has_information:
            yield _kinds(outside, readers)
        yield _direct(run, metric)

    @classmethod
    def headlines(cls, run: RunFolder) -> Iterator[str]:
        """The verdict, where there is one."""
        table = run.filled("core_verdict")
        for row in [] if table is None else table.to_dict("records"):
            claim = "The claim that components that generalise read the core is"
            yield f"{claim} {row['verdict']}: {row['explanation']}."


def _cut(run: RunFolder, metric: str, role: str) -> pd.DataFrame:
    """What changes over all examples of a role where single paths are cut."""
    table = run.tables[_TABLES[metric]]
    return table[(table["subset"] == ALL) & (table["role"] == role)]


def _change(row: Mapping[Any, Any], change: str, metric: str) -> str:
    """A change with its interval."""
    value, low, high = (row[f"{change}{end}"] for end in ("", "_low", "_high"))
    unit_of = "accuracy" if metric == "information" else metric
    return with_interval(value, low, high, unit_of, unit=True)


def _graph(run: RunFolder, metric: str, blind: pd.DataFrame, readers: Sequence[str]) -> Graph:
    """Paths from the core to those that read it, and from all of these to the answer."""
    from mechcore.report.graph_block import Edge, Node, graph

    cut, change = _cut(run, metric, "ood"), f"{metric}_change"
    direct = {row["senders"]: row for row in cut[cut["receiver"] == ANSWER].to_dict("records")}
    without = {(row["receiver"], row["role"]): row for row in blind.to_dict("records")}
    nodes = []
    for name in dict.fromkeys([*readers, *run.core]):
        core = name in run.core
        changes = [
            f"{_change(without[name, role], 'blind_change', metric)} {PLACES[role]}"
            for role in OUT_FIRST
            if (name, role) in without
        ]
        words = f"{name}, in the core." if core else f"{name}."
        words += f" Blind to the core: {'; '.join(changes)}." if changes else ""
        words += " An answer that does not see it: "
        words += f"{_change(direct[name], change, metric)} out of domain."
        component = Component.parse(name)
        heading = f"layer {component.layer}" if component.is_head else f"MLP {component.layer}"
        column = (0, component.layer, not component.is_head)
        nodes.append(Node(name, column, heading, "in" if core else "both", words))
    nodes.append(Node(ANSWER, (1,), "", "none", "The answer: its edges are direct effects on it."))
    drawn = {node.name for node in nodes}
    edges = [
        Edge(
            row["senders"],
            row["receiver"],
            *(row[f"{change}{end}"] for end in ("", "_low", "_high")),
        )
        for row in cut.dropna(subset=[change]).to_dict("records")
        if {row["senders"], row["receiver"]} <= drawn
    ]
    caption = (
        f"Paths from the {count(len(run.core), 'head')} of the core to the "
        f"{count(len(readers), 'component')} that change most without it, and from all of these "
        f"to the answer. Width: how much {metric} changes out of domain when the receiver "
        f"alone does not see the sender ({whole(cut['n'].max())} examples). Choose a component to "
        "see more; arrow keys go from one to the next."
    )
    return graph(caption, nodes, edges, _LEGEND)


def _table(overall: pd.DataFrame, metric: str, readers: Sequence[str]) -> Table:
    """The components that change most without the core."""
    from mechcore.paths.dependence import CORE_DEPENDENCE
    from mechcore.report.blocks import table_of

    def of(role: str, metric: str) -> pd.DataFrame:
        rows = overall[(overall["role"] == role) & (overall["metric"] == metric)]
        return rows.set_index("receiver").reindex(list(readers)).reset_index()

    def column(name: str, header: str, metric: str = metric) -> Column:
        unit = {"unit": "nats"} if metric == "margin" else {"kind": "points"}
        return CORE_DEPENDENCE[name].called(header, signed=True, **unit)

    columns: list[Shown] = [
        "receiver",
        column("change", "without it"),
        column("blind_change", "blind to the core"),
        CORE_DEPENDENCE["share"],
        column("control_change", "blind to random heads"),
        CORE_DEPENDENCE["p_control"].called("p"),
    ]
    for role, other, header in (
        ("ood", "threshold", "threshold, blind to the core"),
        ("id", metric, "blind to the core, in domain"),
    ):
        rows, blind = of(role, other), column("blind_change", header, other)
        if rows["blind_change"].notna().any():
            columns.append((blind.heading, blind.texts(rows)))
    caption = (
        f"The {count(len(readers), 'component')} whose {metric} changes most out of domain "
        "when they do not see the core, beside the change without the component and the share of "
        "that, where it is known not to be 0; random heads are as many of each layer"
    )
    return table_of(of("ood", metric), CORE_DEPENDENCE, caption, columns)


def _kinds(outside: pd.DataFrame, readers: Sequence[str]) -> Paragraph:
    """Whether each effect is of information, of the threshold or of both."""
    from mechcore.report.blocks import Paragraph

    differs = (outside["blind_change_low"] > 0) | (outside["blind_change_high"] < 0)
    names: dict[tuple[bool, ...], list[str]] = {}
    for name in readers:
        kinds = tuple(bool(differs.loc[name, metric]) for metric in ("information", "threshold"))
        names.setdefault(kinds, []).append(name)
    parts = [f"{what} for {listed(names[kinds])}" for kinds, what in _KINDS if kinds in names]
    texts = [f"being blind to the core changes {'; '.join(parts)}"] if parts else []
    if neither := names.get((False, False)):
        texts.append(f"for {listed(neither)} a change of neither is shown")
    text = f"Out of domain, by intervals, {'; '.join(texts)}."
    return Paragraph(f"{text} What is not shown may be there all the same.")


def _direct(run: RunFolder, metric: str) -> Table:
    """Direct effects of all components, largest first."""
    from mechcore.report.blocks import table_of

    change, schema = f"{metric}_change", run.schemas[_TABLES[metric]]
    cut = {role: _cut(run, metric, role) for role in OUT_FIRST}
    direct = {role: t[t["receiver"] == ANSWER].set_index("senders") for role, t in cut.items()}
    order = direct["ood"][change].abs().sort_values(ascending=False, kind="stable").index
    columns: list[Shown] = [("component", [*order])]
    for role, table in direct.items():
        column = schema[change].called(f"{metric} {PLACES[role]}")
        columns.append((column.heading, column.texts(table.reindex(order))))
    caption = f"What changes when the answer does not see a component: all {len(order)}"
    return table_of(direct["ood"], schema, caption, columns, folded=True)


_NO_VERDICT = "There is no verdict: the roles of components are not known (analyses: sweep)."
_MARGIN_ALONE = (
    "Out of domain, information is not known. The graph and the tables show the change in margin, "
    "which may only reflect a moved threshold."
)
_TABLES = {"information": "path_information", "margin": "paths"}
_KINDS = (
    ((True, False), "information alone"),
    ((False, True), "the threshold alone"),
    ((True, True), "information and the threshold"),
)
_LEGEND = [
    ("in", "in the core"),
    ("both", "others that change most without it"),
    ("none", "the answer"),
    ("worse", "worse when cut"),
    ("better", "better when cut"),
    ("unsure", "interval has 0 in it"),
]
