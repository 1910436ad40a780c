"""Which sets of components change the model by more than the sum of their members' changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mechcore import report
from mechcore.analyses.ablation import Ablation
from mechcore.analyses.base import Analysis, Planning, tables_in
from mechcore.study.step import Job
from mechcore.wording import ALL, SIGNIFICANT, count, effect, with_interval

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Interactions(Analysis):
    """Which sets of core heads, or of named components, cost more than the sum of their members."""

    kind = "interactions"
    title = "Interactions"
    always = True
    needs = (Ablation.kind,)
    study_options = (
        "analyses.ablation.components",
        "analyses.ablation.sets",
        "analyses.ablation.subsets",
    )
    schemas = tables_in("mechcore.ablation.joint.exact:INTERACTIONS")

    def jobs(self, plan: Planning) -> Iterator[tuple[str, Job]]:
        """The ablation's job, which measures interactions."""
        yield self.kind, plan.known[Ablation.kind]

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """Interactions in words, as figures and in a table."""
        tables = report.ablation_tables
        what = f"{tables.ablated(run)}s"
        if (table := run.table(cls.kind)) is None:
            yield report.missing(f"the joint ablation of sets of {what}")
            return
        if table.empty:
            few = run.no_core if run.no_masks else f"fewer than two {what} were ablated"
            yield report.Paragraph(f"There is no interaction to report: {few}.", note=True)
            return
        yield from map(report.Paragraph, cls.headlines(run))
        yield from report.groups.one_label_notes(run, table)
        overall = table[table["subset"] == ALL]
        yield from _drawings(table, overall)
        caption = "Interactions over all examples, with intervals; every subset is in "
        caption += "interactions.csv"
        yield tables.interaction_table(overall, caption, folded=len(overall) > 40)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """Which joint sets are superadditive out of domain, on the margin and on accuracy."""
        if (table := run.filled(cls.kind)) is None:
            return
        overall = table[(table["split"] == "ood") & (table["subset"] == ALL)]
        for split, data in report.groups.data_sets(overall):
            for metric, name in (("margin", "the margin"), ("accuracy", "accuracy")):
                part = report.groups.of_data(overall, split, data)
                part = part[part["metric"] == metric].dropna(subset=["interaction"])
                if len(part):
                    where = f"On {name} out-of-domain ({data})"
                    yield _superadditivity(part, metric, where, run.core)


def _drawings(table: pd.DataFrame, overall: pd.DataFrame) -> Iterator[report.Block]:
    drawn = report.ablation_figures.largest_interactions(overall)
    n_sets = overall["set"].nunique()
    left_out = (len(drawn) < n_sets) * (
        f" Only the {len(drawn)} of {n_sets} sets with the largest absolute interaction on a "
        "margin are drawn."
    )
    hollow = bool(report.ablation_figures.saturated(table).any()) * (
        " Hollow marks: accuracy is so close to its floor or ceiling that the joint change "
        "saturates; use the margin there."
    )
    yield report.Drawing(
        report.ablation_figures.interactions(table, drawn),
        "interactions",
        "Interaction of jointly ablated components: the joint change minus the sum of the single "
        f"changes. To the left of zero the set is superadditive.{hollow}{left_out}",
        "Dot plot of interactions on accuracy and margin; the numbers are in the table below.",
    )
    if (table["subset"] != ALL).any():
        largest = str(overall["set"].iloc[int(overall["size"].argmax())])
        yield report.Drawing(
            report.ablation_figures.interactions_by_subset(table, largest),
            "interactions-subsets",
            f"The interaction of {largest}, the largest set, on every subset.",
            "Dot plot of one set's interaction by subset; its numbers are in interactions.csv.",
        )


def _superadditivity(part: pd.DataFrame, metric: str, where: str, core: Sequence[str]) -> str:
    """A sentence on the interactions on one metric of one data set, quoting the largest."""
    from mechcore.ablation.joint.exact import directions

    if part["low"].isna().all():
        n_sets = count(len(part), "joint set")
        return f"{where}, none of the {n_sets} has an interval, so no direction is shown."
    sign = directions(part, SIGNIFICANT)
    superadditive, n_sub = part[sign < 0], int((sign > 0).sum())
    choices = superadditive if len(superadditive) else part
    top = choices.iloc[int(choices["interaction"].abs().argmax())]
    members, n = top["set"].split("+"), len(superadditive)
    largest = "superadditive interaction" if n else "absolute interaction"
    whole_core = len(members) > 2 and set(members) == set(core)
    which = f"the whole core ({len(core)} heads)" if whole_core else top["set"]
    text = (
        f"{where}, {n} of {count(len(part), 'joint set')} {'is' if n == 1 else 'are'} "
        f"superadditive and {n_sub} subadditive (interval excludes zero, adjusted p at most "
        f"{SIGNIFICANT:g}). The largest {largest} is that of "
        f"{which}: the joint change is {effect(top['joint_change'], metric)}, the single "
        f"changes sum to {effect(top['sum_of_single_changes'], metric)}, an interaction of "
        f"{with_interval(top['interaction'], top['low'], top['high'], metric, unit=True)}."
    )
    for end, change, so in (
        ("floor", "lose", "the interaction on accuracy is underestimated"),
        ("ceiling", "gain", "sets may wrongly look superadditive on accuracy"),
    ):
        n_saturated = int(part[end].sum()) if metric == "accuracy" else 0
        if n_saturated:
            text += (
                f" The joint change saturates for {n_saturated} of {len(part)}, as accuracy has "
                f"little or nothing left to {change}: there {so}."
            )
    return text
