from __future__ import annotations

from typing import Any, TypeAlias

import pandas as pd
import pytest

from mechcore.papers.cognitive.arms import Run, accuracies_with_intervals
from mechcore.papers.cognitive.compare import (
    CURVE,
    best_rate,
    compared,
    curve_table,
    samples_table,
    training_table,
)


def result(
    arm: str, n: int, seed: int, dev: float, accuracy: float | None = None, rate: float = 1e-3
) -> dict[str, Any]:
    accuracy = dev if accuracy is None else accuracy
    shifts = {"": 0, "low": -0.01, "high": 0.01, "incongruent": -0.1, "incongruent_low": -0.12}
    shifts |= {"incongruent_high": -0.08, "congruent": 0.1, "unrestricted": 0}
    accuracies = {name or "accuracy": accuracy + shift for name, shift in shifts.items()}
    known = {"arm": arm, "n": n, "seed": seed, "learning_rate": None, "dev_accuracy": dev}
    trained = {"learning_rate": rate, "steps": 50, "last_step": 60} if n else {}
    return known | accuracies | {"n_test": 80} | trained


def test_the_best_rate_is_chosen_on_development_trials() -> None:
    grid = [
        result("scratch", 100, 0, dev=0.6, accuracy=0.9, rate=1e-2),
        result("scratch", 100, 0, dev=0.8, accuracy=0.5, rate=3e-3),
        result("scratch", 100, 0, dev=0.8, accuracy=0.7, rate=1e-3),
    ]
    assert best_rate(grid) == best_rate(grid[::-1]) == 1e-3


def test_a_row_per_training_and_which_rates_were_chosen() -> None:
    rows = [
        result("base", 0, 0, dev=0.5),
        result("scratch", 100, 0, dev=0.6, rate=1e-3),
        result("fine_tuned", 100, 0, dev=0.7, rate=1e-3),
        result("fine_tuned", 100, 0, dev=0.6, rate=1e-2),
    ]
    table = training_table(rows, [Run("base"), Run("fine_tuned", 100, 0, 1e-3)])
    assert table[["arm", "learning_rate", "chosen"]].to_dict("list") == {
        "arm": ["fine_tuned", "fine_tuned", "scratch"],
        "learning_rate": [1e-3, 1e-2, 1e-3],
        "chosen": [True, False, False],
    }


Results: TypeAlias = dict[tuple[str, int], list[tuple[float, float]]]
"""By arm and seed, the accuracies on development and test trials at 100, 400 and 1600 trials."""


def curve_of(results: Results) -> pd.DataFrame:
    rows = [result("base", 0, 0, dev=0.5)]
    for (arm, seed), accuracies in results.items():
        for n, (dev, accuracy) in zip((100, 400, 1600), accuracies, strict=True):
            rows.append(result(arm, n, seed, dev, accuracy))
    return curve_table(rows)


def test_samples_to_a_threshold_that_later_sizes_keep() -> None:
    results: Results = {
        ("fine_tuned", 0): [(0.5, 0.5), (0.5, 0.9), (0.5, 0.95)],
        ("fine_tuned", 1): [(0.5, 0.92), (0.5, 0.85), (0.5, 0.91)],  # a lucky small one
        ("scratch", 0): [(0.5, 0.95)] * 3,
        ("scratch", 1): [(0.5, 0.5), (0.5, 0.6), (0.5, 0.89)],
    }
    samples = samples_table(curve_of(results), 0.9)
    assert samples["samples"].tolist() == [400, 1600, 100, pd.NA]
    assert samples[["arm", "seed"]].to_records(index=False).tolist() == list(results)
    assert set(samples["threshold"]) == {0.9}
    assert set(samples["largest"]) == {1600}


def test_models_are_compared_at_the_accuracy_of_the_weaker_arm() -> None:
    results: Results = {
        # Seed 0: scratch is weaker in the end; fine-tuned is closest to it at 400.
        ("fine_tuned", 0): [(0.7, 0.7), (0.95, 0.88), (0.86, 0.97)],
        ("scratch", 0): [(0.5, 0.5), (0.86, 0.7), (0.99, 0.86)],
        # Seed 1: fine-tuned is weaker; of two of scratch that are as close, the larger.
        ("fine_tuned", 1): [(0.8, 0.8)] * 3,
        ("scratch", 1): [(0.75, 0.75), (0.99, 0.85), (0.8, 0.95)],
    }
    table = compared(curve_of(results))
    columns = ["arm", "seed", "n", "accuracy", "matched"]
    assert table[columns].to_records(index=False).tolist() == [
        ("base", 0, 0, 0.5, False),
        ("fine_tuned", 0, 400, 0.88, True),
        ("fine_tuned", 1, 1600, 0.8, False),
        ("scratch", 0, 1600, 0.86, True),
        ("scratch", 1, 400, 0.85, False),
    ]
    assert table["gap"].tolist()[1:] == pytest.approx([0.02, 0.05, 0.02, 0.05])
    assert pd.isna(table["gap"].iloc[0])


def test_an_arm_alone_is_taken_at_its_largest_number() -> None:
    curve = curve_table([result("scratch", n, 0, dev=dev) for n, dev in ((100, 0.9), (400, 0.8))])
    table = compared(curve)
    assert table["n"].tolist() == [400]
    assert not table["matched"].any()
    assert table["gap"].isna().all()


def test_intervals_are_said_to_be_what_they_are() -> None:
    right = [True] * 30 + [False] * 10
    answers = {"restricted": right, "unrestricted": right, "congruent": [True, False] * 20}
    intervals = accuracies_with_intervals(pd.DataFrame(answers))
    z, n = 1.959964, 40  # Wilson's score interval by hand
    centre, half = 30 + z**2 / 2, z * (30 * 10 / n + z**2 / 4) ** 0.5
    assert intervals["low"] == pytest.approx((centre - half) / (n + z**2))
    assert intervals["high"] == pytest.approx((centre + half) / (n + z**2))
    ends = [column for column in CURVE.columns if column.name in ("low", "incongruent_low")]
    assert len(ends) == 2
    assert all("(Wilson's score interval over trials)" in column.meaning for column in ends)
