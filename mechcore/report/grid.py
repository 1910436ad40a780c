"""The selectable grid of components, layer by head, and its colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.colors import Normalize, to_hex

from mechcore.ablation.effects.changes import ABLATION
from mechcore.components import Component
from mechcore.report.blocks import Paragraph
from mechcore.report.drawing import SCALES, ink
from mechcore.report.figures import category_look
from mechcore.report.groups import data_sets, of_data, one_label_notes
from mechcore.report.run_folder import RunFolder
from mechcore.wording import (
    ALL,
    count,
    effect,
    number,
    percent,
    sparsity,
    split_name,
    whole,
)

STEPS = 5
"""Number of colours of a scale that the legend shows."""


@dataclass(frozen=True)
class Cell:
    """A component's cell: a short text, its background and text colours, and a description."""

    text: str
    colour: str
    ink: str
    words: str


@dataclass(frozen=True)
class Quantity:
    """A quantity to colour the grid by; ``legend`` holds colours, text colours and meanings."""

    label: str
    cells: Mapping[str, Cell]
    legend: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Grid:
    """Names by layer and column, empty where there is none; the last column may be the MLPs."""

    columns: Sequence[str]
    layers: Sequence[tuple[int, Sequence[str]]]
    quantities: Sequence[Quantity]
    core: frozenset[str]
    notes: Sequence[Paragraph] = ()


def grid_of(run: RunFolder, components: Sequence[str]) -> Grid | None:
    """The grid of these components; None if there are none, or nothing to colour them by."""
    singles = run.singles
    overall = None if singles is None else singles[singles["subset"] == ALL]
    quantities = [*_frequencies(run), *_categories(run)]
    quantities += [] if overall is None else _changes(overall)
    if not components or not quantities:
        return None
    known = {Component.parse(name) for name in components}
    n_heads = max((c.head for c in known if c.head is not None), default=-1) + 1
    columns = [*range(n_heads), *([None] if any(c.head is None for c in known) else [])]
    layers = [
        (layer, [str(c) if (c := Component(layer, head)) in known else "" for head in columns])
        for layer in range(max(c.layer for c in known) + 1)
    ]
    names = ["MLP" if head is None else str(head) for head in columns]
    notes = [] if overall is None else [*one_label_notes(run, overall)]
    return Grid(names, layers, quantities, frozenset(run.core), notes)


def _frequencies(run: RunFolder) -> Iterator[Quantity]:
    if (frequency := run.table("head_frequency")) is None:
        return
    scale = _scale("Blues", Normalize(0, 1))
    legend = _legend(scale, [i / (STEPS - 1) for i in range(STEPS)], percent)
    for target_sparsity, part in frequency.groupby("target_sparsity"):
        cells = {
            row["component"]: _cell(
                whole(row["count"]),
                scale(row["frequency"]),
                f"kept by {whole(row['count'])} of {count(row['n_seeds'], 'seed')}",
            )
            for _, row in part.iterrows()
        }
        at = sparsity(float(str(target_sparsity)))
        yield Quantity(f"seeds that keep it at {at}", cells, legend)


def _categories(run: RunFolder) -> Iterator[Quantity]:
    categories = run.table("head_categories")
    if categories is None or len(categories) == 0:
        return
    look = {name: category_look(name) for name in dict.fromkeys(categories["category"])}
    cells = {
        row["component"]: _cell(
            look[row["category"]][1], look[row["category"]][0], f"attends to: {row['category']}"
        )
        for _, row in categories.iterrows()
    }
    legend = [(colour, ink(colour), name) for name, (colour, _) in look.items()]
    yield Quantity("what it attends to", cells, legend)


def _changes(overall: pd.DataFrame) -> Iterator[Quantity]:
    for split, data in data_sets(overall):
        for metric, unit in (("accuracy", "points"), ("margin", "nats")):
            part = of_data(overall, split, data).dropna(subset=[f"{metric}_change"])
            if len(part):
                label = f"change in {metric} ({unit}), {split_name(split)}: {data}"
                yield _change_quantity(part, metric, label)


def _change_quantity(part: pd.DataFrame, metric: str, label: str) -> Quantity:
    most = float(part[f"{metric}_change"].abs().max()) or 1.0
    scale = _scale("RdBu", Normalize(-most, most))
    shown = ABLATION[f"{metric}_change"]
    digits = 0 if SCALES[metric] * most >= 10 else 1
    cells = {}
    for _, row in part.iterrows():
        change, low, high = (row[f"{metric}_change{end}"] for end in ("", "_low", "_high"))
        words = f"{shown.heading} {shown.show(change, low, high)}"
        text = number(SCALES[metric] * change, digits)
        cells[row["set"]] = _cell(text, scale(change), words)
    ticks = [most * (2 * i / (STEPS - 1) - 1) for i in range(STEPS)]
    return Quantity(label, cells, _legend(scale, ticks, lambda v: effect(v, metric, unit=False)))


def _scale(palette: str, norm: Normalize) -> Callable[[float], str]:
    colours = matplotlib.colormaps[palette]
    return lambda value: to_hex(colours(norm(value)))


def _legend(
    scale: Callable[[float], str], ticks: Sequence[float], words: Callable[[float], str]
) -> list[tuple[str, str, str]]:
    return [(scale(tick), ink(scale(tick)), words(tick)) for tick in ticks]


def _cell(text: str, colour: Any, words: str) -> Cell:
    return Cell(text, to_hex(colour), ink(colour), words)
