"""The section on components that are ablated by degrees, and on what the rest makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.ablation.dose import DOSE, DOSES, MONOTONE, NOT_MONOTONE, repairs
from mechcore.report.blocks import Block, Paragraph, Section, Shown, table_of
from mechcore.report.groups import PLACED, placed
from mechcore.report.run_folder import RunFolder
from mechcore.wording import OUT_FIRST, PLACES, count, listed, number

_CAPTION = (
    "Change in margin (nats) as more of a component's output is replaced: at a dose of 1 it is "
    "ablated. Direct is the change where the answer alone does not see the component, indirect the "
    "rest of that at dose 1, through later components"
)


def dose_section(run: RunFolder) -> Section | None:
    """Doses and repair; None for a run without."""
    table = run.filled("dose")
    if table is None:
        return None
    shown: list[Shown] = ["component", PLACED]
    shown += [
        DOSE[f"drop_{100 * dose:.0f}"].called(f"dose {dose:g}", negated=True) for dose in DOSES
    ]
    shown += [DOSE[name].called(name, negated=True) for name in ("direct", "indirect")]
    blocks: list[Block] = [Paragraph(text) for text in dose_sentences(run)]
    ordered = placed(table.sort_values("role", ascending=False, kind="stable"))
    blocks.append(table_of(ordered, DOSE, _CAPTION, [*shown, "monotone"]))
    return Section(
        "dose", "Do effects grow with the dose, and are they repaired?", blocks, ["dose.csv"]
    )


def dose_sentences(run: RunFolder) -> Iterator[str]:
    """How many change the margin more with every dose, and which are repaired."""
    table = run.filled("dose")
    if table is None:
        return
    for role in OUT_FIRST:
        part = table[table["role"] == role]
        states = part["monotone"].value_counts()
        text = f"Ablated by degrees {PLACES[role]}, {states.get(MONOTONE, 0)} of "
        text += f"{count(len(part), 'component')} change the margin more with every dose"
        if NOT_MONOTONE in states:
            text += f", and {states[NOT_MONOTONE]} are shown not to"
        named = [_repaired(row) for _, row in part.iterrows() if repairs(row)]
        yield f"{text}. " + (
            f"Later components repair part of the direct effect of {listed(named)}."
            if named
            else "None is shown to be repaired by later components."
        )


def _repaired(row: pd.Series) -> str:
    direct, indirect = (number(0.0 - row[name], 2, signed=True) for name in ("direct", "indirect"))
    return f"{row['component']} ({direct} nats directly, {indirect} through them)"
