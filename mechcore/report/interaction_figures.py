"""Figures of what sets of components cost beyond their members."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mechcore.report.drawing import (
    BLACK,
    GREY,
    SCALES,
    SERIES_MARKERS,
    Dots,
    draw_dots,
    intervals,
    legend_below,
    new_figure,
    offsets,
    shorten,
    styled,
)
from mechcore.report.figures import set_label, split_colour
from mechcore.report.groups import data_sets, of_data, subsets_of
from mechcore.wording import ALL, split_name

_METRIC_AXES = {"accuracy": "interaction on accuracy (points)", "margin": "on margin (nats)"}


def saturated(table: pd.DataFrame) -> pd.Series:
    """Which joint changes of accuracy saturate, at its floor or at its ceiling."""
    return (table["floor"] | table["ceiling"]) & (table["metric"] == "accuracy")


@styled
def interactions(frame: pd.DataFrame, sets: Sequence[str] | None = None) -> Figure:
    """Interaction of every joint set with its interval, on accuracy and on the margin.

    Below zero the set is superadditive.
    Hollow marks on accuracy are sets whose joint change saturates because accuracy has a floor.
    ``sets`` chooses and orders the rows.
    """
    overall = frame[frame["subset"] == ALL]
    names = list(dict.fromkeys(overall["set"])) if sets is None else list(sets)
    overall = overall[overall["set"].isin(names)]
    overall = overall.assign(row=overall["set"].map(names.index))
    panels = data_sets(overall)
    shifts = offsets(len(panels), 0.44)
    groups = [
        (f"{split_name(split)}: {data}", split, of_data(overall, split, data), shift)
        for (split, data), shift in zip(panels, shifts, strict=True)
    ]
    return _interaction_panels(groups, list(map(set_label, names)))


@styled
def interactions_by_subset(frame: pd.DataFrame, name: str) -> Figure:
    """Interaction of one joint set on every subset, on accuracy and on the margin."""
    part = frame[frame["set"] == name]
    places = [
        (split, data, subset)
        for split, data in data_sets(part)
        for subset in subsets_of(part, split, data)
    ]
    labels = [
        f"{split_name(split)}: {data}" if subset == ALL else subset
        for split, data, subset in places
    ]
    row_of = {place: i for i, place in enumerate(places)}
    keys = zip(part["split"], part["data"], part["subset"], strict=True)
    keyed = part.assign(row=[row_of[key] for key in keys])
    groups = [
        (split_name(split), split, keyed[keyed["split"] == split], 0.0)
        for split in dict.fromkeys(split for split, _, _ in places)
    ]
    return _interaction_panels(groups, labels)


def _interaction_panels(
    groups: Sequence[tuple[str, str, pd.DataFrame, float]],
    labels: Sequence[str],
) -> Figure:
    """Accuracy and margin side by side; a group is (label, split, table with ``row``, offset)."""
    limited = any(bool(saturated(part).any()) for _, _, part, _ in groups)
    row_height = 0.27 if len(groups) < 3 else 0.15 * len(groups)
    figure = new_figure(9.2, 1.3 + row_height * len(labels))
    axes = figure.subplots(1, 2, sharey=True)
    handles: list = []
    for ax, (metric, title) in zip(axes, _METRIC_AXES.items(), strict=True):
        scale = SCALES[metric]
        series: list[Dots] = []
        seen = [split for _, split, _, _ in groups]
        for i, (label, split, part, shift) in enumerate(groups):
            some = part[part["metric"] == metric]
            rows = some["row"].to_numpy()
            series.append(
                Dots(
                    shorten(label),
                    split_colour(split, seen[:i].count(split)),
                    SERIES_MARKERS[i % len(SERIES_MARKERS)],
                    rows,
                    (scale * some["interaction"]).to_numpy(),
                    intervals(rows, scale * some["low"], scale * some["high"]),
                    saturated(some).to_numpy(dtype=bool),
                    shift,
                )
            )
        handles = draw_dots(ax, series, labels if ax is axes[0] else None)
        ax.axvline(0, color=GREY, lw=0.9)
        ax.set_title({"accuracy": "accuracy", "margin": "margin"}[metric])
        ax.set_xlabel(title)
    if limited:
        label = "hollow: the joint change saturates"
        handles.append(Line2D([], [], color=BLACK, marker="o", ls="none", mfc="white", label=label))
    legend_below(figure, handles, columns=3)
    return figure
