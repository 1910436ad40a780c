"""Whether a component's effect grows with the ablation dose, and what later layers repair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mechcore import report
from mechcore.analyses.base import Ablating, Analysis, of_study, tables_in
from mechcore.analyses.roles import Roles
from mechcore.settings import setting
from mechcore.steps.base import inputs_of, means_of
from mechcore.steps.config import TEST_SPLITS
from mechcore.study.step import Work
from mechcore.wording import OUT_FIRST, PLACES, count, listed, number

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Dose(Ablating, Analysis):
    """Whether effects grow with the dose, and whether later components repair them."""

    kind = "dose"
    title = "Do effects grow with the dose, and are they repaired?"
    label = "doses"
    needs = ("means", Roles.kind)
    splits = TEST_SPLITS
    per_text = 25.0
    cuts_paths = True
    schemas = tables_in("mechcore.ablation.effects.dose:DOSE")

    components: int = setting(
        6,
        "Number of components to ablate by degrees, those whose roles matter most; see "
        "`mechcore.ablation.effects.dose`.",
        least=1,
    )
    max_examples: int = setting(300, "Maximum number of examples of each test split.", least=1)
    n_resamples: int = of_study()

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.ablation.effects.dose import dose_table
        from mechcore.ablation.effects.roles import ranked
        from mechcore.steps.answers import joined

        inputs = inputs_of(work).sampled(TEST_SPLITS, self.max_examples, self.seed)
        components = ranked(work.table(Roles.kind))["component"].tolist()
        options: dict[str, Any] = {"fill": self.fill, "class_names": inputs.config.class_names}
        options |= {"batch_size": self.batch_size, "n_resamples": self.n_resamples}
        model, means, chosen = inputs.model, means_of(work, inputs), components[: self.components]
        tables = []
        for split in TEST_SPLITS:
            options |= {"split": split, "seed": self.seed}
            tables.append(dose_table(model, chosen, inputs.data[split], means, **options))
        return {"dose": joined(tables)}

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """Changes by dose, component and data set."""
        from mechcore.ablation.effects.dose import DOSE, DOSES

        if (table := run.filled("dose")) is None:
            return
        yield from map(report.Paragraph, cls.headlines(run))
        columns: list[report.Shown] = ["component", report.groups.PLACED]
        columns += [DOSE[f"change_{100 * dose:.0f}"].called(f"dose {dose:g}") for dose in DOSES]
        columns += ["direct", "indirect"]
        ordered = report.groups.placed(table.sort_values("split", ascending=False, kind="stable"))
        yield report.table_of(ordered, DOSE, _CAPTION, [*columns, "monotone"])

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """How many components act monotonically, and which ones later components repair."""
        from mechcore.ablation.effects.dose import MONOTONE, NOT_MONOTONE, repairs

        if (table := run.filled("dose")) is None:
            return
        for split in OUT_FIRST:
            part = table[table["split"] == split]
            states = part["monotone"].value_counts()
            text = f"{PLACES[split].capitalize()}, {states.get(MONOTONE, 0)} of "
            text += f"{count(len(part), 'component')} change the margin more with every dose"
            if NOT_MONOTONE in states:
                text += f"; for {states[NOT_MONOTONE]} the change is shown not to be monotone"
            named = [_repaired(row) for _, row in part.iterrows() if repairs(row)]
            yield f"{text}. " + (
                f"Later components repair part of the direct effect of {listed(named)}."
                if named
                else "No repair by later components is shown."
            )


def _repaired(row: pd.Series) -> str:
    direct, indirect = (number(row[name], 2, signed=True) for name in ("direct", "indirect"))
    return f"{row['component']} ({direct} nats directly, {indirect} through them)"


_CAPTION = (
    "Change in margin (nats) as more of a component's output is replaced; at dose 1 it is fully "
    "ablated. Direct: the change when only the path from the component to the answer is cut. "
    "Indirect: the rest of the change at dose 1, through later components"
)
