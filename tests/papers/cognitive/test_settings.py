from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mechcore.errors import InputError
from mechcore.papers.cognitive import ArmTraining, CognitiveSettings, default_settings
from mechcore.study.kinds import STUDIES
from mechcore.study.step import plain


def test_few_trials_are_not_passed_over_without_end_nor_in_batches_larger_than_they_are() -> None:
    training = ArmTraining((1e-3,), steps=2000, epochs=100, batch_size=32, warmup_steps=100)
    known = {n: training.settings(n, 7, 2e-3) for n in (8, 100, 640, 6400)}
    steps = {n: settings.steps for n, settings in known.items()}
    assert steps == {8: 100, 100: 312, 640: 2000, 6400: 2000}
    assert (known[8].warmup_steps, known[100].warmup_steps) == (50, 100)
    assert (known[8].batch_size, known[100].batch_size) == (8, 32)
    assert (known[100].seed, known[100].learning_rate) == (7, 2e-3)
    kept = ("evaluate_every", "patience")
    assert all(getattr(known[100], name) == getattr(training, name) for name in kept)


def test_how_many_models_there_are() -> None:
    settings = CognitiveSettings(sizes=(8, 16, 32), seeds=(0, 1))
    assert (settings.n_chosen, settings.n_compared) == (1 + 2 * 3 * 2, 1 + 2 * 2)
    alone = replace(settings, arms=("scratch",))
    assert (alone.n_chosen, alone.n_compared, alone.trained) == (6, 2, ("scratch",))


@pytest.mark.parametrize(
    "settings",
    [
        CognitiveSettings(),
        CognitiveSettings().quick(),
        default_settings("gpt2"),
        CognitiveSettings(
            arms=("scratch",), rendering="signed", differences=(5, 15), decoded_layers=(0, 3)
        ),
    ],
)
def test_settings_are_read_back_from_json(settings: CognitiveSettings) -> None:
    content = json.loads(json.dumps(plain(settings)))
    assert STUDIES["cognitive"].read(content, "study.json") == settings


def test_a_base_is_found_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    located = STUDIES["cognitive"].located
    assert located(CognitiveSettings("mine"), tmp_path).base == str(tmp_path / "mine")
    assert located(CognitiveSettings("gpt2"), tmp_path).base == "gpt2"
    assert located(CognitiveSettings(), tmp_path).base is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": ()}, r"arms is \[\]; expected some of base, fine_tuned, scratch"),
        ({"sizes": (400, 100)}, r"sizes is \[400, 100\]; expected increasing whole numbers from 8"),
        ({"seeds": (1, 1)}, r"seeds is \[1, 1\]; expected different values, at least one, each"),
        ({"threshold": 0.5}, "threshold is 0.5; expected a number above 0.5 and below 1"),
        ({"n_test": 100}, "n_test is 100; expected a multiple of 8"),
        ({"n_test": 80}, r"n_analysis is 800; expected from 40 to n_test \(80\)"),
        ({"shuffles": 18}, "shuffles is 18; expected a whole number from 19"),  # p from 1 / 19
        ({"decoded_layers": (-1,)}, r"decoded_layers is \[-1\]; expected .* from 0"),
        ({"permutations": 50}, r"alpha is 0.01; expected from 1 / \(1 \+ permutations\)"),
        ({"scratch": ArmTraining(())}, r"scratch.learning_rates is \[\]"),
        ({"scratch": ArmTraining((1e-3, 1e-3))}, "scratch.learning_rates is .* different rates"),
        ({"scratch": ArmTraining((1e-3,), batch_size=0)}, "scratch: batch_size is 0; expected a"),
        ({"scratch": ArmTraining((-1.0,))}, "learning_rate is -1.0; expected a number above 0"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CognitiveSettings(**changes)
