"""Intervals on a planted transformer hold the truth, and tests keep their nominal error rates."""

from typing import Any

import numpy as np
import pytest
from benchmarks.in_process import benchmark


@pytest.fixture
def calibration(monkeypatch: pytest.MonkeyPatch) -> Any:
    return benchmark("calibration", monkeypatch)


def test_intervals_have_the_truth_in_them(calibration: Any) -> None:
    table = calibration.coverage(100, 6)
    assert set(table["figure"]) == {
        *("change", "interaction", "dividend", "Shapley value", "change when blind", "dependence"),
    }
    whole = table[table["texts"] == 100]
    assert (whole["coverage"] >= 0.9).all()
    assert np.average(whole["coverage"], weights=whole["figures"]) == pytest.approx(0.96, abs=0.03)


def test_what_is_true_by_hand(calibration: Any) -> None:
    """The cue of L0.H0 is right in 97 %, those of the OR in 90 %, and the AND's in 75 %."""
    known = calibration.answered(0.0, chosen=False)
    singles = {str(s): s for s in known.ablations.sets if len(s) == 1}
    changes = {
        name: known.true_mean(known.ablations.changes(single, "margin"), "all")
        for name, single in singles.items()
    }
    assert changes["L0.H0"] == pytest.approx(-2 * (0.97 - 0.03), abs=1e-3)
    assert changes["L0.H1"] == pytest.approx(0, abs=1e-3)
    assert changes["L1.H1"] == pytest.approx(-2 * (0.75**2 - 0.25**2), abs=1e-3)
    assert changes["L2.MLP"] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("correction", ["benjamini-hochberg", "holm", "westfall-young"])
def test_corrected_tests_seldom_err(calibration: Any, correction: str) -> None:
    shares = calibration.errors(200, 40 if correction == "holm" else 20, correction)
    for kind in ("singles", "pairs"):
        assert shares[f"{kind}: false"] <= 0.05
        assert shares[f"{kind}: any false"] <= (0.15 if correction == "benjamini-hochberg" else 0.1)
        assert shares[f"{kind}: found"] > 0.8


def test_tests_without_correction_err(calibration: Any) -> None:
    shares = calibration.errors(200, 20, "none")
    assert shares["singles: any false"] > 0.1


def test_random_cores_are_seldom_surprising(calibration: Any) -> None:
    shares = calibration.core_p(200)
    assert shares["p at most 0.05"] <= 0.08
    assert 0.05 <= shares["p at most 0.2"] <= 0.24
