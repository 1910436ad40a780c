"""Dots stand where their numbers are, names beside them without touching, and edges have widths."""

from __future__ import annotations

import math
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from pages import Page

from mechcore.report.blocks import Drawing, Gallery, Picture
from mechcore.report.component_figures import Dot, Edge, Node, Reading, drawn_of, graph, scatter


def dot(name: str, x: float, y: float, half: float = math.nan, *, labelled: bool = True) -> Dot:
    readings = (Reading(value, value - half, value + half) for value in (x, y))
    return Dot(name, f"{name} <b>", *readings, "#123456", True, labelled)


def drawn(*dots: Dot) -> Axes:
    return scatter(("across", "up"), dots, [("#123456", "needed")]).axes[0]


def test_dots_and_their_intervals_are_at_their_values() -> None:
    ax = drawn(dot("L0.H0", -6, -20, 1.0), dot("L0.H1", 4, 5))
    places = {spot.get_gid(): spot.get_offsets()[0].tolist() for spot in ax.collections}
    assert places == {"spot-0": [-6, -20], "spot-1": [4, 5]}
    lines = [line.get_xydata().tolist() for line in ax.lines[:4]]
    assert lines[2:] == [[[-7, -20], [-5, -20]], [[-6, -21], [-6, -19]]]
    assert np.isnan(lines[0]).any()  # an interval that is not known is not drawn


def test_names_do_not_overlap_nor_leave_the_drawing() -> None:
    rng = np.random.default_rng(0)
    dots = [dot(f"L{i}.H{j}", *rng.normal(size=2)) for i in range(6) for j in range(6)]
    ax = drawn(*dots, dot("L9.H9", 0, 0, labelled=False))
    boxes = [text.get_window_extent() for text in ax.texts]
    assert len(boxes) > 15
    assert "L9.H9" not in {text.get_text() for text in ax.texts}
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    assert all(ax.bbox.contains(*box.min) and ax.bbox.contains(*box.max) for box in boxes)


def node(name: str, *column: int) -> Node:
    return Node(name, name, column, str(column), "#123456")


NODES = [node("c", 2), node("a", 0), node("d", 3), node("b", 1), node("e", 3)]
EDGES = [
    Edge("a", "d", Reading(0.04, 0.01, 1)),
    Edge("a", "b", Reading(-1.0, -2.0, -0.5)),
    Edge("b", "c", Reading(0.02)),
]


def test_columns_are_in_order_and_nodes_apart() -> None:
    ax = graph(NODES, [], []).axes[0]
    spots = {spot.get_gid(): tuple(spot.get_offsets()[0]) for spot in ax.collections}
    places = dict(zip("cadbe", spots.values(), strict=True))  # the keyboard goes in this order
    assert [*spots] == [f"spot-{i}" for i in range(5)]
    assert [places[name][0] for name in "abcde"] == [0, 1, 2, 3, 3]
    assert (places["d"][1], places["e"][1]) == (0.25, 0.75)
    assert len({y for _, y in places.values()}) > 3  # not all on one line
    assert [t.get_text() for t in ax.get_xticklabels()] == ["(0,)", "(1,)", "(2,)", "(3,)"]


def test_edges_are_as_wide_as_their_effects_and_small_ones_are_left_out() -> None:
    lines = graph(NODES, EDGES, []).axes[0].lines
    assert [line.get_gid() for line in lines] == ["edge-1-3", "edge-1-2"]
    large, small = lines
    assert (large.get_linewidth(), small.get_linewidth()) == pytest.approx((6, 0.75 + 5.25 * 0.04))
    assert [line.get_linestyle() for line in lines] == ["-", "--"]  # worse, better
    assert drawn_of([Edge("a", "b", Reading(0.0))]) == []


def placed(folder: Path, figure: Drawing) -> Picture:
    return Gallery(folder, ()).add(figure)


def test_a_page_gets_spots_that_can_be_chosen_and_edges_with_their_ends(tmp_path: Path) -> None:
    dots = [dot("L0.H0", 1, 2), dot("L0.H1", 3, 4)]
    figure = scatter(("x", "y"), dots, [("#123456", "needed")])
    first = placed(tmp_path, Drawing(figure, "roles", "", 'a "b"', spots=dots))
    second = placed(tmp_path, Drawing(graph(NODES, EDGES, []), "paths", "", "", spots=NODES))
    spots = [attrs for _, attrs in Page(first.inline).tags if attrs.get("class") == "dot"]
    assert [(spot["data-head"], spot["data-rank"]) for spot in spots] == [
        *(("L0.H1", "1"), ("L0.H0", "0"))  # what matters most is drawn last, on top
    ]
    assert spots[0]["aria-label"] == "L0.H1 <b>"
    edges = [attrs for _, attrs in Page(second.inline).tags if attrs.get("class") == "edge"]
    assert [edge["data-ends"] for edge in edges] == ["1 3", "1 2"]
    for html in (first.inline, second.inline):
        assert "//" not in html  # no address
        names, used = (
            set(re.findall(p, html)) for p in (r' id="(.*?)"', r"(?:href=.|url.)#([\w-]+)")
        )
        assert used <= names
    ids = [
        attrs["id"] for p in (first, second) for _, attrs in Page(p.inline).tags if "id" in attrs
    ]
    assert len(ids) == len(set(ids))
