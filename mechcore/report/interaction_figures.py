"""Figures of interactions: what sets of components cost beyond their members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mechcore.report import drawing
from mechcore.report.drawing import SCALES, SERIES_COLOURS, SERIES_MARKERS, SPLIT_COLOURS
from mechcore.report.figures import set_label
from mechcore.report.groups import data_sets, in_rows, of_data
from mechcore.wording import ALL, split_name

_METRIC_AXES = {"accuracy": "interaction on accuracy (points)", "margin": "on margin (nats)"}


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
    row_height = 0.27 if len(groups) < 3 else 0.15 * len(groups)
    figure = drawing.new_figure(9.2, 1.3 + row_height * len(labels))
    axes = figure.subplots(1, 2, sharey=True)
    shifts = drawing.offsets(len(groups), spread)
    handles: list = []
    for ax, (metric, title) in zip(axes, _METRIC_AXES.items(), strict=True):
        series = []
        for i, (split, label, part) in enumerate(groups):
            # Blues for in-domain, reds for out-of-domain data, so that data sets of a split differ.
            shades = SPLIT_COLOURS.get(split, SERIES_COLOURS)
            nth = [other for other, _, _ in groups[:i]].count(split)
            marker = SERIES_MARKERS[i % len(SERIES_MARKERS)]
            look = (drawing.shorten(label), shades[nth % len(shades)], marker)
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
