"""The benchmark of a large report runs, and the page stays small enough to open at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from browsing import MISSING, executable

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "report.py"


def test_table(tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if executable() is None:
        pytest.skip(MISSING)
    saved = tmp_path / "figures.json"
    command = [sys.executable, str(SCRIPT), "--rounds", "1", "--json", str(saved)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    figures = json.loads(saved.read_text())
    assert 150 * 10 < figures["elements"] < 20_000
    assert 2 < figures["size (MB)"] < 8
    assert 0 < figures["ready (ms)"] <= figures["loaded (ms)"] <= figures["slowest (ms)"]
    assert "a head chosen (ms)" in done.stdout
