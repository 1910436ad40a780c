"""What sections say of the data of their tables."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mechcore.evaluation.recalibration import CANNOT_TELL
from mechcore.main_study.report import REPORT
from mechcore.report.about import components_of, grid_of
from mechcore.report.blocks import Paragraph
from mechcore.report.groups import one_label_notes, population_note
from mechcore.report.run_folder import RunFolder, read_run

PLACES = {"split": ["id", "ood", "ood"], "data": ["mnli", "hans", "hans"], "subset": ["all"] * 3}
ONE_LABEL = Paragraph(f"Only one label on tiny-ood: a change there {CANNOT_TELL}.", note=True)


@pytest.fixture(scope="module")
def two_labels(rich_run: Path) -> RunFolder:
    return read_run(rich_run)


def test_what_intervals_are_for_is_said_where_there_are_clusters() -> None:
    table = pd.DataFrame(PLACES)
    assert not list(population_note(table))
    unknown = table.assign(n_clusters=np.nan, population=None)
    assert not list(population_note(unknown))
    known = table.assign(n_clusters=[np.nan, 60, 60], population=[None, "clusters", "clusters"])
    (note,) = population_note(known)
    text = "Intervals refer to other clusters, such as templates; clusters: 60 of hans."
    assert note.text.startswith(text)
    (other,) = population_note(known.assign(n_clusters=9, population="texts"))
    assert "other texts of the subsets; clusters: 9 of mnli and 9 of hans." in other.text


def test_one_label_out_of_domain_is_said_of_every_change(
    tmp_path: Path, new_run: Callable[..., Path], two_labels: RunFolder
) -> None:
    run = read_run(new_run(tmp_path / "run", sweep=True, roles=True, one_label=True))
    parts = {section.id: section.blocks for section in REPORT.sections(run)}
    for name in ("ablation", "interactions"):
        assert ONE_LABEL in parts[name]
    for folder, notes in ((run, [ONE_LABEL]), (two_labels, [])):
        assert list(one_label_notes(folder, folder.tables["sweep"])) == notes
        grid = grid_of(folder, components_of(folder))
        assert grid is not None
        assert list(grid.notes) == notes


def test_without_a_sweep_the_labels_of_the_data_say_so(two_labels: RunFolder) -> None:
    run = two_labels
    tables = {name: run.tables[name] for name in ("data", "interactions", "superadditive")}
    before = RunFolder(run.path, run.config, tables)
    assert list(one_label_notes(before, tables["interactions"])) == [ONE_LABEL]
    (search,) = (section for section in REPORT.sections(before) if section.id == "search")
    assert ONE_LABEL in search.blocks
    labels = tables["data"]
    other = labels[labels["split"] == "ood"].iloc[[0]].assign(label="entailment")
    after = RunFolder(run.path, run.config, {"data": pd.concat([labels, other])})
    (note,) = one_label_notes(after, tables["interactions"])
    assert note.text == (
        "Only one label on 3 subsets: preposition, embedded_under_if, "
        f"embedded_under_verb of tiny-ood: a change there {CANNOT_TELL}."
    )
