"""Figures of a run, each drawn from its tables alone. Accuracies are percent, margins nats."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mechcore.attention.examples import AttentionExample
from mechcore.evaluation.metrics import METRICS, as_metric
from mechcore.report import drawing
from mechcore.report.drawing import MAX_WIDTH, SCALES, SERIES_COLOURS, SERIES_MARKERS, shorten
from mechcore.report.groups import data_sets, in_rows, of_data, subsets_of
from mechcore.report.run_folder import SINGLE
from mechcore.wording import ALL, FULL, number, sparsity, split_name

JOINT, NON_CORE = "joint", "non-core"

_CATEGORY_LOOK = {
    "repeated": (drawing.VERMILION, "rep"),
    "previous": (drawing.BLUE, "prev"),
    "next": (drawing.SKY, "next"),
    "separator": (drawing.GREEN, "sep"),
    "first": (drawing.YELLOW, "1st"),
    "self": (drawing.PURPLE, "self"),
    "induction": (drawing.ORANGE, "ind"),
    "mixed": (drawing.LIGHT_GREY, "mix"),
}
_KIND_LOOK = {
    SINGLE: ("one alone", drawing.BLUE, "o"),
    JOINT: ("several together", drawing.VERMILION, "D"),
    NON_CORE: ("others, one at a time", drawing.GREY, "s"),
}


def category_look(name: str) -> tuple[str, str]:
    """Colour and short name of a category of keys."""
    return _CATEGORY_LOOK.get(name, (drawing.GREY, name[:4]))


@drawing.styled
def accuracy_by_subset(
    accuracy: pd.DataFrame, majority: Mapping[tuple[str, str, str], float] | None = None
) -> Figure:
    """Accuracy of all models by subset; ``majority`` are shares of the most frequent labels."""
    frame, places, labels = in_rows(accuracy)
    rest = frame[frame["subnetwork"] != FULL]
    target_sparsities = sorted(rest["target_sparsity"].dropna().unique())
    shifts = drawing.offsets(len(target_sparsities) + 1, 0.2 * len(target_sparsities))
    look = ("full model, with interval", drawing.BLACK, "D")
    columns = ("accuracy", "accuracy_low", "accuracy_high")
    full = frame[frame["subnetwork"] == FULL]
    series = [drawing.dots_of(full, look, columns, 100, offset=shifts[0])]
    for i, target_sparsity in enumerate(target_sparsities):
        part = rest[rest["target_sparsity"] == target_sparsity]
        ends = 100 * part.groupby("row")["accuracy"].agg(["min", "max"])
        series.append(
            drawing.Dots(
                f"subnetworks at {sparsity(target_sparsity)}, one dot per seed",
                SERIES_COLOURS[i % len(SERIES_COLOURS)],
                SERIES_MARKERS[i % len(SERIES_MARKERS)],
                part["row"].to_numpy(),
                100 * part["accuracy"].to_numpy(),
                drawing.intervals(ends.index, ends["min"], ends["max"]),
                offset=shifts[i + 1],
            )
        )
    figure = drawing.new_figure(8.6, 1.1 + (0.22 + 0.1 * len(series)) * len(places))
    ax = figure.subplots()
    handles = drawing.draw_dots(ax, series, labels)
    if majority:
        mark: dict[str, Any] = {"color": drawing.GREY, "marker": "|"}
        shares = [100 * majority.get(place, float("nan")) for place in places]
        ax.scatter(shares, range(len(places)), s=330, linewidths=2.0, zorder=1, **mark)
        label = "always the most frequent label"
        handles.append(Line2D([], [], ms=11, mew=2, ls="none", label=label, **mark))
    for i, (_, _, subset) in enumerate(places):
        if subset == ALL:
            ax.get_yticklabels()[i].set_fontweight("bold")
            if i:
                ax.axhline(i - 0.5, color=drawing.GREY, lw=0.8)
    ax.set(xlim=(-2, 102), xlabel="accuracy (%)")
    drawing.legend_below(figure, handles, columns=2)
    return figure


@drawing.styled
def head_frequency(frequency: pd.DataFrame, core: Collection[str] = ()) -> Figure:
    """How many seeds keep each component, one panel per target sparsity; the core is outlined."""
    cells = frequency.assign(
        value=100 * frequency["frequency"], text=[f"{count:.0f}" for count in frequency["count"]]
    )
    parts = {
        f"target sparsity {sparsity(float(str(share)))}, {part['n_seeds'].max():.0f} seeds": part
        for share, part in cells.groupby("target_sparsity")
    }
    scale = ScalarMappable(Normalize(0, 100), "Blues")
    outlined = dict.fromkeys(core, drawing.VERMILION)
    label = "seeds that keep it (%)"
    return drawing.draw_grids(parts, min(len(parts), 2), scale, label, outlined)


def sets_to_draw(frame: pd.DataFrame, limit: int = 30) -> list[str]:
    """Sets in table order: all if they fit, else single components and the largest joint ones."""
    overall = frame[frame["subset"] == ALL]
    kinds = dict(zip(overall["set"], overall["kind"], strict=True))
    if len(kinds) > limit:
        joint = overall[(overall["kind"] == JOINT) & (overall["split"] == "ood")]
        largest = joint["accuracy_change"].abs().groupby(joint["set"]).max().nlargest(limit)
        others = [name for name, kind in kinds.items() if kind != JOINT]
        keep = {*others, *largest.index[: max(limit - len(others), 5)]}
        kinds = {name: kind for name, kind in kinds.items() if name in keep}
    order = list(_KIND_LOOK)
    return sorted(kinds, key=lambda name: order.index(kinds[name]) if kinds[name] in order else 9)


def set_label(name: str) -> str:
    """A label for a set: its first and last member and its size if the name is too long."""
    members = name.split("+")
    if len(members) < 5:
        return name
    return f"{members[0]}+\u2026+{members[-1]} ({len(members)} components)"


def in_units(metric: str) -> tuple[float, str]:
    """Factor from a table's changes to the unit shown, and the metric's name with that unit."""
    unit = as_metric(metric).unit if metric in METRICS else ""
    unit = "points" if metric == "accuracy" else unit
    return SCALES.get(metric, 1.0), f"{metric} ({unit})" if unit else metric


@drawing.styled
def ablation_changes(ablation: pd.DataFrame, metric: str = "accuracy") -> Figure:
    """Change in a metric without every ablated set, one panel per data set."""
    names = sets_to_draw(ablation)
    overall = ablation[(ablation["subset"] == ALL) & ablation["set"].isin(names)]
    overall = overall.assign(row=overall["set"].map(names.index))
    panels = data_sets(overall)
    size = (min(2.4 + 3.4 * len(panels), MAX_WIDTH), 1.3 + 0.27 * len(names))
    figure, (factor, measured) = drawing.new_figure(*size), in_units(metric)
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    columns = [f"{metric}_change{end}" for end in ("", "_low", "_high")]
    handles = {}
    for ax, (split, data) in zip(axes, panels, strict=True):
        part = of_data(overall, split, data)
        series = [
            drawing.dots_of(some, look, columns, factor)
            for kind, look in _KIND_LOOK.items()
            if len(some := part[part["kind"] == kind])
        ]
        labels = [*map(set_label, names)] if ax is axes[0] else None
        for handle in drawing.draw_dots(ax, series, labels):
            handles[handle.get_label()] = handle
        ax.axvline(0, color=drawing.GREY, lw=0.9)
        ax.set_title(shorten(f"{split_name(split)}: {data}", 40))
        ax.set_xlabel(f"change in {measured}")
    drawing.legend_below(figure, list(handles.values()))
    return figure


@drawing.styled
def ablation_by_subset(ablation: pd.DataFrame, split: str, data: str) -> Figure:
    """Change in accuracy in points without every set (rows) on every subset (columns)."""
    names, subsets = sets_to_draw(ablation), subsets_of(ablation, split, data)
    changes = of_data(ablation, split, data).pivot_table(
        index="set", columns="subset", values="accuracy_change", sort=False
    )
    values = SCALES["accuracy"] * changes.reindex(index=names, columns=subsets).to_numpy(float)
    labels = ["all examples" if name == ALL else shorten(name, 40) for name in subsets]
    cell = 0.5 if len(subsets) <= 12 else 0.36
    height = 0.8 + 0.25 * len(names) + 0.06 * max(map(len, labels))
    figure = drawing.new_figure(min(3.2 + cell * len(subsets), MAX_WIDTH + 2), height)
    ax = figure.subplots()
    scale = drawing.around_zero(values, least=1.0)
    scale.set_cmap("PuOr")
    size = 7.5 if cell > 0.4 else 6.5
    drawing.draw_cells(ax, values, scale, lambda value: number(value, 0), size)
    ax.set_aspect("auto")
    for lines, n in ((ax.axhline, len(names)), (ax.axvline, len(subsets))):
        for i in range(1, n):
            lines(i - 0.5, color="white", lw=0.8)
    ax.set_yticks(range(len(names)), [*map(set_label, names)])
    slanted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(len(subsets)), labels, **slanted)
    drawing.colour_bar(figure, ax, scale, "change in accuracy (points)")
    return figure


@drawing.styled
def head_categories(categories: pd.DataFrame) -> Figure:
    """What each head attends to: layer x head, coloured by category, core heads outlined."""
    shape = drawing.GridShape.of(categories)
    width, height = shape.cell * shape.width + 2.4, shape.cell * shape.n_layers + 0.85
    figure = drawing.new_figure(max(width, 5.0), height, square_cells=True)
    names = categories["category"]
    colours, texts = zip(*map(category_look, names), strict=True)
    core = categories.loc[categories["in_core"], "component"] if "in_core" in categories else []
    outlined = dict.fromkeys(core, drawing.BLACK)
    drawing.draw_grid(figure.subplots(), shape, categories, colours, texts, outlined)
    counts = names.value_counts()
    known = [name for name in _CATEGORY_LOOK if name in counts]
    handles = [
        Patch(facecolor=category_look(name)[0], label=f"{shorten(name, 24)} ({counts[name]})")
        for name in dict.fromkeys([*known, *names])
    ]
    if len(core):
        handles.append(Patch(facecolor="white", edgecolor=drawing.BLACK, lw=2, label="in the core"))
    figure.legend(handles=handles, loc="outside right center", ncols=1)
    return figure


@drawing.styled
def attention_patterns(examples: Sequence[AttentionExample]) -> Figure:
    """Attention of heads on their examples: queries are rows, keys are columns."""
    longest = max(len(example.tokens) for example in examples)
    side = float(np.clip(0.145 * longest + 0.8, 2.6, 8.4))
    columns = min(len(examples), max(1, int((MAX_WIDTH - 0.8) // side)))
    figure, axes = drawing.panels(len(examples), columns, side, side + 0.25)
    scale = ScalarMappable(PowerNorm(0.5, 0, 1), "Blues")
    for ax, example in zip(axes.flat, examples, strict=False):
        n = len(example.tokens)
        drawing.draw_cells(ax, np.array(example.pattern), scale, None)
        step = -(-n // 56)
        names = [shorten(token, 14) for token in example.tokens[::step]]
        size = 7.0 if n <= 32 else 5.5
        ax.set_xticks(range(0, n, step), labels=names, rotation=90, size=size)
        ax.set_yticks(range(0, n, step), labels=names, size=size)
        ax.spines[:].set_visible(True)
        for i in np.flatnonzero(np.diff(example.segments)):
            ax.axhline(i + 0.5, color=drawing.VERMILION, lw=0.8)
            ax.axvline(i + 0.5, color=drawing.VERMILION, lw=0.8)
        ax.set_title(f"{example.component} ({shorten(example.category, 24)})")
        ax.set(xlabel="key", ylabel="query")
    bar = drawing.colour_bar(figure, axes, scale, "attention weight")
    bar.set_ticks([0, 0.1, 0.25, 0.5, 1])
    return figure
