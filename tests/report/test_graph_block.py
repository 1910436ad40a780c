"""Nodes have places, and edges widths."""

from __future__ import annotations

from mechcore.report.graph_block import Edge, Node, graph


def node(name: str, *column: int) -> Node:
    return Node(name, column, str(column), "both", name)


def test_columns_are_in_order_and_nodes_apart() -> None:
    nodes = [node("c", 2), node("a", 0), node("d", 3), node("b", 1), node("e", 3)]
    found = graph("", nodes, [Edge("a", "d", -1.0)], [])
    assert [spot.node.name for spot in found.spots] == ["c", "a", "d", "b", "e"]
    assert [x for x, _ in found.headings] == [12.5, 37.5, 62.5, 87.5]
    places = {spot.node.name: (spot.x, spot.y) for spot in found.spots}
    assert places["d"] == (87.5, 25)
    assert places["e"] == (87.5, 75)
    assert len({y for _, y in places.values()}) > 3  # not all on one line


def test_small_edges_are_counted() -> None:
    nodes = [node("a", 0), node("b", 1)]
    edges = [Edge("a", "b", -1.0, -2.0, -0.5), Edge("a", "b", 0.02), Edge("a", "b", 0.04, 0.01, 1)]
    found = graph("Paths.", nodes, edges, [])
    assert [line.edge.value for line in found.lines] == [-1.0, 0.04]
    assert [line.edge.look for line in found.lines] == ["worse", "better"]
    assert found.caption.startswith("Paths. 1 of 3 paths are not drawn")
    assert graph("", nodes, [], []).lines == []
    assert graph("", nodes, [Edge("a", "b", 0.0)], []).lines == []
