"""The benchmark of extractive scores runs, and its plain reference gives the same scores."""

import json
from pathlib import Path

import pytest
from benchmarks.in_process import benchmark, printed_by


def test_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tmp_path / "figures.json"
    options = ["--quick", "--layers", "2", "--points", "4", "--counts", "1", "3"]
    options += ["--plain-points", "2", "--rounds", "1", "--json", str(saved)]
    printed = printed_by(benchmark("extractive_scores", monkeypatch), options, monkeypatch)
    found = json.loads(saved.read_text())
    assert found["largest difference"] < 1e-4
    rows = found["rows"]
    assert [(row["variant"], row["counterfactuals"]) for row in rows] == [
        (name, count)
        for name in ("mechcore, in batches", "mechcore, point by point", "plain hooks")
        for count in (1, 3)
    ]
    assert all(row["seconds per point"] > 0 for row in rows)
    assert rows[0]["times 1"] == "1.00 (1.00-1.00)"
    assert rows[-1]["plain hooks take"] == "1.0 (1.0-1.0)"
    assert "4 points, 2 layers of width 48" in printed
