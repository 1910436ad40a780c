"""Texts whose answer flips without a component."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mechcore.ablation.effects.flips import COUNTS, FLIPS
from mechcore.ablation.effects.roles import NONE, UNDECIDED
from mechcore.components import Component
from mechcore.report.attention_views import pattern_properties
from mechcore.report.run_folder import RunFolder
from mechcore.wording import OUT_FIRST, PLACES, listed, split_name, whole


@dataclass(frozen=True)
class Flip:
    """One text: where it is from, the answers, and the head's attention on it if drawn."""

    title: str
    texts: Sequence[str]
    answers: str
    attention: dict[str, Any] | None


@dataclass(frozen=True)
class Flips:
    """How many answers flip without a component, and some of them."""

    lead: str
    examples: Sequence[Flip] = ()


def flips_of(run: RunFolder) -> Mapping[str, Flips]:
    """The flips of every component that was ablated for its role, by name."""
    table, roles = run.table("flips"), run.table("roles")
    if table is None or roles is None:
        return {}
    drawn = {
        (each.component, rank): pattern_properties(each)
        for rank, of_rank in enumerate(run.flips_attention, start=1)
        for each in of_rank
    }
    found = {name: Flips("No answer flips without it.") for name in roles["component"]}
    idle = set(roles.loc[roles["role"].isin([NONE, UNDECIDED]), "component"])
    for name, part in table.groupby("component", sort=False):
        rows = part.to_dict("records")
        examples = [_flip(row, drawn.get((str(name), int(row["rank"])))) for row in rows]
        lead = _lead(part.iloc[0], len(part))
        if Component.parse(str(name)).is_head:
            if name in idle:
                lead += " Its attention is not drawn, as no effect of the head is shown."
            elif not all(each.attention for each in examples):
                lead += " Its attention is drawn on short texts only."
        found[str(name)] = Flips(lead, examples)
    return found


def _lead(row: pd.Series, n: int) -> str:
    parts = []
    for split in OUT_FIRST:
        counts = {change: row[name] for (change, of), name in COUNTS.items() if of == split}
        kinds = ", ".join(f"{whole(count)} {change}" for change, count in counts.items() if count)
        total = f"{whole(sum(counts.values()))} {PLACES[split]} ({kinds})"
        parts.append(total if kinds else f"none {PLACES[split]}")
    which = "Those out of domain come first, and those with the largest change of margin."
    if row[[*COUNTS.values()]].sum() == n:
        which = "All are here."
    return f"Without it answers flip: {listed(parts)}. {which}"


def _flip(row: Mapping[Any, Any], attention: dict[str, Any] | None) -> Flip:
    where = f"{row['data']} ({split_name(row['split'])}), {row['subset']}"
    full, without = (
        f"{row[f'answer{end}']}, margin {FLIPS[f'margin{end}'].show(row[f'margin{end}'])} nats"
        for end in ("", "_without")
    )
    return Flip(
        f"{whole(row['rank'])}. {row['change'].capitalize()}: {where}",
        [text for text in (row["text_a"], row["text_b"]) if text],
        f"Label: {row['label']}. Answer: {full}. Without it: {without}.",
        attention,
    )
