"""What a study reads: its draws, told as the user can change them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mechcore.errors import MechcoreWarning
from mechcore.study import DataConfig, ModelConfig
from mechcore.study.inputs import read_role
from mechcore.tasks.sources import Source

MODEL = ModelConfig(source="mine")


@pytest.fixture
def six(tmp_path: Path) -> str:
    """A file of six examples."""
    texts = [f"text {i}" for i in range(6)]
    path = tmp_path / "six.csv"
    pd.DataFrame({"text_a": texts, "label": "yes"}).to_csv(path, index=False)
    return str(path)


def told(role: str, data: DataConfig) -> tuple[int, int, list[str]]:
    """Examples of a role, how many there were, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MechcoreWarning)
        examples, available = read_role(role, MODEL, data)
    return len(examples), available, [str(each.message) for each in caught]


def test_a_draw_is_told_with_the_option_that_set_it(six: str) -> None:
    for role in ("train", "id", "ood"):
        options: dict[str, Any] = {role: six, f"max_{role}": 4, "seed": 7}
        assert told(role, DataConfig(**options)) == (
            4,
            6,
            [
                "examples 'six': 4 of 6 drawn at random, by subset, with seed 7; --max-... 0 "
                f"(max_{role}: null in a study's file) takes all"
            ],
        )
        for everything in (6, None):
            assert told(role, DataConfig(**{**options, f"max_{role}": everything})) == (6, 6, [])


def test_a_draw_from_a_drawn_source_tells_of_both(six: str) -> None:
    data = DataConfig(ood=(Source(path=six, max=5, seed=1),), max_ood=2)
    n, available, (first, second) = told("ood", data)
    assert (n, available) == (2, 5)
    assert first == (
        f"examples of {six}: 5 of 6 drawn at random, by subset, with seed 1; leave out max to take "
        "all"
    )
    assert second.startswith(
        "examples 'six': 2 of 5 drawn at random, by subset, with seed 0; --max"
    )
