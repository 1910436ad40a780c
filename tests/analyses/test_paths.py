"""Who reads the core, in the numbers of the tables."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from analyses.shown import drawings_of, plain
from pages import tables_of, with_tables, words_of

from mechcore.analyses.paths import Paths
from mechcore.report.blocks import Block, Paragraph
from mechcore.report.run_folder import RunFolder, read_run


def nodes_of(blocks: Iterable[Block]) -> dict[str, Any]:
    """What is drawn, by name, with its place."""
    drawing = drawings_of(blocks)[0]
    places = [dot.get_offsets()[0] for dot in drawing.figure.axes[0].collections]
    return {spot.name: (spot, *at) for spot, at in zip(drawing.spots, places, strict=True)}


@pytest.fixture(scope="module")
def blocks(run: RunFolder) -> list[Block]:
    return [*Paths.blocks(run)]


def test_the_verdict_comes_first(run: RunFolder, blocks: list[Block]) -> None:
    [text] = Paths.headlines(run)
    assert text.startswith("The claim that components that generalise read the core is supported:")
    assert blocks[0] == Paragraph(text, lead=True)
    (section,) = Paths.sections(run)
    names = ("core_dependence", "path_information", "core")
    assert (section.id, section.files) == ("readers", [f"{name}.csv" for name in names])


def test_readers_the_core_the_answer_and_paths_are_drawn(blocks: list[Block]) -> None:
    spots = nodes_of(blocks)
    # Those with the largest change first, then the core: no other component loses anything.
    assert [*spots][:4] == ["L2.H2", "L3.H0", "L3.MLP", "L0.H3"]
    assert {"L0.H3", "L1.H5", "answer"} <= set(spots)
    left_to_right = ["L0.H3", "L1.H5", "L2.H2", "L3.H0", "L3.MLP", "answer"]
    places = [spots[name][1] for name in left_to_right]
    assert places == sorted(places)
    assert plain(spots["L2.H2"][0].words) == (
        "L2.H2, in the core. Paths from the core cut: -8.0 points [-9.0, -7.0] out of domain; -4.0 "
        "points [-5.0, -3.0] in domain. Path to the answer cut: -8.0 points [-9.0, -7.0] "
        "out of domain."
    )
    drawing = drawings_of(blocks)[0]
    names = [spot.name for spot in drawing.spots]
    lines = {}
    for line in drawing.figure.axes[0].lines:
        _, *ends = str(line.get_gid()).split("-")
        lines[tuple(names[int(end)] for end in ends)] = line
    assert lines["L2.H2", "answer"].get_linewidth() == 6  # the largest, 8 points
    assert lines["L1.H5", "L2.H2"].get_linewidth() == pytest.approx(0.75 + 5.25 / 2)
    looks = {ends: (line.get_linestyle(), line.get_alpha()) for ends, line in lines.items()}
    assert looks["L1.H5", "L2.H2"] == ("-", 0.75)  # worse when cut
    assert looks["L0.H3", "L3.H0"] == ("--", 0.75)  # better
    assert looks["L0.H3", "L3.MLP"] == ("-", 0.3)  # 0.4 points, give or take 1
    assert ("L1.H5", "answer") not in lines  # 0.1 points
    assert " paths are not drawn: their changes are below 3 % of the largest." in drawing.caption
    assert all(line.get_xdata()[0] < line.get_xdata()[1] for line in lines.values())


def test_the_tables_of_components(blocks: list[Block]) -> None:
    table = tables_of(blocks)[0]
    first, second, third = (dict(zip(table.header, map(plain, r), strict=True)) for r in table.rows)
    assert table.caption.startswith("The 3 components whose information changes most")
    assert [row["receiver"] for row in (first, second, third)] == ["L2.H2", "L3.H0", "L3.MLP"]
    assert first["without it (points)"] == "-16.0 [-17.0, -15.0]"
    assert first["blind to the core (points)"] == "-8.0 [-9.0, -7.0]"
    assert (first["share"], first["p"]) == ("0.50 [0.40, 0.60]", "0.048")
    assert first["blind to random heads (points)"] == "-0.1"
    assert second["blind to the core (points)"] == "+5.0 [+4.0, +6.0]"
    assert second["blind to the core, in domain (points)"] == "+2.5 [+1.5, +3.5]"
    table = tables_of(blocks)[-1]
    assert table.folded
    assert len(table.rows) == 36
    assert [*map(plain, table.rows[0])] == ["L2.H2", "-8.0 [-9.0, -7.0]", "-4.0 [-5.0, -3.0]"]


def test_information_or_a_moved_threshold(run: RunFolder, blocks: list[Block]) -> None:
    assert (
        "Out of domain, judged by intervals, cutting the paths from the core changes only "
        "information for L2.H2 and L3.H0; neither information nor the threshold is shown to change "
        "for L3.MLP. An effect that is not shown may still exist."
    ) in words_of(blocks)
    table = run.tables["core_dependence"]
    ours = table[table["receiver"].isin(["L1.MLP"])].copy()
    ours.loc[ours["metric"] == "information", "blind_change"] = -1e-4  # within its interval
    said = "cutting the paths from the core changes only the threshold for L1.MLP. An effect"
    assert said in words_of(Paths.blocks(with_tables(run, core_dependence=ours)))


def test_one_label_out_of_domain(tmp_path: Path, new_run: Callable[..., Path]) -> None:
    run = read_run(new_run(tmp_path / "run", paths=True, one_label=True))
    blocks = [*Paths.blocks(run)]
    (note,) = [block.text for block in blocks if isinstance(block, Paragraph) and block.note]
    assert (
        "information could not be measured. The graph and the tables show the change in margin"
        in note
    )
    assert "Paths from the core cut: -0.80 nats [" in plain(nodes_of(blocks)["L2.H2"][0].words)
    by_margin, direct = tables_of(blocks)
    assert by_margin.header[1:3] == ["without it (nats)", "blind to the core (nats)"]
    assert direct.header[1:] == ["margin out of domain (nats)", "margin in domain (nats)"]


def test_an_empty_core_no_paths_and_no_roles(
    tmp_path: Path, new_run: Callable[..., Path], run: RunFolder
) -> None:
    empty = read_run(new_run(tmp_path / "empty", paths=True, core=()))
    text = "The core is empty, so no path was cut."
    assert [*Paths.blocks(empty)] == [Paragraph(text, note=True)]
    assert [*Paths.headlines(empty)] == []
    assert [*Paths.sections(read_run(new_run(tmp_path / "without")))] == []
    first, *_ = Paths.blocks(with_tables(run, core=run.tables["core"].assign(verdict="")))
    assert isinstance(first, Paragraph)
    assert first.note
    assert "roles of components are not known" in first.text
