"""Components as points on two axes: every one can be pointed at, chosen, and reached by keyboard.

Places are percents of the drawing's width and height and sizes of letters are not, so that it is
as readable on a phone as on a wide screen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.ticker import MaxNLocator

from mechcore.wording import number

WIDE, NARROW = (640.0, 480.0), (270.0, 330.0)
"""Pixels of the drawing on a screen and on a phone, for labels to keep apart."""
_LETTER, _LINE = 6.8, 14.0  # pixels, of the labels
_GAP = 8.0  # from the middle of a dot to its label


@dataclass(frozen=True)
class Reading:
    """A number with the ends of its interval, which may be missing."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Spot:
    """A component before it has a place; ``look`` is a CSS class, hollow dots are not ``sure``.

    Where there is room, names of those ``labelled`` are written beside them.
    """

    name: str
    x: Reading
    y: Reading
    look: str
    sure: bool
    words: str
    labelled: bool


@dataclass(frozen=True)
class Label:
    """Where a name stands: pixels from its dot, and whether only where there is room for it."""

    dx: float
    dy: float
    anchor: str
    wide_only: bool


@dataclass(frozen=True)
class Dot:
    """A component at its place; lines are (x1, y1, x2, y2)."""

    spot: Spot
    x: float
    y: float
    lines: Sequence[tuple[float, float, float, float]]
    label: Label | None


@dataclass(frozen=True)
class Axis:
    """What an axis tells, its ticks as (place, text), and where zero lies."""

    title: str
    ticks: Sequence[tuple[float, str]]
    zero: float


@dataclass(frozen=True)
class Scatter:
    """The drawing; ``legend`` holds CSS classes with what they mean."""

    caption: str
    x: Axis
    y: Axis
    dots: Sequence[Dot]
    legend: Sequence[tuple[str, str]]


def scatter(
    caption: str,
    titles: tuple[str, str],
    spots: Sequence[Spot],
    legend: Sequence[tuple[str, str]],
) -> Scatter:
    """Place every component.

    Args:
        caption: of the drawing.
        titles: of the two axes.
        spots: what to draw, those that matter most first; they are drawn last, on top.
        legend: CSS classes with what they mean.
    """
    across, x_of = _axis(titles[0], [spot.x for spot in spots], up=False)
    along, y_of = _axis(titles[1], [spot.y for spot in spots], up=True)
    places = [(x_of(spot.x.value), y_of(spot.y.value)) for spot in spots]
    dots = []
    for spot, (x, y), label in zip(spots, places, _labels(spots, places), strict=True):
        lines = []
        if math.isfinite(spot.x.low) and math.isfinite(spot.x.high):
            lines.append((x_of(spot.x.low), y, x_of(spot.x.high), y))
        if math.isfinite(spot.y.low) and math.isfinite(spot.y.high):
            lines.append((x, y_of(spot.y.low), x, y_of(spot.y.high)))
        dots.append(Dot(spot, x, y, lines, label))
    return Scatter(caption, across, along, dots, legend)


def _axis(
    title: str, readings: Sequence[Reading], *, up: bool
) -> tuple[Axis, Callable[[float], float]]:
    """An axis with all intervals, zero and room at both ends; and the place of a value on it."""
    ends = (end for r in readings for end in (r.value, r.low, r.high))
    values = [0.0, *filter(math.isfinite, ends)]
    room = 0.07 * (max(values) - min(values)) or 1.0
    low, high = min(values) - room, max(values) + room

    def place(value: float) -> float:
        share = round(100 * (value - low) / (high - low), 2)
        return round(100 - share, 2) if up else share

    ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
    digits = max(0, -math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9))
    shown = [float(tick) for tick in ticks if low <= tick <= high]
    texts = [(place(tick), number(tick, digits, signed=True)) for tick in shown]
    return Axis(title, texts, place(0.0)), place


# -- labels that keep apart ---------------------------------------------------------------------

_SIDES = (
    *((_GAP, -6.0, "start"), (-_GAP, -6.0, "end"), (_GAP, 15.0, "start"), (-_GAP, 15.0, "end")),
    *((0.0, -_GAP - 1, "middle"), (0.0, _GAP + 11, "middle")),
    *((_GAP, 4.0, "start"), (-_GAP, 4.0, "end")),
)
"""Off the cross of the intervals first."""


def _labels(spots: Sequence[Spot], places: Sequence[tuple[float, float]]) -> list[Label | None]:
    """Beside each dot that is to have one, if any side of it is free; phones first."""
    labels: list[Label | None] = [None] * len(spots)
    named = [i for i, spot in enumerate(spots) if spot.labelled]
    for size, wide_only in ((NARROW, False), (WIDE, True)):
        scaled = np.array(places, float).reshape(-1, 2) * np.array(size) / 100
        taken = [
            _box(spots[i].name, scaled[i], label) for i in named if (label := labels[i]) is not None
        ]
        for i in named:
            for side in _SIDES if labels[i] is None else ():
                label = Label(*side, wide_only)
                box = _box(spots[i].name, scaled[i], label)
                if _is_free(box, size, scaled[named], taken):
                    labels[i] = label
                    taken.append(box)
                    break
    return labels


Box = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels."""


def _box(name: str, at: np.ndarray, label: Label) -> Box:
    width = _LETTER * len(name)
    left = at[0] + label.dx - {"start": 0.0, "middle": width / 2, "end": width}[label.anchor]
    bottom = at[1] + label.dy + 2
    return left, bottom - _LINE, left + width, bottom


def _is_free(box: Box, size: tuple[float, float], dots: np.ndarray, taken: Sequence[Box]) -> bool:
    """Whether a box is inside, off all dots and off the boxes that are taken."""
    left, top, right, bottom = box
    x, y = dots.T
    on_dot = (x > left - 4) & (x < right + 4) & (y > top - 2) & (y < bottom + 2)
    inside = left >= 0 and top >= 0 and right <= size[0] and bottom <= size[1]
    return (
        inside
        and not on_dot.any()
        and not any(
            left < other[2] and other[0] < right and top < other[3] and other[1] < bottom
            for other in taken
        )
    )
