"""What a run on the cognitive task found, in short: verdicts and headline numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.report.blocks import Finding, Paragraph, Tile
from mechcore.report.cognitive.arms import (
    BASE,
    arm_name,
    arms_of,
    modes_of,
    seeds_of,
    table_of,
    whole_range,
)
from mechcore.report.run_folder import RunFolder
from mechcore.report.wording import (
    ALL,
    count,
    number,
    number_range,
    percent,
    sparsity,
)

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decidable here"
VERDICTS = "verdicts"
SECTIONS = {
    1: "samples",
    2: "head-ablation",
    3: "number-attention",
    4: "decoding",
    5: "selectivity",
    6: "head-decoding",
    7: "projection",
}
"""The section with the figures of a claim."""


def cognitive_findings(run: RunFolder) -> Iterator[Finding]:
    """The verdict on every claim; their numbers stand in the table of verdicts."""
    table = table_of(run, "cognitive_verdicts")
    if table is None:
        return
    for _, row in table.iterrows():
        verdict = row["verdict"][:1].upper() + row["verdict"][1:]
        yield Finding(f"{verdict}: {_title(row)}.", SECTIONS.get(row["claim"], VERDICTS))


def claim_lines(run: RunFolder, claim: int) -> Iterator[Paragraph]:
    """The claim that a section is about, and the verdict; nothing where there is none."""
    table = table_of(run, "cognitive_verdicts")
    if table is None:
        return
    for _, row in table[table["claim"] == claim].iterrows():
        yield Paragraph(f"Claim {claim}: {_title(row)}. Verdict: {row['verdict']}.")


def _title(row: pd.Series) -> str:
    return str(row["title"]).rstrip(".")


def cognitive_tiles(run: RunFolder) -> Iterator[Tile]:
    """How many claims hold, then samples, accuracies and centres of mass of the trained arms."""
    yield from _claims(table_of(run, "cognitive_verdicts"))
    yield from _samples(table_of(run, "cognitive_samples"))
    yield from _accuracies(table_of(run, "cognitive_models"))
    yield from _centres(table_of(run, "cognitive_mass"))


def _claims(table: pd.DataFrame | None) -> Iterator[Tile]:
    if table is None:
        return
    n = table["verdict"].value_counts()
    held, failed, left = (int(n.get(name, 0)) for name in (HOLDS, FAILS, OPEN))
    note = f"{failed} {'does' if failed == 1 else 'do'} not hold, {left} not decidable here"
    yield Tile("Claims that hold", f"{held} of {len(table)}", note)


def _trained(table: pd.DataFrame) -> list[str]:
    return [arm for arm in arms_of(table) if arm != BASE]


def _seeds(part: pd.DataFrame) -> str:
    return count(len(seeds_of(part)), "seed")


def _samples(table: pd.DataFrame | None) -> Iterator[Tile]:
    if table is None:
        return
    for arm in _trained(table):
        part = table[table["arm"] == arm]
        reached = part["samples"].dropna()
        note = _seeds(part)
        if len(reached) < len(part):
            missed = f"not by {whole_range(part['largest'])}"
            note = f"{missed}, {note}" if len(reached) == 0 else f"{note}, {missed} in the others"
        if 0 < len(reached) < len(part):
            note = f"in {len(reached)} of {note}"
        threshold = part["threshold"].iloc[0]
        label = f"Samples to {sparsity(threshold)}, {arm_name(arm)}"
        yield Tile(label, whole_range(reached) if len(reached) else "not reached", note)


def _accuracies(table: pd.DataFrame | None) -> Iterator[Tile]:
    if table is None:
        return
    for arm in _trained(table):
        part = table[table["arm"] == arm]
        note = f"{percent(part['incongruent'].mean())} of incongruent trials; {_mean_of(part)}"
        yield Tile(f"Compared model, {arm_name(arm)}", percent(part["accuracy"].mean()), note)


def _centres(table: pd.DataFrame | None) -> Iterator[Tile]:
    if table is None:
        return
    table = table[(table["mode"] == modes_of(table)[0]) & (table["subset"] == ALL)]
    table = table.dropna(subset=["centre"])
    for arm in _trained(table):
        part = table[table["arm"] == arm]
        spread = number_range(part["centre"])
        note = f"in layers from 0; {_mean_of(part)}"
        if len(part) > 1:
            note += f", {spread}"
        value = number(part["centre"].mean())
        yield Tile(f"Centre of ablation, {arm_name(arm)}", f"layer {value}", note)


def _mean_of(part: pd.DataFrame) -> str:
    n = len(seeds_of(part))
    return f"mean of {n} seeds" if n > 1 else "1 seed"
