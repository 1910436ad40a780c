"""The benchmark of intervals counts those that have the mean in them, and intervals have it."""

from typing import Any

import pytest
from benchmarks.in_process import benchmark


@pytest.fixture
def coverage(monkeypatch: pytest.MonkeyPatch) -> Any:
    return benchmark("interval_coverage", monkeypatch)


def test_means_are_those_of_the_draws_and_percentiles_too_close(coverage: Any) -> None:
    for design in coverage.DESIGNS.values():
        rng = coverage.np.random.default_rng(0)
        assert design.draw(rng, (1000, 1000)).mean() == pytest.approx(design.mean, abs=0.01)
    _, percentile = coverage.coverage("2 % wrong", 30, 400)
    assert percentile < 0.6


@pytest.mark.parametrize(
    "name", ["normal", "exponential", "5 % wrong, 2 % right", "98 % wrong", "99 % right"]
)
def test_thirty_values_are_enough(coverage: Any, name: str) -> None:
    own, _ = coverage.coverage(name, 30, 800)
    assert own > 0.93
    if name in ("normal", "exponential"):
        assert own < 0.98
