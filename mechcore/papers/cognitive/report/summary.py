"""What a run on the cognitive task found, in short: verdicts and headline numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.papers.cognitive.report.arms import (
    BASE,
    arm_name,
    arms_of,
    fills_of,
    seeds_of,
)
from mechcore.report.blocks import Tile
from mechcore.report.claims import Claims
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import mean_of, whole_range
from mechcore.wording import (
    ALL,
    count,
    number,
    number_range,
    percent,
    sparsity,
)

CLAIMS = Claims(
    "cognitive_verdicts",
    {
        1: "samples",
        2: "head-ablation",
        3: "number-attention",
        4: "decoding",
        5: "selectivity",
        6: "head-decoding",
        7: "projection",
    },
)


def cognitive_tiles(run: RunFolder) -> Iterator[Tile]:
    """How many claims are supported, and samples, accuracies and centres of the trained arms."""
    yield from CLAIMS.tile(run)
    yield from _samples(run.filled("cognitive_samples"))
    yield from _accuracies(run.filled("cognitive_models"))
    yield from _centres(run.filled("cognitive_mass"))


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
        note = f"{percent(part['incongruent'].mean())} of incongruent trials; {mean_of(part)}"
        yield Tile(f"Compared model, {arm_name(arm)}", percent(part["accuracy"].mean()), note)


def _centres(table: pd.DataFrame | None) -> Iterator[Tile]:
    if table is None:
        return
    table = table[(table["fill"] == fills_of(table)[0]) & (table["subset"] == ALL)]
    table = table.dropna(subset=["centre"])
    for arm in _trained(table):
        part = table[table["arm"] == arm]
        spread = number_range(part["centre"])
        note = f"in layers from 0; {mean_of(part)}"
        if len(part) > 1:
            note += f", {spread}"
        value = number(part["centre"].mean())
        yield Tile(f"Centre of ablation, {arm_name(arm)}", f"layer {value}", note)
