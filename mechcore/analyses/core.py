"""Which heads every subnetwork keeps: the heuristic core."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mechcore import report
from mechcore.analyses.base import Analysis, tables_in
from mechcore.errors import warn
from mechcore.steps.base import subnetworks_in
from mechcore.study.step import Work
from mechcore.wording import SIGNIFICANT, count, number, p_value, percent, small, sparsity, whole

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Core(Analysis):
    """Which heads all subnetworks keep: the heuristic core."""

    kind = "core"
    title = "Heuristic core"
    always = True
    needs = ("masks",)
    schemas = tables_in(
        "mechcore.steps.tables:CORE",
        "mechcore.subnetworks.core:HEAD_FREQUENCY",
        "mechcore.subnetworks.core:HEAD_OVERLAP",
    )

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.steps.tables import core_tables

        subnetworks = subnetworks_in(*map(work.needed, work.job.needs))
        if not subnetworks:
            warn(
                "no mask reached its target, so there is no core; the rest is about the full model"
            )
            return work.empty_tables()
        return core_tables(subnetworks)

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """The core against chance, its heads, and how many subnetworks keep each component."""
        summary = run.filled(cls.kind)
        if summary is None:
            without = report.Paragraph(f"{run.no_core.capitalize()}.", note=True)
            what = "the comparison of subnetworks that gives the core"
            yield without if run.no_masks else report.missing(what)
            return
        yield from map(report.Paragraph, cls.headlines(run))
        yield from map(report.Paragraph, _agreement(summary.iloc[0]))
        categories = run.filled("head_categories")
        if categories is not None and run.core:
            attends = categories.set_index("component")["category"].reindex(run.core, fill_value="")
            rows = [[*row] for row in attends.items()]
            yield report.Table("The core heads", ["head", "attends to"], rows, frozenset({0, 1}))
        frequency, overlap = run.filled("head_frequency"), run.filled("head_overlap")
        if frequency is not None:
            yield report.Drawing(
                report.figures.head_frequency(frequency, run.core),
                "head-frequency",
                "Number of seeds that keep each component"
                + ("; core heads are outlined." if run.core else "."),
                "Heatmap, layer by head, of how many seeds keep each component; the numbers are in "
                "head_frequency.csv.",
                fold=f"Number of seeds that keep each component{report.AS_FIGURE}",
            )
        if overlap is not None:
            yield report.Drawing(
                report.subnetwork_figures.head_overlap(overlap),
                "head-overlap",
                "Overlap of the heads of every pair of subnetworks (Jaccard index: shared heads as "
                f"a share of the heads of either).{_by_chance(overlap)}",
                "Heatmap of the Jaccard index of every pair of subnetworks; the numbers are in "
                "head_overlap.csv.",
            )

    @classmethod
    def tiles(cls, run: report.RunFolder) -> Iterator[report.Tile]:
        """The size of the core, and the size expected by chance."""
        if (summary := run.filled(cls.kind)) is None:
            return
        row = summary.iloc[0]
        note = f"of {count(row['n_heads'], 'head')}"
        if row["n_subnetworks"] > 1 and not run.of_one_draw:
            note += f"; {small(row['expected_by_chance'])} expected by chance"
        yield report.Tile("Heuristic core", count(row["core_size"], "head"), note)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """Size of the core against chance."""
        if (summary := run.filled(cls.kind)) is None:
            return
        row = summary.iloc[0]
        n, size = row["n_subnetworks"], row["core_size"]
        all_of = f"all {count(n, 'subnetwork')}" if n > 1 else "the one subnetwork"
        text = f"The heuristic core is empty: no head is kept by {all_of}."
        if size:
            of = f"{whole(size)} of {count(row['n_heads'], 'head')}"
            text = f"{of} {'is' if size == 1 else 'are'} in {all_of}: {', '.join(run.core)}."
        if run.of_one_draw:
            text += " All subnetworks come from one seed or ranking, so they share heads "
            text += "regardless of what matters: use several seeds."
        elif n == 1:
            text += " With one subnetwork, its heads are the core by definition."
        else:
            text += (
                " If every seed's subnetworks kept the same number of heads per layer at "
                f"random, all would share {small(row['expected_by_chance'])} on average "
                f"({p_value(row['p_value'])})."
            )
            if size and row["p_value"] >= SIGNIFICANT:
                text += " A core of this size is therefore no evidence that the "
                text += "subnetworks share more heads than by chance."
            if size and "rate_low" in row:
                text += f" Each core head would be kept by at least {percent(row['rate_low'])}"
                text += " of further seeds (95 % lower bound, per head)."
        yield text


def _agreement(summary: pd.Series) -> Iterator[str]:
    """How well the lowest and the highest target sparsity agree on what to keep."""
    import pandas as pd

    rho, p = summary["spearman_rho"], summary["spearman_p"]
    if pd.isna(rho):
        return
    low, high = (sparsity(summary[f"{end}_sparsity"]) for end in ("low", "high"))
    text = (
        f"How often each head is kept at the lowest target sparsity ({low}) and at the highest "
        f"({high}) correlates with Spearman's rho = {number(rho)}"
    )
    if pd.isna(p):
        yield f"{text}; there is no p-value, since both share seeds or a ranking."
    else:
        yield f"{text} ({p_value(p)})."


def _by_chance(overlap: pd.DataFrame) -> str:
    """How similar pairs of subnetworks are, against random ones."""
    apart = overlap[overlap["p_value"].notna()]
    n_alike = len(overlap) - len(apart)
    text = ""
    if len(apart):
        mean, chance = map(number, apart[["jaccard", "expected"]].mean())
        beyond = int((apart["p_value"] < SIGNIFICANT).sum())
        text = (
            f" The mean is {mean}; with as many random heads per layer it would be {chance}. Of "
            f"{count(len(apart), 'pair')}, {whole(beyond)} share more than by chance "
            f"(p < {SIGNIFICANT:g}, not corrected for multiple comparisons)."
        )
    if n_alike:
        text += (
            f" {count(n_alike, 'pair')} from one seed or ranking cannot be compared with chance, "
            "because they are alike regardless."
        )
    return text
