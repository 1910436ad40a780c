"""How few components suffice: the smallest subnetwork within a loss, and how to export it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mechcore import report
from mechcore.analyses.base import Analysis, Tables, of_study, tables_in
from mechcore.settings import setting
from mechcore.study.step import Work
from mechcore.wording import OUT_FIRST, PLACES


@dataclass(frozen=True)
class Smallest(Analysis):
    """The smallest subnetwork within an accepted loss."""

    kind = "smallest"
    title = "What can go?"
    label = "smallest subnetwork"
    needs = ("answers",)
    schemas = tables_in("mechcore.subnetworks.smallest:SMALLEST")

    loss: float = setting(
        0.01,
        "Maximum loss of accuracy or information (share) of the smallest subnetwork.",
        "--loss",
        least=0,
        below=1,
    )
    n_resamples: int = of_study()
    seed: int = of_study()

    def compute(self, work: Work) -> Tables:
        """See `Analysis.compute`."""
        from mechcore.steps.answers import answers_of
        from mechcore.subnetworks.smallest import smallest_subnetworks

        answered = answers_of(work)
        names = [subnetwork.name for subnetwork in answered.subnetworks]
        table = smallest_subnetworks(
            {subnetwork.name: subnetwork.mask for subnetwork in answered.subnetworks},
            answered.full,
            {split: dict(zip(names, of, strict=True)) for split, of in answered.masked.items()},
            self.loss,
            n_resamples=self.n_resamples,
            seed=self.seed,
        )
        return {"smallest": table}

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """The subnetwork by each measure of loss, and the command that exports it."""
        from mechcore.subnetworks.smallest import SMALLEST, is_for_export

        if (table := run.filled("smallest")) is None:
            return
        limits = [f"{100 * limit:g}" for limit in table["limit"]]
        columns: list[report.Shown] = ["measure", ("loss accepted (points)", limits), "within"]
        columns += ["subnetwork", "sparsity", "kept"]
        for name, header in _CHANGES:
            columns += [
                SMALLEST[f"{split}_{name}"].called(header.format(PLACES[split]))
                for split in OUT_FIRST
            ]
        columns.append(SMALLEST["n_masks"].called("masks"))
        yield from map(report.Paragraph, cls.headlines(run))
        yield report.table_of(table, SMALLEST, _CAPTION, columns)
        names = [row["subnetwork"] for row in table.to_dict("records") if is_for_export(row)]
        commands = [f"mechcore export . --mask {n} --out {n}" for n in dict.fromkeys(names)]
        if commands:
            yield report.Paragraph(
                "To export it as an ordinary checkpoint, run this in the run folder:"
            )
            yield from map(report.Command, commands)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """The smallest subnetwork by each measure of loss."""
        from mechcore.subnetworks.smallest import explain_smallest

        table = run.filled("smallest")
        for row in [] if table is None else table.to_dict("records"):
            text = explain_smallest(row)
            yield f"{text[:1].upper()}{text[1:]}."


_CAPTION = (
    "The sparsest subnetwork whose loss is within the limit in domain and out of domain, judged by "
    "the lower ends of the intervals; if there is none, the one that comes closest. Information is "
    "measured after refitting a bias per label, accuracy without"
)
_CHANGES = (
    ("change", "change {}"),
    ("accuracy_change", "accuracy {}"),
    ("change_held_out", "{}, others choose"),
)
