"""A training is told and drawn as its table and its settings are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made_up_run import TRAIN_SETTINGS
from pages import rows_of, tables_of, with_tables, words_of

from mechcore.analyses.training import Train
from mechcore.report.blocks import Drawing
from mechcore.report.run_folder import RunFolder


def told(run: RunFolder, **config: Any) -> str:
    return " ".join(Train.headlines(replace(run, config=config or run.config)))


def test_a_training_is_told_in_one_sentence(run: RunFolder) -> None:
    (sentence,) = Train.headlines(run)
    assert sentence == (
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
    words = told(run, settings=settings)
    assert f"It was evaluated 3 times, and {kept} kept." in words
    chosen = "The weights are those of the best evaluation on in-domain data, not of the last step."
    assert (chosen in words) == ("patience" in more)
    assert ("falling to zero" in words) == ("patience" not in more)


def test_a_training_from_scratch_is_called_that(run: RunFolder) -> None:
    settings = {"training": {**TRAIN_SETTINGS, "from_scratch": True}}
    words = told(run, **{**run.config, "settings": settings})
    assert words.startswith("A model built like hub/base was trained from random weights for 500")


def test_a_history_without_settings_is_still_told(run: RunFolder) -> None:
    words = told(run, model=None)
    assert words == "The model was fine-tuned for 500 steps. It was evaluated 3 times."


def test_accuracies_of_a_training_are_means_over_named_subsets(run: RunFolder) -> None:
    (section,) = Train.sections(run)
    assert (section.id, section.files) == ("training", ["training.csv"])
    words, (table,) = words_of(section.blocks), tables_of(section.blocks)
    assert words.startswith(told(run))
    assert "ID is over all in-domain examples." in words
    assert (
        "OOD is the mean over 4 subsets, each counting the same: so_swap, preposition, "
        "embedded_under_if, embedded_under_verb."
    ) in words
    assert list(table.header) == ["step", "loss (nats)", "ID (all examples)", "OOD (4 subsets)"]
    mean = sum(2 / (3 + late) for late in (1, 2, 3, 4)) / 4
    assert rows_of(table)[1] == ["200", "0.500", "66.7 %", f"{100 * mean:.1f} %"]
    assert [block.name for block in section.blocks if isinstance(block, Drawing)] == ["training"]


def test_without_a_training_there_is_no_section(run: RunFolder) -> None:
    for history in (None, run.tables["training"][:0]):
        without = with_tables(run, training=history)
        assert not [*Train.sections(without), *Train.headlines(without)]
