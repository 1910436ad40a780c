"""Figures of a training: accuracy and loss over steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from scipy.optimize import isotonic_regression

from mechcore.report.drawing import (
    BLACK,
    BLUE,
    GREY,
    VERMILION,
    legend_below,
    new_figure,
    shorten,
    styled,
)
from mechcore.wording import ALL, count, split_name

_LOOK = {"id": ("ID", BLUE, "o"), "ood": ("OOD", VERMILION, "s")}
_DASHES = ((0, ()), (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
_MOST_LABELLED = 8
_MOST_MARKED = 40
_LABEL_GAP = 5.2
"""Points of accuracy between two labels, so that they do not touch."""


@dataclass(frozen=True)
class _Line:
    label: str
    colour: str
    values: pd.Series
    bold: bool = False


@styled
def training_curves(history: pd.DataFrame) -> Figure:
    """Accuracy over steps (means over subsets, and out-of-domain subsets thin), loss below.

    Lines are named at their ends; of more than eight subsets none is.
    """
    figure = new_figure(8.6, 5.2)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    by_step = history.pivot_table(
        index="step", columns=["split", "subset"], values="accuracy", sort=False
    ).sort_index()
    named: list[_Line] = []
    bold: list[Line2D] = []
    thin: list[Line2D] = []
    for split in dict.fromkeys(history["split"]):
        subsets = [name for name in by_step[split].columns if name != ALL]
        label, colour, marker = _LOOK.get(split, (split_name(split), GREY, "^"))
        if split == "ood":
            lines = _draw_subsets(top, by_step[split][subsets])
            named += lines if len(lines) <= _MOST_LABELLED else []
            text = f"{count(len(lines), 'subset')} of {label}"
            thin += [Line2D([], [], color=GREY, lw=0.9, label=text)] if lines else []
        values = 100 * by_step[split][subsets or [ALL]].mean(axis=1)
        label += f", mean of {count(len(subsets), 'subset')}" if subsets else ", all examples"
        dots = marker if len(values) <= _MOST_MARKED else None
        look = {"color": colour, "marker": dots, "ms": 4.5, "lw": 2.2, "zorder": 3}
        bold += top.plot(values.index, values, label=label, **look)
        named.append(_Line(label.partition(",")[0], colour, values, bold=True))
    _name(top, named)
    loss = history.groupby("step")["loss"].first()
    dots = "." if len(loss) <= _MOST_MARKED else None
    bottom.plot(loss.index, loss, color=BLACK, lw=1.4, marker=dots)
    top.set_ylim(0, 102)
    top.set_ylabel("accuracy (%)")
    bottom.set_ylim(bottom=0)
    bottom.set_xlim(left=0)
    bottom.set_ylabel("loss (nats)")
    bottom.set_xlabel("training step")
    bottom.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    for ax in (top, bottom):
        ax.grid(axis="y")
    legend_below(figure, [*bold, *thin], columns=3)
    return figure


def _draw_subsets(ax: Axes, accuracy: pd.DataFrame) -> list[_Line]:
    lines = []
    dashes = _DASHES if accuracy.shape[1] <= _MOST_LABELLED else _DASHES[:1]
    for i, name in enumerate(accuracy):
        values = 100 * accuracy[name]
        ax.plot(values.index, values, color=GREY, lw=0.9, ls=dashes[i % len(dashes)])
        lines.append(_Line(shorten(str(name), 24), "#444444", values))
    return lines


def _name(ax: Axes, lines: Sequence[_Line]) -> None:
    """Write every line's name at its last value, moved where two would touch."""
    ends = np.array([line.values.iloc[-1] for line in lines])
    for line, end, place in zip(lines, ends, spread(ends, _LABEL_GAP, 0, 102), strict=True):
        ax.annotate(
            line.label,
            (line.values.index[-1], end),
            (1.03, place),
            textcoords=ax.get_yaxis_transform(),
            va="center",
            color=line.colour,
            fontweight="bold" if line.bold else "normal",
            fontsize=9 if line.bold else 8,
            arrowprops={"arrowstyle": "-", "color": "#AAAAAA", "lw": 0.6, "shrinkA": 1},
            annotation_clip=False,
        )


def spread(places: np.ndarray, gap: float, low: float, high: float) -> np.ndarray:
    """Places at least ``gap`` apart, in the same order and as near as may be to those given.

    >>> spread(np.array([50.0, 51.0, 90.0]), 4, 0, 100).tolist()
    [48.5, 52.5, 90.0]
    """
    order = np.argsort(places, kind="stable")
    step = gap * np.arange(len(places))
    # Least squares with a smallest distance is a monotone fit of the places less their steps.
    level = isotonic_regression(places[order] - step).x
    moved = np.clip(level, low, max(low, high - (step[-1] if len(step) else 0))) + step
    spread_out = np.empty(len(places))
    spread_out[order] = moved
    return spread_out
