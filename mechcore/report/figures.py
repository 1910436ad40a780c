"""Figures of a run, each drawn from its tables alone. Accuracies are percent, margins nats."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mechcore.attention.examples import AttentionExample
from mechcore.report.drawing import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    GRID_MARGIN,
    LIGHT_GREY,
    MAX_WIDTH,
    ORANGE,
    PURPLE,
    SCALES,
    SERIES_COLOURS,
    SERIES_MARKERS,
    SKY,
    SPLIT_COLOURS,
    VERMILION,
    YELLOW,
    Dots,
    GridShape,
    draw_dots,
    draw_grid,
    intervals,
    legend_below,
    new_figure,
    offsets,
    shorten,
    styled,
)
from mechcore.report.groups import data_sets, of_data, places, subsets_of
from mechcore.report.run_folder import SINGLE
from mechcore.wording import ALL, FULL, number, sparsity, split_name

JOINT, NON_CORE = "joint", "non-core"

_CATEGORY_LOOK = {
    "repeated": (VERMILION, "rep"),
    "previous": (BLUE, "prev"),
    "next": (SKY, "next"),
    "separator": (GREEN, "sep"),
    "first": (YELLOW, "1st"),
    "self": (PURPLE, "self"),
    "induction": (ORANGE, "ind"),
    "mixed": (LIGHT_GREY, "mix"),
}
_KIND_LOOK = {SINGLE: (BLUE, "o"), JOINT: (VERMILION, "D"), NON_CORE: (GREY, "s")}
_KIND_LABEL = {SINGLE: "one alone", JOINT: "several together", NON_CORE: "others, one at a time"}


def category_look(name: str) -> tuple[str, str]:
    """Colour and short name of a category of keys."""
    return _CATEGORY_LOOK.get(name, (GREY, name[:4]))


@styled
def accuracy_by_subset(
    accuracy: pd.DataFrame, majority: Mapping[tuple[str, str, str], float] | None = None
) -> Figure:
    """Accuracy of the full model and of every subnetwork, one row per subset.

    Dots are seeds; the line joins the lowest and highest seed of one target sparsity. Grey strokes
    are ``majority``, the shares of the most frequent labels by split, data and subset.
    """
    in_order = places(accuracy)
    row_of = {place: i for i, place in enumerate(in_order)}
    keys = zip(accuracy["split"], accuracy["data"], accuracy["subset"], strict=True)
    frame = accuracy.assign(
        row=[row_of[key] for key in keys],
        accuracy=100 * accuracy["accuracy"],
        low=100 * accuracy["accuracy_low"],
        high=100 * accuracy["accuracy_high"],
    )
    full = frame[frame["subnetwork"] == FULL]
    rest = frame[frame["subnetwork"] != FULL]
    targets = sorted(rest["target_sparsity"].dropna().unique())
    shifts = offsets(len(targets) + 1, 0.2 * len(targets))
    series = [
        Dots(
            "full model, with interval",
            BLACK,
            "D",
            full["row"].to_numpy(),
            full["accuracy"].to_numpy(),
            intervals(full["row"], full["low"], full["high"]),
            offset=shifts[0],
        )
    ]
    for i, target in enumerate(targets):
        part = rest[rest["target_sparsity"] == target]
        ends = part.groupby("row")["accuracy"].agg(["min", "max"])
        series.append(
            Dots(
                f"subnetworks at {sparsity(target)}, one dot per seed",
                SERIES_COLOURS[i % len(SERIES_COLOURS)],
                SERIES_MARKERS[i % len(SERIES_MARKERS)],
                part["row"].to_numpy(),
                part["accuracy"].to_numpy(),
                intervals(ends.index, ends["min"], ends["max"]),
                offset=shifts[i + 1],
            )
        )
    row_height = 0.22 + 0.1 * len(series)
    figure = new_figure(8.6, 1.1 + row_height * len(in_order))
    ax = figure.subplots()
    labels = [
        f"{split_name(split)}: {data}" if subset == ALL else subset
        for split, data, subset in in_order
    ]
    handles = draw_dots(ax, series, labels)
    if majority:
        label = "always the most frequent label"
        shares = [100 * majority.get(place, float("nan")) for place in in_order]
        rows = range(len(in_order))
        ax.scatter(shares, rows, s=330, color=GREY, marker="|", linewidths=2.0, zorder=1)
        handles.append(Line2D([], [], color=GREY, marker="|", ms=11, mew=2, ls="none", label=label))
    for i, (_, _, subset) in enumerate(in_order):
        if subset == ALL:
            ax.get_yticklabels()[i].set_fontweight("bold")
            if i:
                ax.axhline(i - 0.5, color=GREY, lw=0.8)
    ax.set_xlim(-2, 102)
    ax.set_xlabel("accuracy (%)")
    legend_below(figure, handles, columns=2)
    return figure


@styled
def head_frequency(frequency: pd.DataFrame, core: Collection[str] = ()) -> Figure:
    """How many seeds keep each component: layer x head, one panel per target sparsity.

    Components named in ``core`` are outlined.
    """
    targets = sorted(frequency["target_sparsity"].unique())
    columns = min(len(targets), 2)
    shape = GridShape.of(frequency, columns)
    width = shape.cell * shape.width + GRID_MARGIN
    rows = -(-len(targets) // columns)
    height = shape.cell * shape.n_layers + 0.85
    figure = new_figure(max(columns * width + 0.9, 4.0), rows * height + 0.2, square_cells=True)
    axes = figure.subplots(rows, columns, squeeze=False)
    colours = matplotlib.colormaps["Blues"]
    for ax, target in zip(axes.flat, targets, strict=False):
        part = frequency[frequency["target_sparsity"] == target]
        draw_grid(
            ax,
            shape,
            part,
            [colours(value) for value in part["frequency"]],
            [f"{count:.0f}" for count in part["count"]],
            dict.fromkeys(core, VERMILION),
        )
        n_seeds = part["n_seeds"].max()
        ax.set_title(f"target sparsity {sparsity(target)}, {n_seeds:.0f} seeds")
    for ax in axes.flat[len(targets) :]:
        ax.set_visible(False)
    scale = ScalarMappable(Normalize(0, 100), colours)
    figure.colorbar(scale, ax=axes, label="seeds that keep it (%)", fraction=0.03, aspect=25)
    return figure


def sets_to_draw(frame: pd.DataFrame, limit: int = 30) -> list[str]:
    """Sets in the order of the table: all if they fit, else singles and the largest joint changes.

    A table of every subset of a large core has more sets than a figure can show.
    """
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
    """A set as a label: its ends and its size where the whole name would be too long."""
    members = name.split("+")
    if len(members) < 5:
        return name
    return f"{members[0]}+\u2026+{members[-1]} ({len(members)} components)"


@styled
def ablation_changes(ablation: pd.DataFrame, metric: str = "accuracy") -> Figure:
    """Change without every ablated set, with its interval, a panel per data set.

    ``metric`` is ``accuracy`` (drawn in percentage points) or ``margin`` (nats); below zero the
    model is worse.
    """
    overall = ablation[ablation["subset"] == ALL]
    names = sets_to_draw(ablation)
    row_of = {name: i for i, name in enumerate(names)}
    panels = data_sets(overall)
    scale = SCALES[metric]
    unit = "points" if metric == "accuracy" else "nats"
    figure = new_figure(min(2.4 + 3.4 * len(panels), MAX_WIDTH), 1.3 + 0.27 * len(names))
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    handles = {}
    for ax, (split, data) in zip(axes, panels, strict=True):
        part = of_data(overall, split, data)
        part = part[part["set"].isin(row_of)]
        series = []
        for kind, (colour, marker) in _KIND_LOOK.items():
            some = part[part["kind"] == kind]
            if len(some) == 0:
                continue
            rows = some["set"].map(row_of).to_numpy()
            ends = scale * some[[f"{metric}_change_low", f"{metric}_change_high"]]
            series.append(
                Dots(
                    _KIND_LABEL[kind],
                    colour,
                    marker,
                    rows,
                    (scale * some[f"{metric}_change"]).to_numpy(),
                    intervals(rows, *(ends[column] for column in ends)),
                )
            )
        drawn = draw_dots(ax, series, list(map(set_label, names)) if ax is axes[0] else None)
        handles.update({dots.label: handle for dots, handle in zip(series, drawn, strict=True)})
        ax.axvline(0, color=GREY, lw=0.9)
        ax.set_title(shorten(f"{split_name(split)}: {data}", 40))
        ax.set_xlabel(f"change of {metric} ({unit})")
    legend_below(figure, list(handles.values()))
    return figure


@styled
def ablation_by_subset(ablation: pd.DataFrame, split: str, data: str) -> Figure:
    """Change of accuracy in points without every set (rows) on every subset (columns)."""
    names = sets_to_draw(ablation)
    subsets = subsets_of(ablation, split, data)
    changes = (
        of_data(ablation, split, data)
        .pivot_table(index="set", columns="subset", values="accuracy_change", sort=False)
        .reindex(index=names, columns=subsets)
    )
    values = SCALES["accuracy"] * changes.to_numpy(dtype=float)
    largest = max(float(np.nanmax(np.abs(values))), 1.0) if np.isfinite(values).any() else 1.0
    norm = TwoSlopeNorm(0.0, -largest, largest)
    labels = ["all examples" if name == ALL else shorten(name, 40) for name in subsets]
    longest = max(map(len, labels))
    cell = 0.5 if len(subsets) <= 12 else 0.36
    figure = new_figure(
        min(3.2 + cell * len(subsets), MAX_WIDTH + 2), 0.8 + 0.25 * len(names) + 0.06 * longest
    )
    ax = figure.subplots()
    mesh = ax.pcolormesh(values, cmap="PuOr", norm=norm, edgecolors="white", linewidth=0.8)
    for (row, column), value in np.ndenumerate(values):
        shade = "white" if abs(value) > 0.68 * largest else "black"
        text = number(value, 0)
        size = 7.5 if cell > 0.4 else 6.5
        ax.text(column + 0.5, row + 0.5, text, ha="center", va="center", size=size, color=shade)
    ax.set_yticks(np.arange(len(names)) + 0.5, labels=list(map(set_label, names)))
    ax.set_xticks(
        np.arange(len(subsets)) + 0.5,
        labels=labels,
        rotation=45,
        ha="right",
        rotation_mode="anchor",
    )
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    figure.colorbar(mesh, ax=ax, label="change of accuracy (points)", fraction=0.04, aspect=18)
    return figure


def split_colour(split: str, i: int) -> str:
    """Blues for in-domain, reds for out-of-domain data, so that several of a split differ."""
    shades = SPLIT_COLOURS.get(split, SERIES_COLOURS)
    return shades[i % len(shades)]


@styled
def head_categories(categories: pd.DataFrame) -> Figure:
    """What each head attends to: layer x head, coloured by category, core heads outlined."""
    shape = GridShape.of(categories)
    look = {name: category_look(name) for name in categories["category"]}
    width = shape.cell * shape.width
    figure = new_figure(
        max(width + 2.4, 5.0), shape.cell * shape.n_layers + 0.85, square_cells=True
    )
    ax = figure.subplots()
    core = categories["component"].iloc[:0]
    if "in_core" in categories:
        core = categories.loc[categories["in_core"], "component"]
    draw_grid(
        ax,
        shape,
        categories,
        [look[name][0] for name in categories["category"]],
        [look[name][1] for name in categories["category"]],
        dict.fromkeys(core, BLACK),
    )
    order = [name for name in _CATEGORY_LOOK if name in look]
    order += [name for name in look if name not in order]
    counts = categories["category"].value_counts()
    handles = [
        Patch(facecolor=look[name][0], label=f"{shorten(name, 24)} ({counts[name]})")
        for name in order
    ]
    if len(core):
        handles.append(Patch(facecolor="white", edgecolor=BLACK, lw=2, label="in the core"))
    figure.legend(handles=handles, loc="outside right center", ncols=1)
    return figure


@styled
def attention_patterns(examples: Sequence[AttentionExample]) -> Figure:
    """Attention of heads on their examples: queries are rows, keys are columns.

    The colour scale is the same for all heads, and the square root of the weight so that weak
    attention shows, too.
    """
    longest = max(len(example.tokens) for example in examples)
    side = float(np.clip(0.145 * longest + 0.8, 2.6, 8.4))
    columns = min(len(examples), max(1, int((MAX_WIDTH - 0.8) // side)))
    rows = -(-len(examples) // columns)
    figure = new_figure(columns * side + 0.9, rows * (side + 0.25) + 0.1, square_cells=True)
    axes = figure.subplots(rows, columns, squeeze=False)
    image = ScalarMappable(PowerNorm(0.5, 0, 1), "Blues")
    for ax, example in zip(axes.flat, examples, strict=False):
        n = len(example.tokens)
        ax.imshow(example.pattern, cmap=image.cmap, norm=image.norm, interpolation="nearest")
        step = -(-n // 56)
        ticks = range(0, n, step)
        names = [shorten(token, 14) for token in example.tokens[::step]]
        size = 7.0 if n <= 32 else 5.5
        ax.set_xticks(ticks, labels=names, rotation=90, size=size)
        ax.set_yticks(ticks, labels=names, size=size)
        ax.tick_params(length=0, pad=2)
        ax.spines[:].set_visible(True)
        pairs = zip(example.segments, example.segments[1:], strict=False)
        for i, (here, after) in enumerate(pairs):
            if here != after:
                ax.axhline(i + 0.5, color=VERMILION, lw=0.8)
                ax.axvline(i + 0.5, color=VERMILION, lw=0.8)
        ax.set_title(f"{example.component} ({shorten(example.category, 24)})")
        ax.set_xlabel("key")
        ax.set_ylabel("query")
    for ax in axes.flat[len(examples) :]:
        ax.set_visible(False)
    bar = figure.colorbar(image, ax=axes, label="attention weight", fraction=0.03, aspect=25)
    bar.set_ticks([0, 0.1, 0.25, 0.5, 1])
    return figure
