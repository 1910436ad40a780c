"""How close subnetworks by each method come to the full model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mechcore import report
from mechcore.analyses.base import Analysis, Planning, Tables
from mechcore.errors import InputError
from mechcore.settings import setting
from mechcore.study.step import Job, Work
from mechcore.tables import TARGET, Column, Schema
from mechcore.wording import listed, number, sparsity

COMPARED = Schema(
    "methods",
    "KL and accuracies of the subnetworks of each method, as means over seeds.",
    (
        Column("method", "text", "pruning method"),
        TARGET,
        Column("n", "whole", "subnetworks", header="subnetworks"),
        Column("kl", "number", "KL from the full model, in-domain", "nats", "KL", digits=3),
        Column("kl_low", "number", "smallest over seeds", digits=3),
        Column("kl_high", "number", "largest over seeds", digits=3),
        Column("id_accuracy", "share", "over all in-domain examples", header="in-domain"),
        Column("ood_accuracy", "share", "over all out-of-domain ones", header="out-of-domain"),
    ),
)


@dataclass(frozen=True)
class Methods(Analysis):
    """How close subnetworks by each pruning method come to the full model."""

    kind = "methods"
    title = "Pruning methods"
    label = "comparison of methods"
    asked = True
    needs = ("means",)
    schemas = (COMPARED,)

    methods: tuple[str, ...] = setting(
        ("l0", "attribution", "random", "layer-matched"), "Pruning methods to compare."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if "layer-matched" in self.methods and "l0" not in self.methods:
            raise InputError(
                "methods: layer-matched draws as many heads per layer as l0 masks keep; add l0 to "
                "the methods"
            )

    def jobs(self, plan: Planning) -> Iterator[tuple[str, Job]]:
        """Needs the answers of the subnetworks of each method."""
        yield self.kind, plan.job(self, needs=plan.by_methods(self.methods))

    def compute(self, work: Work) -> Tables:
        """See `Analysis.compute`; rows follow the order in which methods are registered."""
        from mechcore.pruning import METHODS
        from mechcore.steps.answers import answers_of
        from mechcore.steps.tables import subnetwork_table

        answered = answers_of(work)
        if not answered.subnetworks:
            return work.empty_tables()
        single = subnetwork_table(answered.subnetworks, answered.full, answered.masked)
        table = single.groupby(["method", TARGET.name], as_index=False).agg(
            n=("kl", "size"),
            kl=("kl", "mean"),
            kl_low=("kl", "min"),
            kl_high=("kl", "max"),
            id_accuracy=("id_accuracy", "mean"),
            ood_accuracy=("ood_accuracy", "mean"),
        )
        place = table["method"].map(METHODS.names().index)
        order = table.assign(place=place).sort_values(["place", TARGET.name])
        return {"methods": order.drop(columns="place")}

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """A line chart of KL by sparsity, and the table."""
        if (table := run.filled("methods")) is None:
            return
        yield report.Drawing(
            report.subnetwork_figures.kl_by_sparsity(table),
            "kl-by-sparsity",
            "KL divergence of each method's subnetworks from the full model: mean and range over "
            "seeds.",
            "Line chart of KL against target sparsity by method; its numbers are in the table.",
        )
        yield report.table_of(table, COMPARED, "Subnetworks by method", COMPARED.names)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """Which method comes closest to the full model."""
        if (table := run.filled("methods")) is None:
            return
        best = table.loc[table.groupby(TARGET.name)["kl"].idxmin()]
        parts = [
            f"{row['method']} at {sparsity(row[TARGET.name])} ({number(row['kl'], 3)} nats)"
            for row in best.to_dict("records")
        ]
        yield f"Lowest in-domain KL from the full model: {listed(parts)}."
