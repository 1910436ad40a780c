"""The benchmark of races, in small."""

from pathlib import Path

import pandas as pd
import pytest
from benchmarks.in_process import benchmark


@pytest.mark.parametrize("goal", ["--least=0.05", "--largest=2"])
def test_a_race_is_checked_by_an_exact_sweep(
    goal: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    csv = tmp_path / "race.csv"
    options = ["--components=L0.MLP,L1.H4,L2.MLP,L3.MLP", "--examples=60", "--means=100", goal]
    benchmark("racing", monkeypatch).main([*options, "--checked=3", "--threads=1", f"--csv={csv}"])
    shown = capsys.readouterr().out
    assert shown.startswith("6 pairs: ")
    assert "(recall 1.000), 0 others found" in shown
    assert len(pd.read_csv(csv)) == 6


def test_error_rates_on_planted_circuits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    csv = tmp_path / "planted.csv"
    options = ["--planted", "--runs=2", "--examples=100", f"--csv={csv}"]
    benchmark("racing", monkeypatch).main(options)
    assert "wrong at most: 0.000 (allowed: 0.05)" in capsys.readouterr().out
    table = pd.read_csv(csv)
    assert len(table) == 8 * 2 * 2
    assert table["examples"].between(0.32, 1).all()
