"""Lost information, shifted thresholds and roles are identified as often as they should be."""

from typing import Any

import numpy as np
import pytest
from benchmarks.in_process import benchmark

from mechcore.ablation.effects.roles import NONE


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Any:
    return benchmark("roles", monkeypatch)


@pytest.mark.parametrize("design", ["other biases", "other biases, skewed", "more noise"])
def test_intervals_of_a_change_that_is_0_have_it_in_them(simulation: Any, design: str) -> None:
    assert 0.93 <= simulation.coverage(design, 2, 200, 400) <= 0.97


def test_and_those_of_three_labels(simulation: Any) -> None:
    assert 0.9 <= simulation.coverage("other biases", 3, 100, 100) <= 0.98


def test_planted_components_get_their_roles_and_idle_ones_none(simulation: Any) -> None:
    tables = list(simulation.judged(3000, 7, 25))
    for component, wanted in simulation.PLANTED.items():
        roles = [table.set_index("component")["role"][component] for table in tables]
        assert roles.count(wanted) >= 0.95 * 25
    discoveries = np.mean([simulation.false_discoveries(table) for table in tables], axis=0)
    assert (discoveries <= 0.05).all()


def test_few_components_with_a_role_are_idle_where_others_have_six_effects(
    simulation: Any,
) -> None:
    tables = list(simulation.judged(1500, 27, 5, kept=0.9, all_effects=True))
    assert not any((table["role"][:5] == NONE).any() for table in tables)
    assert np.mean([simulation.false_discoveries(table)[0] for table in tables]) <= 0.05
