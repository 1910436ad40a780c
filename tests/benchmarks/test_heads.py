"""The benchmark of head scores runs, and reads what it says it reads."""

import json
from pathlib import Path

import pytest
from benchmarks.in_process import benchmark, printed_by


def test_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tmp_path / "figures.json"
    options = ["--examples", "8", "--rounds", "1", "--threads", "1", "--json", str(saved)]
    printed = printed_by(benchmark("heads", monkeypatch), options, monkeypatch)
    bare, scored = json.loads(saved.read_text())
    assert (bare["variant"], scored["variant"]) == ("forwards", "categorize_heads")
    assert bare["times the forwards"] == "1.00 (1.00-1.00)"
    assert all(each["ms per example"] > 0 for each in (bare, scored))
    assert all(each["peak MiB, all"] > 100 for each in (bare, scored))
    assert "8 pairs" in printed
