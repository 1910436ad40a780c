"""The benchmark of head scores runs, and reads what it says it reads."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "heads.py"


def test_table(tmp_path: Path) -> None:
    saved = tmp_path / "figures.json"
    options = ["--examples", "8", "--rounds", "1", "--threads", "1", "--json", str(saved)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options], capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    bare, scored = json.loads(saved.read_text())
    assert (bare["variant"], scored["variant"]) == ("forwards", "categorize_heads")
    assert bare["times the forwards"] == "1.00 (1.00-1.00)"
    assert all(each["ms per example"] > 0 for each in (bare, scored))
    assert all(each["peak MiB, all"] > 100 for each in (bare, scored))
    assert "8 pairs" in done.stdout
