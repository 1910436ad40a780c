"""Doses, in the numbers of their table."""

from pathlib import Path

from pages import tables_of

from mechcore.analyses.dose import Dose
from mechcore.report.blocks import Paragraph
from mechcore.report.run_folder import read_run


def test_doses_and_what_is_repaired(rich_run: Path) -> None:
    run = read_run(rich_run)
    (section,) = Dose.sections(run)
    assert (section.id, section.files) == ("dose", ["dose.csv"])
    assert [*map(Paragraph, Dose.headlines(run))] == section.blocks[:2]
    assert section.blocks[0] == Paragraph(
        "Out of domain, 1 of 2 components change the margin more with every "
        "dose. Later components repair part of the direct effect of L2.H2 (\u22121.00 nats "
        "directly, +1.00 through them)."
    )
    (table,) = tables_of(section.blocks)
    changes = [f"\u2212{value}" for value in ("0.10", "0.30", "0.60", "2.00", "1.00", "1.00")]
    assert [cell.split(" ")[0] for cell in table.rows[0][2:8]] == changes
    assert [row[0] for row in table.rows] == ["L1.MLP", "L2.H2"] * 2
    assert [row[-1] for row in table.rows] == ["yes", "open"] * 2
