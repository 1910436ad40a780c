"""Which subnetworks stand out, on accuracies written out."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import pytest

from mechcore.subnetworks.core import outliers


def table(
    accuracies: Sequence[float], target_sparsity: float = 0.7, method: str = "l0"
) -> pd.DataFrame:
    rows = [
        {
            "subnetwork": f"s{target_sparsity:.2f}-seed{42 + i}",
            "method": method,
            "target_sparsity": target_sparsity,
            "id_accuracy": accuracy,
        }
        for i, accuracy in enumerate(accuracies)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    "accuracies",
    [
        [0.98, 0.63],  # two: either may be the odd one
        [0.75, 0.875, 0.625],  # as far below as the others are apart
        [0.901, 0.900, 0.851],  # the others are alike, but less than 5 points above
        [0.63, 0.64, 0.98],  # the odd one is better
        [0.60, 0.60, 0.90, 0.91],  # two are bad
    ],
)
def test_no_other_difference_is_called_a_failure(accuracies: list[float]) -> None:
    assert [*outliers(table(accuracies))] == []


def test_targets_and_methods_are_not_mixed_and_controls_left_out() -> None:
    sparse, dense = table([0.6, 0.6, 0.6], 0.9), table([0.9, 0.9, 0.9], 0.5)
    ranked = table([0.9, 0.9, 0.6], method="ugs")
    chance = table([0.9, 0.9, 0.4], method="random")
    found = [*outliers(pd.concat([sparse, dense, ranked, chance]))]
    assert [text.split()[0] for text in found] == ["s0.70-seed44"]
    assert len([*outliers(ranked.drop(columns="method"))]) == 1
