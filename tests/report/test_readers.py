"""Who reads the core, in the numbers of the tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mechcore.report.blocks import Gallery, Paragraph, Section, Table
from mechcore.report.dose_section import dose_section
from mechcore.report.graph_block import Edge, Graph, Node, graph
from mechcore.report.readers import readers_section
from mechcore.report.run_folder import RunFolder, read_run


def section_of(run: RunFolder) -> Section:
    found = readers_section(run, Gallery(run.path, []))
    assert found is not None
    return found


def graph_of(section: Section) -> Graph:
    return next(block for block in section.blocks if isinstance(block, Graph))


@pytest.fixture(scope="module")
def section(rich_run: Path) -> Section:
    return section_of(read_run(rich_run))


def test_the_verdict_comes_first(section: Section) -> None:
    text = (
        "The claim that components that generalise read the core is supported: blind to the core, "
        "the 2 components lose."
    )
    assert section.blocks[0] == Paragraph(text, lead=True)


def test_readers_the_core_and_the_answer_are_drawn(section: Section) -> None:
    drawing = graph_of(section)
    spots = {spot.node.name: spot for spot in drawing.spots}
    # Those with the largest change first, then the core: no other component loses anything.
    assert [*spots][:4] == ["L2.H2", "L3.H0", "L3.MLP", "L0.H3"]
    assert {"L0.H3", "L1.H5", "answer"} <= set(spots)
    left_to_right = ["L0.H3", "L1.H5", "L2.H2", "L3.H0", "L3.MLP", "answer"]
    places = [spots[name].x for name in left_to_right]
    assert places == sorted(places)
    assert spots["L2.H2"].node.words == (
        "L2.H2, in the core. Blind to the core: \u22128.0 points [\u22129.0, \u22127.0] out of "
        "domain; \u22124.0 points [\u22125.0, \u22123.0] in domain. An answer that does not see "
        "it: \u22128.0 points [\u22129.0, \u22127.0] out of domain."
    )


def test_edges_are_as_wide_as_their_effects(section: Section) -> None:
    lines = {(e.edge.sender, e.edge.receiver): e for e in graph_of(section).lines}
    assert lines["L2.H2", "answer"].width == 8  # the largest, 8 points
    half = lines["L1.H5", "L2.H2"]
    assert (half.edge.value, half.width) == pytest.approx((-4, 4.5))
    assert half.edge.look == "worse"
    assert lines["L0.H3", "L3.H0"].edge.look == "better"
    assert lines["L0.H3", "L3.MLP"].edge.look == "worse unsure"  # 0.4 points, give or take 1
    assert ("L1.H5", "answer") not in lines  # 0.1 points
    for line in lines.values():
        assert line.start.x < line.end.x


def test_the_components_that_change_most(section: Section) -> None:
    table = next(block for block in section.blocks if isinstance(block, Table))
    cells = dict(zip(table.header, zip(*table.rows, strict=True), strict=True))
    assert table.caption.startswith("The 3 components whose information changes most")
    assert cells["receiver"] == ("L2.H2", "L3.H0", "L3.MLP")
    assert cells["without it (points)"][0] == "\u221216.0 [\u221217.0, \u221215.0]"
    assert cells["blind to the core (points)"][:2] == (
        *("\u22128.0 [\u22129.0, \u22127.0]", "+5.0 [+4.0, +6.0]"),
    )
    assert cells["share"][0] == "0.50 [0.40, 0.60]"
    assert cells["blind to random heads (points)"][0] == "\u22120.1"
    assert cells["p"][0] == "0.048"
    assert cells["blind to the core, in domain (points)"][1] == "+2.5 [+1.5, +3.5]"


def test_information_or_a_moved_threshold(rich_run: Path, section: Section) -> None:
    text = next(b.text for b in section.blocks if isinstance(b, Paragraph) and not b.lead)
    assert text.startswith(
        "Out of domain, by intervals, being blind to the core changes information alone for L2.H2 "
        "and L3.H0; for L3.MLP a change of neither is shown. What is not shown may be"
    )
    run = read_run(rich_run)
    table = run.tables["core_dependence"]
    ours = table[table["receiver"].isin(["L1.MLP"])].copy()
    ours.loc[ours["metric"] == "information", "blind_drop"] = 1e-4  # within its interval
    found = section_of(RunFolder(run.path, run.config, {**run.tables, "core_dependence": ours}))
    text = next(b.text for b in found.blocks if isinstance(b, Paragraph) and not b.lead)
    assert (
        "by intervals, being blind to the core changes the threshold alone for L1.MLP. What" in text
    )


def test_direct_effects_of_all_components(section: Section) -> None:
    table = [block for block in section.blocks if isinstance(block, Table)][-1]
    assert table.folded
    assert len(table.rows) == 36
    assert table.rows[0] == [
        *("L2.H2", "\u22128.0 [\u22129.0, \u22127.0]", "\u22124.0 [\u22125.0, \u22123.0]")
    ]


def test_one_label_out_of_domain(tmp_path: Path, new_run: Callable[..., Path]) -> None:
    run = read_run(new_run(tmp_path / "run", paths=True, one_label=True))
    section = section_of(run)
    notes = [block.text for block in section.blocks if isinstance(block, Paragraph) and block.note]
    assert len(notes) == 1
    assert "Told of is the change of margin" in notes[0]
    words = {spot.node.name: spot.node.words for spot in graph_of(section).spots}
    assert "Blind to the core: \u22120.80 nats [" in words["L2.H2"]


def test_an_empty_core_and_no_paths(tmp_path: Path, new_run: Callable[..., Path]) -> None:
    section = section_of(read_run(new_run(tmp_path / "empty", paths=True, core=())))
    text = "The core is empty: there is nothing to read, and no path was cut."
    assert section.blocks == [Paragraph(text, note=True)]
    run = read_run(new_run(tmp_path / "without"))
    assert readers_section(run, Gallery(run.path, [])) is None


def test_without_roles_there_is_no_verdict(rich_run: Path) -> None:
    run = read_run(rich_run)
    tables = {name: table for name, table in run.tables.items() if name != "core_verdict"}
    first = section_of(RunFolder(run.path, run.config, tables)).blocks[0]
    assert isinstance(first, Paragraph)
    assert first.note
    assert "roles of components are not known" in first.text


# -- places -----------------------------------------------------------------------------------


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


def test_doses_and_what_is_repaired(rich_run: Path) -> None:
    section = dose_section(read_run(rich_run), Gallery(rich_run, []))
    assert section is not None
    outside, inside, table = section.blocks
    assert outside == Paragraph(
        "Ablated by degrees out of domain, 1 of 2 components change the margin more with every "
        "dose. Later components repair part of the direct effect of L2.H2 (\u22121.00 nats "
        "directly, +1.00 through them)."
    )
    assert isinstance(inside, Paragraph)
    assert isinstance(table, Table)
    changes = [f"\u2212{value}" for value in ("0.10", "0.30", "0.60", "2.00", "1.00", "1.00")]
    assert [cell.split(" ")[0] for cell in table.rows[0][2:8]] == changes
    assert [row[0] for row in table.rows] == ["L1.MLP", "L2.H2"] * 2
    assert [row[-1] for row in table.rows] == ["yes", "open"] * 2
