"""Recipes against the paper's numbers, and settings that make no sense."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mechcore.errors import InputError
from mechcore.training import PRESETS, TrainSettings, train_settings

MNLI, QQP = 392_702, 363_846
"""Training examples of the data sets."""

# arXiv 2403.03942, appendix; see the docstring of PRESETS for what it does not say.


def test_mnli_as_in_the_paper() -> None:
    settings = PRESETS["bert-mnli"]
    assert PRESETS["roberta-mnli"] == settings
    sizes: dict[str, Any] = {"epochs": 5, "batch_size": 32, "max_length": 128}
    every: dict[str, Any] = {"evaluate_every": 500, "checkpoint_every": 500}
    assert settings == TrainSettings(learning_rate=2e-5, weight_decay=0.0, **sizes, **every)
    assert settings.total_steps(MNLI) == 61_360
    steps = settings.checkpoint_steps(MNLI)
    assert steps[:2] == [500, 1000]
    assert steps[-1] == 61_000
    assert PRESETS["gpt2-mnli"].total_steps(MNLI) == 122_720


def test_qqp_as_in_the_paper() -> None:
    settings = PRESETS["bert-qqp"]
    assert PRESETS["roberta-qqp"] == settings
    assert settings.total_steps(QQP) == 40_000
    assert settings.batch_size * settings.accumulate == 256
    assert settings.checkpoint_steps(QQP)[-1] == 39_500  # the last one is called final


@pytest.mark.parametrize(
    ("epochs", "batch", "accumulate", "n", "steps"),
    [
        (1, 32, 1, 64, 2),
        (1, 32, 1, 65, 3),
        (0.5, 32, 1, 64, 1),
        (0.1, 3, 1, 30, 1),
        (3, 8, 4, 64, 6),
    ],
)
def test_epochs_in_steps(epochs: float, batch: int, accumulate: int, n: int, steps: int) -> None:
    settings = TrainSettings(epochs=epochs, batch_size=batch, accumulate=accumulate)
    assert settings.total_steps(n) == steps


def test_steps_replace_the_epochs_of_a_preset_and_the_other_way_round() -> None:
    assert train_settings("bert-mnli", steps=7).total_steps(MNLI) == 7
    assert train_settings("bert-qqp", epochs=1).total_steps(256 * 10) == 10
    with pytest.raises(InputError, match="epochs is 2 and steps is 3"):
        train_settings("bert-mnli", epochs=2, steps=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "epochs is None and steps is None"),
        ({"steps": 0}, "steps is 0"),
        ({"epochs": math.nan}, "epochs is nan"),
        ({"steps": 5, "warmup_steps": 5}, "warmup_steps is 5, but the whole run has 5 steps"),
        ({"steps": 5, "evaluate_every": 2, "checkpoint_every": 3}, "checkpoint_every is 3"),
        ({"steps": 5, "precision": "float8"}, "precision is 'float8'"),
        ({"steps": 5, "seed": 2**32}, "seed is 4294967296"),
        ({"steps": 5, "patience": 0}, "patience is 0; expected a whole number from 1"),
        ({"steps": 5, "watch": "id"}, "watch is 'id', but has no effect without patience"),
    ],
)
def test_values_that_make_no_sense_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainSettings(**changes)


def test_what_only_the_examples_show_is_refused_then() -> None:
    with pytest.raises(InputError, match="warmup_steps is 200, but the whole run has 10 steps"):
        train_settings("quick").total_steps(100)
    with pytest.raises(InputError, match="31 examples for batches of 32"):
        train_settings("bert-qqp").total_steps(31)


def test_unknown_presets_and_settings_are_named() -> None:
    with pytest.raises(InputError, match=r"unknown preset 'bert'; expected quick or bert-mnli or"):
        train_settings("bert")
    with pytest.raises(InputError, match=r"unknown setting 'lr'; expected epochs, steps"):
        train_settings("quick", lr=1e-5)
