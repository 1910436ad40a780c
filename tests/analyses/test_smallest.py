"""The smallest subnetwork, and how to get it."""

import pytest
from analyses.shown import plain
from pages import tables_of, with_tables, words_of

from mechcore.analyses.smallest import Smallest
from mechcore.report.blocks import Command
from mechcore.report.run_folder import RunFolder


def commands(run: RunFolder) -> list[str]:
    return [block.text for block in Smallest.blocks(run) if isinstance(block, Command)]


def test_what_can_go_together_is_said_with_how_to_get_it(run: RunFolder) -> None:
    (section,) = Smallest.sections(run)
    assert (section.id, section.files) == ("smallest", ["smallest.csv"])
    words, (table,) = words_of(section.blocks), tables_of(section.blocks)
    assert plain(words).startswith(
        "Smallest subnetwork within 1 point of accuracy: s0.50-seed0, which keeps 18 components, a "
        "change of -0.2 points in domain (at worst -0.6) and -0.5 points out of domain (at worst -0"
    )
    assert "of information: none; s0.50-seed0 comes closest of 6 masks" in words
    assert table.header[6:8] == ["change out of domain (points)", "change in domain (points)"]
    changes = ["-0.5 [-0.9, -0.1]", "-0.2 [-0.6, +0.2]"]
    accuracy = ["accuracy out of domain (points)", "accuracy in domain (points)"]
    assert table.header[8:10] == accuracy
    changes += ["-0.5", "-0.2"]
    assert [[*map(plain, row[:10])] for row in table.rows] == [
        ["accuracy", "1", "yes", "s0.50-seed0", "50.0 %", "18", *changes],
        ["information", "1", "no", "s0.50-seed0", "50.0 %", "18", *changes],
    ]
    assert commands(run) == ["mechcore export . --mask s0.50-seed0 --out s0.50-seed0"]
    assert any("within 1 point of accuracy: s0.50-seed0" in t for t in Smallest.headlines(run))


@pytest.mark.parametrize(
    "smallest", [{"within": False}, {"id_accuracy_change": 0.0, "ood_accuracy_change": -0.4}]
)
def test_what_loses_much_is_not_for_export(run: RunFolder, smallest: dict[str, float]) -> None:
    table = run.tables["smallest"].assign(**smallest)
    assert commands(with_tables(run, smallest=table)) == []
