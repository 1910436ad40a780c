"""The feature that an effect depends on is first, and few others are shown."""

from typing import Any

import numpy as np
import pytest
from benchmarks.in_process import benchmark, printed_by


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> Any:
    return benchmark("responses", monkeypatch)


def test_planted_components_respond_to_what_they_read(draws: Any) -> None:
    right = [draws.scores(draws.planted(seed), draws.PLANTED)[0] for seed in range(4)]
    assert np.mean(right) >= 0.9
    # Without noise nothing else has any effect that could respond.
    table = draws.planted(5, noise=0.0)
    assert {*table.loc[table["rho"].notna(), "set"]} == {"full", *draws.PLANTED}


def test_what_follows_the_margin_alone_and_what_is_idle_rarely_respond(draws: Any) -> None:
    shares = [draws.scores(draws.simulated(seed), draws.SIMULATED) for seed in range(6)]
    right, wrong = np.mean(shares, axis=0)
    assert right >= 0.9
    assert wrong <= 0.05


def test_the_script_runs(draws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = printed_by(draws, ["--draws", "1"], monkeypatch)
    assert printed.count("right feature first") == 3
