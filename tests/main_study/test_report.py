"""The page of the main study: what comes before the summary, in it, and after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
from pages import with_tables
from study.sources import checkpoint_like, data_config, leave_out_code

from mechcore.analyses import ANALYSES, question_names
from mechcore.analyses.base import Analysis
from mechcore.analyses.flips import Flips
from mechcore.analyses.roles import Roles
from mechcore.errors import InputError
from mechcore.main_study.config import StudyConfig
from mechcore.main_study.plan import make_plan
from mechcore.main_study.report import REPORT, story
from mechcore.report.blocks import Block, Drawing, Finding, Paragraph, Story, Table, Tile
from mechcore.report.run_folder import RunFolder, read_run
from mechcore.steps.config import ModelConfig
from mechcore.training import TrainSettings


@pytest.fixture(scope="module")
def run(rich_run: Path) -> RunFolder:
    """With no more than what comes before the summary is made of, and the data."""
    whole = read_run(rich_run)
    names = ("roles", "flips", "sweep", "data", "accuracy")
    return RunFolder(whole.path, whole.config, {name: whole.tables[name] for name in names})


@dataclass(frozen=True)
class Guest(Analysis):
    """Opens the page."""

    kind: ClassVar[str] = "guest"
    title: ClassVar[str] = "Guest"
    opens: ClassVar[bool] = True

    @classmethod
    def blocks(cls, run: RunFolder) -> Iterator[Block]:
        del run
        yield Paragraph("of a guest")

    @classmethod
    def headlines(cls, run: RunFolder) -> Iterator[str]:
        del run
        yield "of a guest"

    @classmethod
    def tiles(cls, run: RunFolder) -> Iterator[Tile]:
        del run
        yield Tile("guests", "1")


@pytest.fixture
def guest() -> Iterator[None]:
    ANALYSES.register("guest")(Guest)
    yield
    ANALYSES.remove("guest")


def test_roles_and_what_flips_open_the_page_and_occur_there_alone(run: RunFolder) -> None:
    assert REPORT.opening(with_tables(run, roles=None)) is None
    part = REPORT.opening(run)
    assert part is not None
    assert (part.id, part.title) == ("blame", "Which components are to blame?")
    assert part.files == ["roles.csv", "flips.csv"]
    kinds = [type(block) for block in part.blocks]
    assert kinds == [Story, Drawing, Table, Table, Table]
    verdict = next(iter(Roles.headlines(run)))
    assert part.blocks[0] == Story([Finding(verdict, "blame", Roles.title)])
    ids = [section.id for section in REPORT.sections(run)]
    assert ids[0] == "data"
    assert not {"blame", "flips"} & {*ids, *(finding.section for finding in REPORT.findings(run))}
    # The page would have no title for another section.
    assert {finding.section for finding in REPORT.findings(run)} <= set(ids)


@pytest.mark.usefixtures("guest")
def test_an_analysis_of_anyone_may_open_the_page(run: RunFolder) -> None:
    part, alone = REPORT.opening(run), REPORT.opening(with_tables(run, roles=None))
    assert part is not None
    assert alone is not None
    assert part.blocks[-1] == alone.blocks[-1] == Paragraph("of a guest")
    assert (part.id, alone.id, alone.title) == ("blame", "guest", "Guest")
    assert "guest" not in [section.id for section in REPORT.sections(run)]
    assert "of a guest" not in [finding.text for finding in REPORT.findings(run)]


def test_the_story_is_made_of_first_headlines_which_the_summary_leaves_out(run: RunFolder) -> None:
    class Teller(Guest):
        section = "data"
        opens = False
        first = True
        story = True

    ANALYSES.register("guest")(Teller)
    try:
        lines, texts = [*story(run)], [finding.text for finding in REPORT.findings(run)]
    finally:
        ANALYSES.remove("guest")
    assert [line.section for line in lines] == ["data", "blame"]
    assert lines[0] == Finding("of a guest", "data", "Guest")
    assert not {line.text for line in lines} & {*texts}


def test_tiles_are_those_of_analyses(run: RunFolder, request: pytest.FixtureRequest) -> None:
    own = [tile.label for tile in REPORT.tiles(run)]
    assert own[:2] == ["Full model, out-of-domain", "Full model, in-domain"]
    request.getfixturevalue("guest")
    assert Tile("guests", "1") in REPORT.tiles(run)
    # A run for effective sizes alone says nothing of masks.
    sizes = RunFolder(run.path, {"target_sparsities": []}, {"data": run.tables["data"]})
    assert [section.id for section in REPORT.sections(sizes)] == ["data"]


def test_what_a_study_begins_with_is_no_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_code(monkeypatch)
    study = StudyConfig(
        model=ModelConfig(source=str(checkpoint_like(tmp_path / "model"))),
        data=data_config(tmp_path / "data"),
        training=TrainSettings(steps=5, batch_size=4),
    )
    first, second, *_ = make_plan(study).jobs
    assert [first.name, second.name] == ["training", "describe"]
    assert (type(first.step), type(second.step)) == (ANALYSES["training"], ANALYSES["data"])
    for name in ("data", "training"):
        assert name in ANALYSES
        assert name not in question_names()
        with pytest.raises(InputError, match=f"only: {name} cannot be run on its own"):
            make_plan(replace(study, only=(name,)))


def test_every_table_has_one_schema() -> None:
    names = [schema.name for schema in REPORT.tables()]
    assert names[:2] == ["data", "training"]
    assert len(names) == len(set(names))
    assert {schema.name for kind in (Roles, Flips) for schema in kind.schemas} <= set(names)


@pytest.mark.parametrize(
    ("settings", "data", "title"),
    [
        ({"analyses": {"failure": None}}, ["id", "ood"], "What the answers of m depend on"),
        ({"analyses": {"failure": {"n_pairs": 6}}}, ["id"], "What the answers of m depend on"),
        ({"analyses": {"failure": {"n_pairs": 6}}}, ["ood"], "Does m fail out of domain, and why?"),
        ({"only": ["repair"]}, ["id", "ood"], "What can be repaired: m"),
        ({"only": ["effective_size"]}, ["id", "ood"], "Effective size of m"),
    ],
)
def test_the_title_names_the_question(
    settings: dict[str, object], data: list[str], title: str
) -> None:
    assert REPORT.title("m", {"settings": settings, "data": {split: {} for split in data}}) == title
