"""Figures of sweeps: changes without components, interactions of pairs, sets side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mechcore.components import Component
from mechcore.report import drawing
from mechcore.report.drawing import MAX_WIDTH, SCALES, SERIES_MARKERS, SPLIT_COLOURS, shorten
from mechcore.report.figures import in_units, set_label
from mechcore.report.groups import data_sets, in_rows, of_data
from mechcore.wording import ALL, number, split_name

_COMPONENT = r"L\d+\.(?:H\d+|MLP)"
_MOST_PAIRED = 80
_MOST_NAMED = 45
_METRIC_AXES = {"accuracy": "interaction on accuracy (points)", "margin": "on margin (nats)"}


@drawing.styled
def single_changes(ablation: pd.DataFrame, metric: str = "margin", subset: str = ALL) -> Figure:
    """Change without each single component: layer x head, one panel per data set."""
    singles = by_components(ablation[ablation["kind"] == "single"], 1)
    singles = singles[singles["subset"] == subset]
    components = [Component(name) for name in singles["set"]]
    factor, measured = in_units(metric)
    values = factor * singles[f"{metric}_change"]
    scale = drawing.around_zero(values)
    cells = singles.assign(
        component=singles["set"],
        layer=[c.layer for c in components],
        head=[np.nan if c.head is None else float(c.head) for c in components],
        value=values,
        text=[drawing.cell_text(value, scale) for value in values],
    )
    parts = _by_data(cells)
    return drawing.draw_grids(parts, len(parts), scale, f"change in {measured}", {})


@drawing.styled
def pair_interactions(interactions: pd.DataFrame, metric: str = "margin") -> Figure:
    """Interaction of every pair, or of components in the largest ones; a panel per data set."""
    pairs = by_components(interactions[interactions["metric"] == metric], 2)
    return _pair_grids(_by_data(pairs[pairs["subset"] == ALL]), metric)


@drawing.styled
def atlas(races: Mapping[str, pd.DataFrame]) -> Figure:
    """Interaction of every raced pair on the margin; the largest one per cent saturate."""
    parts = {
        title: by_components(race, 2).rename(columns={"effect": "interaction"})
        for title, race in races.items()
    }
    return _pair_grids(parts, "margin", share=0.99)


@drawing.styled
def knockout_shares(table: pd.DataFrame) -> Figure:
    """Shares of effects, heads (rows) by categories (columns), in percent, on one data set."""
    shares = table.pivot_table(index="component", columns="category", values="share", sort=False)
    values, (n, columns) = 100 * shares.to_numpy(float), shares.shape
    figure = drawing.new_figure(min(2.6 + 0.6 * columns, MAX_WIDTH), 2.0 + 0.25 * n)
    ax, scale = figure.subplots(), drawing.around_zero(np.clip(values, -100, 100), least=100.0)
    drawing.draw_cells(ax, values, scale, lambda value: number(value, 0), 7.5)
    ax.set_aspect("auto")
    ax.set_yticks(range(n), shares.index.tolist())
    names = [shorten(str(name).replace("_", " "), 24) for name in shares.columns]
    ax.set_xticks(range(columns), names, rotation=45, ha="right", rotation_mode="anchor")
    drawing.colour_bar(figure, ax, scale, "share of the effect (percent)")
    return figure


def _by_data(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {
        shorten(f"{split_name(split)}: {data}"): of_data(table, split, data)
        for split, data in data_sets(table)
    }


def _pair_grids(parts: Mapping[str, pd.DataFrame], metric: str, share: float = 1) -> Figure:
    """A component-by-component grid per part; for ``share`` see `drawing.around_zero`."""
    pairs = pd.concat(parts.values())
    names, (factor, measured) = _most_paired(pairs), in_units(metric)
    scale = drawing.around_zero(factor * pairs["interaction"], share)
    scale.set_cmap(scale.cmap.with_extremes(bad="#EEEEEE"))
    side = float(np.clip(0.26 * len(names), 2.4, 8.5 if len(parts) == 1 else 4.6))
    columns = len(parts) if len(parts) < 4 else 2
    figure, axes = drawing.panels(len(parts), columns, side + 0.8, side + 0.5)
    for ax, (title, part) in zip(axes.flat, parts.items(), strict=False):
        members = part["set"].str.split("+", expand=True)
        grid = pd.DataFrame(np.nan, index=names, columns=names)
        for first, second, value in zip(members[0], members[1], part["interaction"], strict=True):
            if first in grid.index and second in grid.index:
                grid.loc[first, second] = grid.loc[second, first] = factor * value
        few = len(names) <= 12
        text = (lambda value: drawing.cell_text(value, scale)) if few else None
        drawing.draw_cells(ax, grid.to_numpy(), scale, text, 5.5)
        _name_components(ax, names)
        ax.set_title(title)
    label = f"interaction on {measured}"
    drawing.colour_bar(figure, axes, scale, label, "neither" if share == 1 else "both")
    return figure


def _name_components(ax: Axes, names: Sequence[str]) -> None:
    """Label all components, or, if there are too many, the layers, with lines between them."""
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


def largest_interactions(overall: pd.DataFrame, limit: int = 30) -> list[str]:
    """Sets in table order; at most ``limit``, those with the largest interactions."""
    names = list(dict.fromkeys(overall["set"]))
    margin = overall[overall["metric"] == "margin"]
    size = margin["interaction"].abs().groupby(margin["set"]).max()
    keep = set(size.nlargest(limit).index)
    return [name for name in names if name in keep or len(names) <= limit]


def by_components(table: pd.DataFrame, size: int) -> pd.DataFrame:
    """Sets of this size that are named by their components."""
    name = r"\+".join([_COMPONENT] * size)
    return table[(table["size"] == size) & table["set"].str.fullmatch(name)]


def _most_paired(pairs: pd.DataFrame) -> list[str]:
    """Components in order; if there are too many, those in the largest interactions."""
    members = pairs.assign(member=pairs["set"].str.split("+")).explode("member")
    strength = members["interaction"].abs().groupby(members["member"]).max()
    most = strength.sort_values(ascending=False, kind="stable")
    return sorted(map(str, most.index[:_MOST_PAIRED]), key=Component)


@drawing.styled
def responses(table: pd.DataFrame, sets: Sequence[str]) -> Figure:
    """Rank correlations of the changes in margin without sets with features, by split and label."""
    parts = [*table.groupby(["split", "label"], sort=False)]
    features, scale = [*dict.fromkeys(table["feature"])], drawing.around_zero([1.0])
    size = (0.28 * len(features) + 0.8, 0.24 * len(sets) + 1.1)
    figure, axes = drawing.panels(len(parts), 2, *size, least=6.0)
    for ax, ((split, label), part) in zip(axes.flat, parts, strict=False):
        values = part.pivot(index="set", columns="feature", values="rho")
        values = values.reindex(index=sets, columns=features)
        drawing.draw_cells(ax, values.to_numpy(), scale, None)
        ax.set_xticks(range(len(features)), [f.replace("_", " ") for f in features], rotation=90)
        ax.set_yticks(range(len(sets)), sets)
        ax.set_title(f"{split_name(str(split))}: {shorten(str(label), 24)}")
    drawing.colour_bar(figure, axes, scale, "Spearman's rho")
    return figure


def saturated(table: pd.DataFrame) -> pd.Series:
    """Whether each joint change in accuracy saturates at its floor or ceiling."""
    return (table["floor"] | table["ceiling"]) & (table["metric"] == "accuracy")


@drawing.styled
def interactions(frame: pd.DataFrame, sets: Sequence[str] | None = None) -> Figure:
    """Interaction of every joint set, or of ``sets`` in their order, on accuracy and the margin."""
    overall = frame[frame["subset"] == ALL]
    names = list(dict.fromkeys(overall["set"])) if sets is None else list(sets)
    overall = overall[overall["set"].isin(names)]
    overall = overall.assign(row=overall["set"].map(names.index))
    groups = [
        (split, f"{split_name(split)}: {data}", of_data(overall, split, data))
        for split, data in data_sets(overall)
    ]
    return _interaction_panels(groups, [*map(set_label, names)], spread=0.44)


@drawing.styled
def interactions_by_subset(frame: pd.DataFrame, name: str) -> Figure:
    """Interaction of one joint set on every subset, on accuracy and on the margin."""
    rows, places, labels = in_rows(frame[frame["set"] == name])
    groups = [
        (split, split_name(split), rows[rows["split"] == split])
        for split in dict.fromkeys(split for split, _, _ in places)
    ]
    return _interaction_panels(groups, labels, spread=0)


def _interaction_panels(
    groups: Sequence[tuple[str, str, pd.DataFrame]], labels: Sequence[str], spread: float
) -> Figure:
    """Accuracy and margin side by side; a group is (split, label, table with ``row``)."""
    figure = drawing.new_figure(9.2, 1.3 + 0.27 * len(labels))
    axes = figure.subplots(1, 2, sharey=True)
    shifts = drawing.offsets(len(groups), spread)
    handles: list[Any] = []
    for ax, (metric, title) in zip(axes, _METRIC_AXES.items(), strict=True):
        series = []
        for i, (split, label, part) in enumerate(groups):
            colour, marker = SPLIT_COLOURS.get(split, drawing.BLUE), SERIES_MARKERS[i]
            look = (shorten(label), colour, marker)
            some = part[part["metric"] == metric]
            hollow = saturated(some).to_numpy(dtype=bool)
            columns = ("interaction", "low", "high")
            options: dict[str, Any] = {"hollow": hollow, "offset": shifts[i]}
            series.append(drawing.dots_of(some, look, columns, SCALES[metric], **options))
        handles = drawing.draw_dots(ax, series, labels if ax is axes[0] else None)
        ax.axvline(0, color=drawing.GREY, lw=0.9)
        ax.set_title(metric)
        ax.set_xlabel(title)
    if any(saturated(part).any() for _, _, part in groups):
        hole: dict[str, Any] = {"color": drawing.BLACK, "marker": "o", "ls": "none", "mfc": "white"}
        handles.append(Line2D([], [], label="hollow: the joint change saturates", **hole))
    drawing.legend_below(figure, handles, columns=3)
    return figure
