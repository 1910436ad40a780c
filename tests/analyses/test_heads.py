"""The section on what heads attend to says what its table says, and the summary, too."""

from dataclasses import replace

import pytest
from analyses.shown import drawings_of
from made_up_run import World, write_run
from pages import tables_of

from mechcore.analyses.heads import Heads
from mechcore.report import figures
from mechcore.report.blocks import Drawing, Paragraph, Table, View
from mechcore.report.run_folder import RunFolder, read_run


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Heads whose attention is drawn, by figure."""
    names: list[list[str]] = []
    monkeypatch.setattr(figures, "head_categories", lambda _: None)
    monkeypatch.setattr(
        figures, "attention_patterns", lambda part: names.append([e.component for e in part])
    )
    return names


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return read_run(write_run(tmp_path_factory.mktemp("heads") / "run", World()))


def with_core(run: RunFolder, categories: list[str]) -> RunFolder:
    """Core heads of these categories, the first heads of the model."""
    table = run.tables["head_categories"].assign(in_core=False)
    table.loc[: len(categories) - 1, "in_core"] = True
    table.loc[: len(categories) - 1, "category"] = categories
    return replace(run, tables={**run.tables, "head_categories": table})


def test_the_categories_of_the_core_are_counted(run: RunFolder) -> None:
    several = with_core(run, ["first", "self", "first"])
    said = "What the 3 core heads attend to: first (L0.H0, L0.H2) and self (L0.H1)."
    assert list(Heads.headlines(several)) == [said]
    one = with_core(run, ["mixed"])
    assert list(Heads.headlines(one)) == ["What the core head attends to: mixed (1)."]
    run = with_core(run, [])
    assert list(Heads.headlines(run)) == []
    picture, note, every, *_ = Heads.blocks(run)
    assert isinstance(note, Paragraph)
    assert note.text == "The core is empty, so no head is outlined."
    assert isinstance(picture, Drawing)
    assert "outlined" not in picture.caption
    assert isinstance(every, Table)


def test_masses_stand_beside_those_of_uniform_attention(run: RunFolder) -> None:
    core, every = tables_of(Heads.blocks(run))
    table = run.tables["head_categories"]
    assert [row[0] for row in core.rows] == run.core
    assert [row[0] for row in every.rows] == table["component"].tolist()
    assert (core.folded, every.folded) == (False, True)
    first = table.iloc[0]
    column = every.header.index("self")
    assert every.rows[0][column] == f"{100 * first.mass_self:.1f} ({first.ratio_self:.1f}\u00d7)"
    assert "over 256 examples" in every.caption
    without = table.drop(columns="ratio_self")
    run = replace(run, tables={**run.tables, "head_categories": without})
    _, every = tables_of(Heads.blocks(run))
    assert every.rows[0][column] == f"{100 * first.mass_self:.1f}"
    (section,) = Heads.sections(run)
    assert (section.id, list(section.files)) == ("categories", ["head_categories.csv"])
    (section,) = Heads.sections(replace(run, tables={}))
    assert [block.text for block in section.blocks if isinstance(block, Paragraph)] == [
        "Not run: the categories of heads."
    ]


def test_attention_is_drawn_six_heads_a_figure(run: RunFolder, drawn: list[list[str]]) -> None:
    examples = run.attention_examples
    names = [example.component for example in examples]
    for times, figures_of in ((1, ["attention"]), (2, ["attention-1", "attention-2"])):
        drawn.clear()
        blocks = list(Heads.blocks(replace(run, attention_examples=times * examples)))
        assert [drawing.name for drawing in drawings_of(blocks)][1:] == figures_of
        assert sum(isinstance(block, View) for block in blocks) == 1
    assert drawn == [[*names, *names[:2]], names[2:]]
