"""Figures of sweeps: changes without components, interactions of pairs, sets side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from mechcore.components import Component
from mechcore.data.examples import ALL
from mechcore.report.drawing import (
    BLACK,
    GREY,
    SCALES,
    SERIES_COLOURS,
    GridShape,
    draw_grid,
    ink,
    legend_below,
    new_figure,
    shorten,
    styled,
)
from mechcore.report.groups import data_sets, of_data, subsets_of
from mechcore.wording import split_name

_UNITS = {"accuracy": "points", "margin": "nats"}
_COMPONENT = r"L\d+\.(?:H\d+|MLP)"
_MOST_PAIRED = 80
_MOST_NAMED = 45


@styled
def single_changes(ablation: pd.DataFrame, metric: str = "margin", subset: str = ALL) -> Figure:
    """Change without each single component: layer x head, one panel per data set.

    Args:
        ablation: what `mechcore.sweep` returns; sets with names of their own are left out.
        metric: ``"accuracy"`` (points) or ``"margin"`` (nats).
        subset: of the data.
    """
    singles = by_components(ablation[ablation["kind"] == "single"], 1)
    parts = {
        (split, data): _placed(of_data(singles, split, data, subset))
        for split, data in data_sets(singles)
    }
    parts = {key: part for key, part in parts.items() if not part.empty}
    shape = GridShape.of(next(iter(parts.values())), len(parts))
    scale = SCALES[metric]
    norm = _around_zero(np.concatenate([scale * p[f"{metric}_change"] for p in parts.values()]))
    palette = matplotlib.colormaps["RdBu"]
    width = shape.cell * shape.width * len(parts) + 1.2 * len(parts) + 1.0
    figure = new_figure(max(width, 4.5), shape.cell * shape.n_layers + 1.1, square_cells=True)
    axes = figure.subplots(1, len(parts), squeeze=False)[0]
    for ax, ((split, data), part) in zip(axes, parts.items(), strict=True):
        values = scale * part[f"{metric}_change"]
        texts = [_short(value, float(norm.vmax or 0)) for value in values]
        draw_grid(ax, shape, part, [palette(norm(v)) for v in values], texts, {})
        ax.set_title(shorten(f"{split_name(split)}: {data}"))
    _colour_bar(figure, axes, norm, f"change of {metric} ({_UNITS[metric]})")
    return figure


@styled
def pair_interactions(
    interactions: pd.DataFrame, metric: str = "margin", subset: str = ALL
) -> Figure:
    """Interaction of every two components, one panel per data set.

    Args:
        interactions: what `mechcore.interactions` returns; sets of other sizes or with names of
            their own are left out, and of very many components those in the largest interactions
            are drawn.
        metric: ``"accuracy"`` (points) or ``"margin"`` (nats).
        subset: of the data.
    """
    pairs = by_components(interactions[interactions["metric"] == metric], 2)
    pairs = pairs[pairs["subset"] == subset]
    panels = {
        shorten(f"{split_name(split)}: {data}"): of_data(pairs, split, data)
        for split, data in data_sets(pairs)
    }
    return _pair_grids(panels, metric)


@styled
def atlas(races: Mapping[str, pd.DataFrame]) -> Figure:
    """Interaction of every two components that were raced, one panel per race.

    Args:
        races: decisions on interactions of the margin, see `mechcore.race`, by their titles. One
            per cent of the largest share the darkest colours.
    """
    panels = {
        title: by_components(race, 2).rename(columns={"effect": "interaction"})
        for title, race in races.items()
    }
    return _pair_grids(panels, "margin", share=0.99)


def _pair_grids(panels: Mapping[str, pd.DataFrame], metric: str, share: float = 1) -> Figure:
    """A square of components for each of the panels.

    Args:
        panels: pairs with their interaction, by title.
        metric: of the interaction.
        share: of all values whose colours differ; those of the largest do not.
    """
    names = _most_paired(pd.concat(map(_members, panels.values())))
    scale, n_columns = SCALES[metric], len(panels) if len(panels) < 4 else 2
    n_rows = -(-len(panels) // n_columns)
    norm = _around_zero(
        scale * pd.concat([part["interaction"] for part in panels.values()]).to_numpy(), share
    )
    side = float(np.clip(0.26 * len(names), 2.4, 8.5 if len(panels) == 1 else 4.6))
    figure = new_figure(
        n_columns * (side + 0.8) + 0.9, n_rows * (side + 0.5) + 0.5, square_cells=True
    )
    axes = figure.subplots(n_rows, n_columns, squeeze=False)
    palette = matplotlib.colormaps["RdBu"].with_extremes(bad="#EEEEEE")
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax, (title, part) in zip(axes.flat, panels.items(), strict=False):
        grid = _pair_grid(part, names, scale)
        ax.imshow(grid, cmap=palette, norm=norm, interpolation="nearest")
        _name_components(ax, names)
        ax.set_title(title)
        if len(names) <= 12:
            for (i, j), value in np.ndenumerate(grid):
                if not np.isnan(value):
                    shade = ink(palette(norm(value)))
                    text = _short(value, float(norm.vmax or 0))
                    ax.text(j, i, text, ha="center", va="center", size=5.5, color=shade)
    extend = "neither" if share == 1 else "both"
    _colour_bar(figure, axes, norm, f"interaction on {metric} ({_UNITS[metric]})", extend)
    return figure


def _members(pairs: pd.DataFrame) -> pd.DataFrame:
    """With the columns first and second."""
    members = pairs["set"].str.split("+", expand=True)
    return pairs.assign(first=members[0], second=members[1])


def _pair_grid(pairs: pd.DataFrame, names: Sequence[str], scale: float) -> np.ndarray:
    """What is known of these components in pairs, on both sides of the diagonal."""
    place = {name: i for i, name in enumerate(names)}
    part = _members(pairs)
    part = part[part["first"].isin(place) & part["second"].isin(place)]
    rows, columns = part["first"].map(place), part["second"].map(place)
    grid = np.full((len(names), len(names)), np.nan)
    grid[columns, rows] = grid[rows, columns] = scale * part["interaction"]
    return grid


def _name_components(ax: Axes, names: Sequence[str]) -> None:
    """Name all, or where there are too many the layers, with lines between these."""
    ax.tick_params(length=0, pad=2)
    ax.spines[:].set_visible(False)
    if len(names) <= _MOST_NAMED:
        size = 6.5 if len(names) <= 30 else 4.8
        ax.set_xticks(range(len(names)), names, rotation=90, size=size)
        ax.set_yticks(range(len(names)), names, size=size)
        return
    layers = np.array([Component(name).layer for name in names])
    starts = np.flatnonzero(np.diff(layers, prepend=-1))
    middles = [float(np.flatnonzero(layers == layers[start]).mean()) for start in starts]
    labels = [f"L{layers[start]}" for start in starts]
    ax.set_xticks(middles, labels, size=6.5)
    ax.set_yticks(middles, labels, size=6.5)
    for start in starts[1:]:
        ax.axhline(start - 0.5, color="#999999", lw=0.5)
        ax.axvline(start - 0.5, color="#999999", lw=0.5)


@styled
def set_bars(
    ablation: pd.DataFrame, split: str, data: str, sets: Sequence[str] | None = None
) -> Figure:
    """Accuracy of the full model and without each set on every subset, with intervals.

    Args:
        ablation: what `mechcore.sweep` returns.
        split: ``"id"`` or ``"ood"``.
        data: name of the data set.
        sets: which, in which order; by default all.
    """
    part = of_data(ablation, split, data)
    names = list(dict.fromkeys(part["set"])) if sets is None else list(sets)
    subsets = subsets_of(part, split, data)
    grid = {
        column: 100 * part.pivot(index="set", columns="subset", values=column).loc[names, subsets]
        for column in ("accuracy", "accuracy_change", "accuracy_change_low", "accuracy_change_high")
    }
    width = 0.84 / (len(names) + 1)
    figure = new_figure(
        float(np.clip(1.2 + 0.22 * len(subsets) * (len(names) + 1.5), 5.0, 10.0)), 3.6
    )
    ax = figure.subplots()
    base = np.arange(len(subsets))
    full = (grid["accuracy"] - grid["accuracy_change"]).to_numpy()[0]
    handles = [ax.bar(base - 0.42 + width / 2, full, width, color=BLACK, label="full model")]
    below = (grid["accuracy_change"] - grid["accuracy_change_low"]).to_numpy()
    above = (grid["accuracy_change_high"] - grid["accuracy_change"]).to_numpy()
    for i, (name, heights) in enumerate(zip(names, grid["accuracy"].to_numpy(), strict=True)):
        handles.append(
            ax.bar(
                base - 0.42 + (i + 1.5) * width,
                heights,
                width,
                yerr=np.maximum(0, [below[i], above[i]]),
                error_kw={"elinewidth": 0.8, "ecolor": GREY},
                color=SERIES_COLOURS[i % len(SERIES_COLOURS)],
                hatch="//" if i >= len(SERIES_COLOURS) else None,
                edgecolor="white",
                linewidth=0.3,
                label=shorten(name, 30),
            )
        )
    ax.set_xticks(base, [shorten(s, 22) for s in subsets], rotation=25 if len(subsets) > 4 else 0)
    ax.set_ylim(0, 100)
    ax.set_ylabel("accuracy (%)")
    ax.grid(axis="y")
    ax.set_title(shorten(f"{split_name(split)}: {data}"))
    legend_below(figure, handles)
    return figure


def largest_interactions(overall: pd.DataFrame, limit: int = 30) -> list[str]:
    """Sets in the order of the table; of too many, those with the largest interactions."""
    names = list(dict.fromkeys(overall["set"]))
    if len(names) <= limit:
        return names
    margin = overall[overall["metric"] == "margin"]
    size = margin["interaction"].abs().groupby(margin["set"]).max()
    keep = set(size.nlargest(limit).index)
    return [name for name in names if name in keep]


def by_components(table: pd.DataFrame, size: int) -> pd.DataFrame:
    """Sets of this size that are called by their components."""
    name = r"\+".join([_COMPONENT] * size)
    return table[(table["size"] == size) & table["set"].str.fullmatch(name)]


def _placed(frame: pd.DataFrame) -> pd.DataFrame:
    """With the columns component, layer and head (missing for MLPs)."""
    found = [Component(name) for name in frame["set"]]
    heads = [np.nan if c.head is None else float(c.head) for c in found]
    return frame.assign(component=frame["set"], layer=[c.layer for c in found], head=heads)


def _most_paired(pairs: pd.DataFrame) -> list[str]:
    """Components in order; of too many, those in the largest interactions."""
    sizes = pairs["interaction"].abs()
    strength = pd.concat([sizes.set_axis(pairs[side]) for side in ("first", "second")])
    most = strength.groupby(level=0).max().sort_values(ascending=False, kind="stable")
    return sorted(map(str, most.index[:_MOST_PAIRED]), key=Component)


def _around_zero(values: np.ndarray, share: float = 1) -> Normalize:
    """From the negative to the positive of what so many of the values are at most in size."""
    most = float(np.nanquantile(np.abs(values), share)) or 1.0
    return Normalize(-most, most)


def _colour_bar(
    figure: Figure, axes: np.ndarray, norm: Normalize, label: str, extend: str = "neither"
) -> None:
    image = ScalarMappable(norm, "RdBu")
    options: dict[str, Any] = {"fraction": 0.04, "aspect": 22, "pad": 0.02, "extend": extend}
    figure.colorbar(image, ax=list(axes.flat), label=label, **options)


def _short(value: float, most: float) -> str:
    """A number in a cell: as many decimals as the largest of the figure needs."""
    text = f"{value:.0f}" if most >= 10 else f"{value:.1f}" if most >= 1 else f"{value:.2f}"
    return text.removeprefix("-") if not float(text) else text
