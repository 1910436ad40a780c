"""The answers that flip without a component, in a table."""

from pages import rows_of, tables_of, with_tables

from mechcore.analyses.flips import Flips
from mechcore.report.run_folder import RunFolder


def test_texts_that_flip_are_in_a_table_of_what_does_something(run: RunFolder) -> None:
    (section,) = Flips.sections(run)
    (table,) = tables_of(section.blocks)
    assert section.files == ["flips.csv"]
    assert table.folded
    assert table.caption.startswith("Answers that flip without one of ")
    cells = dict(zip(table.header, zip(*rows_of(table), strict=True), strict=True))
    assert cells["component"] == ("L0.H3",) * 3  # neither the idle head nor the MLP
    assert cells["text"][0] == "so_swap 1 saw L0.H3 \u2016 a bird"
    assert cells["answer without"] == ("entailment",) * 3
    assert cells["margin without (nats)"] == ("\u22122.00",) * 3
    idle = run.tables["flips"].query("component != 'L0.H3'")
    assert len(idle)
    for tables in ({"roles": None}, {"flips": None}, {"flips": idle}):
        assert not list(Flips.sections(with_tables(run, **tables)))
