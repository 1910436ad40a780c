"""A training is described and drawn from its table and settings."""

from dataclasses import replace
from typing import Any

from analyses.shown import drawings_of
from made_up_run import TRAIN_SETTINGS
from pages import rows_of, tables_of, with_tables, words_of

from mechcore.analyses.training import Train
from mechcore.report.run_folder import RunFolder


def headline(run: RunFolder, **config: Any) -> str:
    return " ".join(Train.headlines(replace(run, config=config or run.config)))


def test_a_training_is_described_in_one_sentence(run: RunFolder) -> None:
    assert headline(run) == (
        "hub/base was fine-tuned for 500 steps on 30,000 examples (tiny-train), 128 examples a "
        "step (2.1 passes), with a learning rate of up to 2e-05 and seed 7; all settings are under "
        "Method."
    )
    words = headline(run, settings={"training": {**TRAIN_SETTINGS, "patience": 2}})
    assert "The weights are those of the best evaluation on in-domain data, not of the" in words
    settings = {"training": {**TRAIN_SETTINGS, "from_scratch": True}}
    words = headline(run, **{**run.config, "settings": settings})
    assert words.startswith("A model built like hub/base was trained from random weights for 500")
    assert headline(run, model=None) == "The model was fine-tuned for 500 steps."


def test_accuracies_of_a_training_are_means_over_named_subsets(run: RunFolder) -> None:
    (section,) = Train.sections(run)
    assert (section.id, section.files) == ("training", ["training.csv"])
    words, (table,) = words_of(section.blocks), tables_of(section.blocks)
    assert words.startswith(headline(run))
    *header, last = table.header
    assert header == ["step", "loss (nats)", "ID (all examples)"]
    assert last.startswith("OOD (4 subsets: so_swap, prepos")
    mean = sum(2 / (3 + late) for late in (1, 2, 3, 4)) / 4
    assert rows_of(table)[1] == ["200", "0.500", "66.7 %", f"{100 * mean:.1f} %"]
    assert [drawing.name for drawing in drawings_of(section.blocks)] == ["training"]
    for history in (None, run.tables["training"][:0]):
        without = with_tables(run, training=history)
        assert not [*Train.sections(without), *Train.headlines(without)]
