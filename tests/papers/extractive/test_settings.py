from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mechcore.errors import InputError
from mechcore.papers.extractive.settings import ExtractiveSettings
from mechcore.papers.extractive.weights import TuneSettings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experiments": ()}, r"experiments is \[\]; expected some of ocr, scores"),
        ({"experiments": ("ocr", "ocr")}, "each once"),
        ({"experiments": ("scores",)}, "expected ocr with scores and freezing"),
        ({"seeds": (1, 1)}, "seeds is .*; expected different values, at least one, each a whole"),
        ({"learning_rates": (0.1, 2.0)}, r"learning_rates is \[0.1, 2.0\]"),
        ({"grafting": TuneSettings(replay=3)}, "grafting.replay is 3; expected 0"),
        ({"precision": "float16"}, "precision is 'float16'; expected 'float32' or 'bfloat16'"),
    ],
)
def test_bad_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ExtractiveSettings(**changes)


def test_ordering_is_done_without_replay_too() -> None:
    settings = ExtractiveSettings(ordering=TuneSettings(0.1, 3, 8, 0, replay=5))
    assert settings.orderings(7) == [
        TuneSettings(0.1, 3, 8, 7, replay=0),
        TuneSettings(0.1, 3, 8, 7, replay=5),
    ]
    plain = replace(settings, ordering=replace(settings.ordering, replay=0))
    assert plain.orderings(7) == [TuneSettings(0.1, 3, 8, 7, replay=0)]
