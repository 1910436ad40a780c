"""Intervals by cluster cover as they should where intervals by example do not, and so do tests."""

from typing import Any

import numpy as np
import pytest
from benchmarks.in_process import benchmark


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Any:
    return benchmark("clusters", monkeypatch)


@pytest.mark.parametrize("n_clusters", [10, 30])
def test_intervals_of_every_figure_have_the_truth_in_them(simulation: Any, n_clusters: int) -> None:
    # Answers that are wrong in one cluster of twenty are known to need more than ten clusters.
    for name in simulation.DESIGNS.keys() - {"accuracy, 5 % wrong"}:
        own, by_example = simulation.coverage(name, n_clusters, 20, 300)
        assert 0.91 <= own <= 0.985, name  # 95 %, give or take three standard errors
        assert by_example < 0.5


def test_halves_of_the_templates_differ_as_rarely_as_they_should(simulation: Any) -> None:
    made = simulation.with_templates([0], 60, 0.3, ood=True)
    rows = np.stack([made.changes(cut, "margin") for cut in made.sets])
    random, by_example, by_cluster = simulation.halves(rows, made.full.clusters, 40)
    assert random <= 0.07
    assert by_cluster <= 0.07
    assert by_example > 0.5
