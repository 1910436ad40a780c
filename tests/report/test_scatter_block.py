"""Dots stand where their numbers are, and names beside them without touching."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from mechcore.report.scatter_block import WIDE, Dot, Reading, Scatter, Spot, scatter

LETTER, LINE = 6.0, 12.0  # no name takes less, at 12 pixels


def spot(name: str, x: float, y: float, half: float = math.nan, *, labelled: bool = True) -> Spot:
    readings = (Reading(value, value - half, value + half) for value in (x, y))
    return Spot(name, *readings, "in", True, name, labelled)


def drawn(*spots: Spot) -> Scatter:
    return scatter("caption", ("across", "up"), spots, [])


def test_places_are_shares_of_the_ranges_and_up_is_more() -> None:
    found = drawn(spot("L0.H0", -6, -20), spot("L0.H1", 4, 5))
    # Ten and twenty-five points, with 7 % of each on either side.
    first, second = found.dots
    assert (first.x, first.y) == pytest.approx((100 * 0.07 / 1.14, 100 * 1.07 / 1.14), abs=0.01)
    assert (second.x, second.y) == pytest.approx((100 * 1.07 / 1.14, 100 * 0.07 / 1.14), abs=0.01)
    assert found.x.zero == pytest.approx(100 * 0.67 / 1.14, abs=0.01)
    assert {text: place for place, text in found.x.ticks}["0"] == found.x.zero


def test_lines_are_the_intervals_and_missing_ones_are_not_drawn() -> None:
    found = drawn(spot("L0.H0", -6, -20, 1.0), spot("L0.H1", 4, 5))
    across, up = found.dots[0].lines
    # From the ends at -7 and -21 to the other's values, 11 and 26 points.
    assert across[2] - across[0] == pytest.approx(2 * 100 / 1.14 / 11, abs=0.02)
    assert up[1] - up[3] == pytest.approx(2 * 100 / 1.14 / 26, abs=0.02)
    assert across[1] == across[3] == found.dots[0].y
    assert found.dots[1].lines == []


def test_every_line_ends_within_the_drawing() -> None:
    found = drawn(spot("L0.H0", -1, 1, 30.0), spot("L0.H1", 4, 5, 0.1))
    ends = [end for dot in found.dots for line in dot.lines for end in line]
    assert len(ends) == 16
    assert all(0 < end < 100 for end in ends)


def test_a_single_component_at_zero_has_a_place() -> None:
    dot = drawn(spot("L0.H0", 0, 0)).dots[0]
    assert (dot.x, dot.y) == (50, 50)


def box(dot: Dot) -> tuple[float, float, float, float]:
    assert dot.label is not None
    width = LETTER * len(dot.spot.name)
    left = dot.x * WIDE[0] / 100 + dot.label.dx
    left -= {"start": 0, "middle": width / 2, "end": width}[dot.label.anchor]
    base = dot.y * WIDE[1] / 100 + dot.label.dy
    return left, base - LINE + 3, left + width, base


def test_names_do_not_overlap_nor_leave_the_drawing() -> None:
    rng = np.random.default_rng(0)
    spots = [spot(f"L{i}.H{j}", *rng.normal(size=2)) for i in range(6) for j in range(6)]
    named = [dot for dot in drawn(*spots).dots if dot.label is not None]
    assert len(named) > 15
    boxes = [box(dot) for dot in named]
    for a, b in combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    assert all(left >= 0 and right <= WIDE[0] for left, _, right, _ in boxes)


def test_only_components_with_a_role_are_named() -> None:
    found = drawn(spot("L0.H0", 1, 1, labelled=False), spot("L0.H1", -1, -1))
    assert [dot.label is not None for dot in found.dots] == [False, True]
