"""The sections on data, training, groups of subsets and the search say what their tables say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from made_up_run import TRAIN_SETTINGS, World, write_run

from mechcore.report import (
    training_section,
)
from mechcore.report.blocks import Gallery, Paragraph, Picture, Section, Table
from mechcore.report.data_section import data_section, most_frequent
from mechcore.report.run_folder import RunFolder, read_run
from mechcore.report.summary import findings, tiles
from mechcore.wording import SPACE

GALLERY: Any = SimpleNamespace(add=lambda _, *words, fold="": Picture(*words, "", 1, 1, fold=fold))


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((training_section, "training_curves"),):
        monkeypatch.setattr(module, name, lambda *_: None)


@pytest.fixture(scope="module")
def run(rich_run: Path) -> RunFolder:
    return read_run(rich_run)


def made(
    make: Callable[[RunFolder, Gallery], Section | None], run: RunFolder
) -> tuple[str, list[Table]]:
    section = make(run, GALLERY)
    assert section is not None
    words = " ".join(block.text for block in section.blocks if isinstance(block, Paragraph))
    tables = [block for block in section.blocks if isinstance(block, Table)]
    return words, tables


def rows(table: Table) -> list[list[str]]:
    return [[cell.replace(SPACE, " ") for cell in row] for row in table.rows]


def changed(run: RunFolder, config: dict[str, Any] | None = None, **tables: Any) -> RunFolder:
    return RunFolder(run.path, config or run.config, {**run.tables, **tables})


def told(run: RunFolder) -> Iterator[str]:
    return (each.text.replace(SPACE, " ") for each in findings(run))


# -- data -----------------------------------------------------------------------------------------


def data_of(labels: dict[tuple[str, str], int], role: str = "ood") -> pd.DataFrame:
    """Counts by subset and label."""
    table = pd.DataFrame(
        [
            {"data": "d", "role": role, "subset": s, "label": label, "n": n}
            for (s, label), n in labels.items()
        ]
    )
    return table.assign(share=0.0)


def test_the_most_frequent_label_of_all_subsets_is_over_their_examples() -> None:
    table = data_of({("a", "yes"): 10, ("a", "no"): 5, ("b", "no"): 25})
    assert most_frequent(table, "ood", "d") == ("no", 0.75)
    assert most_frequent(table, "ood", "d", "a") == ("yes", pytest.approx(2 / 3))
    assert most_frequent(table, "ood", "d", "unknown") is None
    assert most_frequent(data_of({("all", ""): 5}), "ood", "d") is None


def test_data_are_shown_with_what_was_used_cut_and_how_labels_are_balanced(run: RunFolder) -> None:
    words, (overview, subsets) = made(data_section, run)
    assert "12 of 20,000 texts of tiny-train (training) were cut at 128 tokens." in words
    assert "No text was cut" not in words
    assert rows(overview)[0] == [
        "tiny-train (training)",
        "2,000",
        "30,000",
        "12",
        "\u2013",
        "entailment 1,000 (50.0 %), neutral 600 (30.0 %), contradiction 400 (20.0 %)",
    ]
    assert [row[0] for row in overview.rows][1:] == [
        "tiny-id (in-domain)",
        "tiny-ood (out-of-domain)",
    ]
    assert rows(subsets)[0] == [
        "tiny-ood (out-of-domain)",
        "so_swap",
        "500",
        "non-entailment 500 (100.0 %)",
    ]
    assert len(subsets.rows) == 4


def test_of_many_labels_the_most_frequent_are_named_and_the_rest_counted(run: RunFolder) -> None:
    table = data_of({("all", name): 6 - i for i, name in enumerate("abcdef")})
    _, (overview,) = made(data_section, changed(run, data=table))
    assert rows(overview)[0][-1].endswith("d 3 (14.3 %); 2 more in data.csv")


def test_data_without_subsets_are_told_of_the_option(run: RunFolder) -> None:
    option = "name it with --columns subset=NAME"
    assert option in made(data_section, changed(run, data=data_of({("all", "yes"): 7})))[0]
    assert option not in made(data_section, run)[0]


def test_data_without_labels_are_said_to_be(run: RunFolder) -> None:
    words, (overview,) = made(data_section, changed(run, data=data_of({("all", ""): 7}, "train")))
    assert rows(overview)[0][-1] == "without labels 7 (100.0 %)"
    assert "Always answering" not in words


def test_that_nothing_was_cut_is_said_where_it_is_known(run: RunFolder) -> None:
    entries = {role: {"n": 5, "n_cut": 0} for role in ("train", "id", "ood")}
    assert "No text was cut." in made(data_section, changed(run, {"data": entries}))[0]
    del entries["ood"]["n_cut"]
    assert "cut" not in made(data_section, changed(run, {"data": entries}))[0]


def test_the_majority_is_told_in_the_summary(run: RunFolder) -> None:
    assert any(
        "50.0 % of tiny-id (in-domain: entailment) and 100.0 % of tiny-ood" in t for t in told(run)
    )


# -- training -------------------------------------------------------------------------------------


def test_a_training_is_told_in_one_sentence(run: RunFolder) -> None:
    words, _ = made(training_section.training_section, run)
    assert words.startswith(
        "hub/base was fine-tuned for 500 steps on 30,000 examples (tiny-train), 128 examples a "
        "step (2.1 passes), at a learning rate of up to 2e-05 after 10 steps of warm-up, falling "
        "to zero, in float32, with seed 7. It was evaluated 3 times, and 2 checkpoints were kept."
    )


@pytest.mark.parametrize(
    ("more", "kept"), [({}, "1 checkpoint was"), ({"patience": 2}, "2 checkpoints were")]
)
def test_with_a_patience_the_last_checkpoint_is_a_copy_beside_the_others(
    run: RunFolder, more: dict[str, int], kept: str
) -> None:
    settings = {"training": {**TRAIN_SETTINGS, "checkpoint_every": 500, **more}}
    words, _ = made(training_section.training_section, changed(run, {"settings": settings}))
    assert f"It was evaluated 3 times, and {kept} kept." in words
    chosen = "The weights are those of the best evaluation on in-domain data, not of the last step."
    assert (chosen in words) == ("patience" in more)
    assert ("falling to zero" in words) == ("patience" not in more)


def test_a_training_from_scratch_is_called_that(run: RunFolder) -> None:
    settings = {"training": {**TRAIN_SETTINGS, "from_scratch": True}}
    words, _ = made(
        training_section.training_section, changed(run, {**run.config, "settings": settings})
    )
    assert words.startswith("A model built like hub/base was trained from random weights for 500")


def test_a_history_without_settings_is_still_told(run: RunFolder) -> None:
    words, _ = made(training_section.training_section, changed(run, {"model": None}))
    assert words.startswith("The model was fine-tuned for 500 steps. It was evaluated 3 times.")


def test_accuracies_of_a_training_are_means_over_named_subsets(run: RunFolder) -> None:
    words, (table,) = made(training_section.training_section, run)
    assert "ID is over all in-domain examples." in words
    assert (
        "OOD is the mean over 4 subsets, each counting the same: so_swap, preposition, "
        "embedded_under_if, embedded_under_verb."
    ) in words
    assert list(table.header) == ["step", "loss (nats)", "ID (all examples)", "OOD (4 subsets)"]
    mean = sum(2 / (3 + late) for late in (1, 2, 3, 4)) / 4
    assert rows(table)[1] == ["200", "0.500", "66.7 %", f"{100 * mean:.1f} %"]


# -- groups of subsets ----------------------------------------------------------------------------


def test_out_of_domain_numbers_say_over_how_many_subsets(run: RunFolder) -> None:
    notes = {tile.label: tile.note for tile in tiles(run)}
    outside = notes["Full model, out-of-domain"]
    assert outside.endswith("] on tiny-ood, all examples of 4 subsets")
    full = (
        run.tables["accuracy"].query("subnetwork == 'full' and subset == 'all'").set_index("role")
    )
    low, high = (100 * full.at["id", f"accuracy_{end}"] for end in ("low", "high"))
    assert notes["Full model, in-domain"] == f"[{low:.1f}, {high:.1f}] on tiny-id"


# -- runs without any of it -----------------------------------------------------------------------


def test_runs_of_older_versions_have_none_of_these_sections(tmp_path: Path) -> None:
    old = read_run(write_run(tmp_path / "old", World(n_layers=1, n_heads=2, core=())))
    for make in (
        data_section,
        training_section.training_section,
    ):
        assert make(old, GALLERY) is None
