"""Components as points on two axes: every one can be pointed at, chosen, and reached by keyboard.

Places are percents of the drawing's width and height and sizes of letters are not, so that it is
as readable on a phone as on a wide screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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
    kind: str = field(default="scatter", init=False)


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
    ranges = [_range([s.x for s in spots]), _range([s.y for s in spots])]

    def across(value: float) -> float:
        return _share(value, ranges[0])

    def down(value: float) -> float:
        return round(100 - _share(value, ranges[1]), 2)

    places = [(across(s.x.value), down(s.y.value)) for s in spots]
    labels = _labels(spots, places)
    dots = []
    for spot, (x, y), label in zip(spots, places, labels, strict=True):
        lines = []
        if math.isfinite(spot.x.low) and math.isfinite(spot.x.high):
            lines.append((across(spot.x.low), y, across(spot.x.high), y))
        if math.isfinite(spot.y.low) and math.isfinite(spot.y.high):
            lines.append((x, down(spot.y.low), x, down(spot.y.high)))
        dots.append(Dot(spot, x, y, lines, label))
    axes = [
        Axis(title, [(put(tick), number(tick, digits, signed=True)) for tick in ticks], put(0.0))
        for title, put, (ticks, digits) in zip(
            titles, (across, down), map(_ticks, ranges), strict=True
        )
    ]
    return Scatter(caption, axes[0], axes[1], dots, legend)


def _range(readings: Iterable[Reading]) -> tuple[float, float]:
    """From the least to the greatest end of an interval, with zero, and room at both ends."""
    ends = (end for r in readings for end in (r.value, r.low, r.high))
    values = [0.0, *filter(math.isfinite, ends)]
    low, high = min(values), max(values)
    room = 0.07 * (high - low) or 1.0
    return low - room, high + room


def _share(value: float, ends: tuple[float, float]) -> float:
    return round(100 * (value - ends[0]) / (ends[1] - ends[0]), 2)


def _ticks(ends: tuple[float, float]) -> tuple[list[float], int]:
    """Round numbers within the ends, and how many decimals they need."""
    found = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(*ends)
    step = found[1] - found[0]
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [float(tick) for tick in found if ends[0] <= tick <= ends[1]], digits


# -- labels that keep apart ---------------------------------------------------------------------

_SIDES = (
    *((_GAP, -6.0, "start"), (-_GAP, -6.0, "end"), (_GAP, 15.0, "start"), (-_GAP, 15.0, "end")),
    *((0.0, -_GAP - 1, "middle"), (0.0, _GAP + 11, "middle")),
    *((_GAP, 4.0, "start"), (-_GAP, 4.0, "end")),
)
"""Off the cross of the intervals first."""


def _labels(spots: Sequence[Spot], places: Sequence[tuple[float, float]]) -> list[Label | None]:
    """Beside each dot that is to have one, if any side of it is free; phones first."""
    found: list[Label | None] = [None] * len(spots)
    for size, wide_only in ((NARROW, False), (WIDE, True)):
        scaled = np.array(places, float).reshape(-1, 2) * np.array(size) / 100
        marked = scaled[[i for i, spot in enumerate(spots) if spot.labelled]]
        taken = [
            _box(spot.name, scaled[i], label)
            for i, spot in enumerate(spots)
            if (label := found[i]) is not None
        ]
        for i, spot in enumerate(spots):
            if not spot.labelled or found[i] is not None:
                continue
            for side in _SIDES:
                label = Label(*side, wide_only)
                box = _box(spot.name, scaled[i], label)
                if _inside(box, size) and not _covers(box, marked) and not _meets(box, taken):
                    found[i] = label
                    taken.append(box)
                    break
    return found


Box = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels."""


def _box(name: str, at: np.ndarray, label: Label) -> Box:
    width = _LETTER * len(name)
    left = at[0] + label.dx - {"start": 0.0, "middle": width / 2, "end": width}[label.anchor]
    bottom = at[1] + label.dy + 2
    return left, bottom - _LINE, left + width, bottom


def _inside(box: Box, size: tuple[float, float]) -> bool:
    return box[0] >= 0 and box[1] >= 0 and box[2] <= size[0] and box[3] <= size[1]


def _covers(box: Box, dots: np.ndarray) -> bool:
    """Whether a dot lies under the box."""
    x, y = dots.T
    return bool(((x > box[0] - 4) & (x < box[2] + 4) & (y > box[1] - 2) & (y < box[3] + 2)).any())


def _meets(box: Box, others: Iterable[Box]) -> bool:
    return any(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
        for other in others
    )
