"""The benchmark of intervals counts those that have the mean in them."""

from typing import Any

import pytest
from benchmarks.in_process import benchmark


@pytest.fixture
def coverage(monkeypatch: pytest.MonkeyPatch) -> Any:
    return benchmark("bootstrap_coverage", monkeypatch)


def test_means_are_those_of_the_draws(coverage: Any) -> None:
    for mean, draw in coverage.DRAWS.values():
        rng = coverage.np.random.default_rng(0)
        assert draw(rng, (1000, 1000)).mean() == pytest.approx(mean, abs=0.01)


def test_skewed_differences_of_few_examples_are_covered_less(coverage: Any) -> None:
    normal, skewed = (coverage.coverage(name, 50, 1000, 0) for name in ("normal", "lognormal"))
    assert 0.92 < normal < 0.96
    assert 0.84 < skewed < 0.92
