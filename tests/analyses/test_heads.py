"""The section on what heads attend to says what its table says, and the summary, too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up_run import World, write_run

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


@pytest.mark.parametrize(
    ("categories", "said"),
    [
        (
            ["first", "self", "first"],
            "What the 3 core heads attend to: first (2) and self (1).",
        ),
        (["mixed"], "What the core head attends to: mixed (1)."),
    ],
)
def test_the_categories_of_the_core_are_counted(
    run: RunFolder, categories: list[str], said: str
) -> None:
    assert list(Heads.headlines(with_core(run, categories))) == [said]


def test_masses_stand_beside_those_of_uniform_attention(run: RunFolder) -> None:
    core, every = (block for block in Heads.blocks(run) if isinstance(block, Table))
    table = run.tables["head_categories"]
    assert [row[0] for row in core.rows] == run.tables["core"]["component"].tolist()
    assert [row[0] for row in every.rows] == table["component"].tolist()
    assert (core.folded, every.folded) == (False, True)
    first = table.iloc[0]
    column = every.header.index("self")
    assert every.rows[0][column] == f"{100 * first.mass_self:.1f} ({first.ratio_self:.1f}\u00d7)"
    assert "over 256 examples" in every.caption
    without = table.drop(columns="ratio_self")
    run = replace(run, tables={**run.tables, "head_categories": without})
    _, every = (block for block in Heads.blocks(run) if isinstance(block, Table))
    assert every.rows[0][column] == f"{100 * first.mass_self:.1f}"


def test_attention_is_drawn_six_heads_a_figure(run: RunFolder, drawn: list[list[str]]) -> None:
    examples = run.attention_examples
    names = [example.component for example in examples]
    for some, figures_of in (
        (examples, ["attention"]),
        (2 * examples, ["attention-1", "attention-2"]),
    ):
        drawn.clear()
        blocks = list(Heads.blocks(replace(run, attention_examples=some)))
        assert [b.name for b in blocks if isinstance(b, Drawing)][1:] == figures_of
        assert sum(isinstance(block, View) for block in blocks) == 1
    assert drawn == [[*names, *names[:2]], names[2:]]


def test_without_a_core_no_head_is_outlined(run: RunFolder) -> None:
    run = with_core(run, [])
    assert list(Heads.headlines(run)) == []
    picture, note, every, *_ = Heads.blocks(run)
    assert isinstance(note, Paragraph)
    assert note.text == "The core is empty, so no head is outlined."
    assert isinstance(picture, Drawing)
    assert "outlined" not in picture.caption
    assert isinstance(every, Table)


def test_the_section_is_called_by_its_id(run: RunFolder) -> None:
    (section,) = Heads.sections(run)
    assert (section.id, list(section.files)) == ("categories", ["head_categories.csv"])
    (section,) = Heads.sections(replace(run, tables={}))
    assert [block.text for block in section.blocks if isinstance(block, Paragraph)] == [
        "Not run: the sorting of heads by what they attend to."
    ]
