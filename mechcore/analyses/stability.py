"""Which results would replicate with other data of the same kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mechcore import report
from mechcore.analyses.base import Analysis, Planning, tables_in
from mechcore.steps.base import MainStep
from mechcore.study.step import Job, Work
from mechcore.wording import count, number, split_name, whole

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Rankings(MainStep):
    """The tables ``stability`` of all analyses that rank components or sets, in one."""

    kind = "rankings"
    label = "stability"
    needs = ("sweep",)
    beside = ("ablation", "search")
    schemas = tables_in("mechcore.ablation.effects.stability:STABILITY")

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        from mechcore.steps.answers import joined

        tables = {name: work.table(name, "stability") for name in work.job.needs}
        for name, table in tables.items():
            table.insert(0, "ranked_by", name)
        out_first = [
            t.sort_values("split", ascending=False, kind="stable") for t in tables.values()
        ]
        work.write_tables({"stability": joined(out_first)})


@dataclass(frozen=True)
class Stability(Analysis):
    """Whether other data of the same kind would give the same rankings and cores."""

    kind = "stability"
    title = "Stability"
    always = True
    needs = ("sweep",)
    schemas = tables_in(
        "mechcore.ablation.effects.stability:STABILITY",
        "mechcore.subnetworks.halves:HALF_CORES",
        "mechcore.subnetworks.halves:HALF_OVERLAP",
        "mechcore.steps.masks:MISSING_HALF_MASKS",
    )

    def jobs(self, plan: Planning) -> Iterator[tuple[str, Job]]:
        """The job that joins rankings; other analyses contribute further tables if they run."""
        yield self.kind, plan.job(Rankings())

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """Agreement of rankings on two halves of the examples, and of cores from other data."""
        yield from _rankings(run)
        yield from _cores(run)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """How well halves agree on what matters most, and on the core."""
        import pandas as pd

        from mechcore.subnetworks.halves import HALVES

        table, cores = run.filled(cls.kind), run.filled("half_cores")
        if table is not None:
            by_margin = table[(table["metric"] == "margin") & (table["size"] == 1)]
            for split, data in report.groups.data_sets(by_margin):
                row = report.groups.of_data(by_margin, split, data).iloc[0]
                rho = row["predicted_rho"]
                predicted = "" if pd.isna(rho) else f" ({number(rho)} predicted at full size)"
                yield (
                    f"Split-half agreement on {data} ({split_name(split)}), "
                    f"{count(row['n_ranked'], 'component')} ranked by change in margin: "
                    f"Spearman's rho = {number(row['halves_rho'])}"
                    f"{predicted}; top-{whole(row['top'])} "
                    f"Jaccard index {number(row['halves_jaccard'])} "
                    f"({number(row['jaccard_by_chance'])} by chance)."
                )
        if cores is not None:
            row = cores[cores["first"] == HALVES[0]].iloc[0]
            index = row["jaccard"]
            index = "" if pd.isna(index) else f", a Jaccard index of {number(index)}"
            yield (
                "The cores of two random halves of the training data have "
                f"{whole(row['first_size'])} and {count(row['second_size'], 'head')}; they share "
                f"{whole(row['shared'])}{index}."
            )


def _rankings(run: report.RunFolder) -> Iterator[report.Block]:
    from mechcore.ablation.effects.stability import STABILITY
    from mechcore.tables import Column

    if (table := run.filled(Stability.kind)) is None:
        return
    yield report.Paragraph(_HOW)
    table = table.assign(ranked=[_ranked(row) for _, row in table.iterrows()])
    table = report.groups.placed(table)
    ranked = Column("ranked", "text", "what is ranked")
    shown: list[report.Shown] = [ranked, report.groups.PLACED, "metric", "halves_rho"]
    shown += ["predicted_rho", "top", "halves_jaccard", "jaccard_by_chance", "largest"]
    yield report.table_of(table, STABILITY, _HALVES, shown)
    if run.table("half_cores") is None and run.table("core") is not None:
        yield report.Paragraph(_NOT_ASKED, note=True)


def _ranked(row: pd.Series) -> str:
    size, n = row["size"], row["n_ranked"]
    if size == 1:
        return count(n, "component")
    one = {2: "pair", 3: "triple"}.get(int(size), f"set of {whole(size)}")
    which = "that the search found" if row.get("ranked_by") == "search" else "of the core"
    return f"{count(n, one, one.replace('set', 'sets') if size > 3 else None)} {which}"


def _cores(run: report.RunFolder) -> Iterator[report.Block]:
    from mechcore.subnetworks.halves import HALF_CORES, HALF_OVERLAP

    cores, overlap = run.filled("half_cores"), run.filled("half_overlap")
    if cores is not None:
        both = cores.assign(compared=cores["first"] + ", " + cores["second"])
        sizes = zip(map(whole, cores["first_size"]), map(whole, cores["second_size"]), strict=True)
        columns: list[report.Shown] = [HALF_OVERLAP["compared"], "n_subnetworks"]
        columns += [("heads of each", [*map(", ".join, sizes)]), "shared", "jaccard", "rho"]
        columns += ["first_core", "second_core"]
        yield report.table_of(both, HALF_CORES, _CORES, columns)
    if overlap is not None:
        columns = ["compared", "target_sparsity", "n_pairs", "jaccard", "expected"]
        yield report.table_of(overlap, HALF_OVERLAP, _SUBNETWORKS, columns)
    missing = run.filled("missing_half_masks")
    if missing is not None:
        schema = run.schemas["missing_half_masks"]
        yield report.table_of(missing, schema, _MISSING, ["data", "subnetwork", "reason"])


_HOW = (
    "Two random halves share no example; the Spearman\u2013Brown formula predicts the agreement of "
    "two data sets of full size. A rho near 0, or a Jaccard index at chance, means that the "
    "ranking is noise."
)
_HALVES = (
    "Components ranked by change and sets by interaction on two random halves of the examples, "
    "with the middle 95 % over splits; and the items that cost most, with the share of halves that "
    "also rank them in the top"
)
_CORES = (
    "Cores of all training data and of two random halves of it. All use the same seeds and so the "
    "same noise, which makes them similar even if no head matters"
)
_SUBNETWORKS = (
    "Overlap of the heads of two subnetworks, mean and range over pairs. Pairs with one seed share "
    "its noise, so they have no value by chance"
)
_MISSING = "Missing masks; the comparison omits all masks of their target sparsity and seed"
_NOT_ASKED = (
    "To test whether other training data would give the same core, use --with halves (analyses: "
    "halves), which prunes again on two halves of the training data."
)
