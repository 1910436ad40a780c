"""What every component costs alone, in the numbers of the table."""

from analyses.shown import drawings_of
from pages import rows_of, tables_of, with_tables, words_of

from mechcore.analyses.sweep import Sweep
from mechcore.report.run_folder import RunFolder


def test_every_component_is_drawn_and_listed(run: RunFolder) -> None:
    (section,) = Sweep.sections(run)
    assert (section.id, section.title) == ("sweep", "Every component alone")
    assert section.files == ["sweep.csv"]
    assert words_of(section.blocks) == "Each of 36 components was ablated alone."
    names = ["single-changes-accuracy", "single-changes-margin"]
    assert [drawing.name for drawing in drawings_of(section.blocks)] == names
    (table,) = tables_of(section.blocks)
    assert table.caption.startswith("All 36 components, each ablated alone")
    assert table.folded
    overall = run.tables["sweep"].query("subset == 'all'")
    assert [row[0] for row in rows_of(table)] == overall["set"].tolist()
    accuracies = [f"{100 * value:.1f} %" for value in overall["accuracy"]]
    assert [row[4] for row in rows_of(table)] == accuracies


def test_what_is_not_drawn(run: RunFolder) -> None:
    named = with_tables(run, sweep=run.tables["sweep"].assign(set="my set"))
    assert drawings_of(Sweep.blocks(named)) == []
    for table in (None, run.tables["sweep"][:0]):
        assert [*Sweep.sections(with_tables(run, sweep=table))] == []
