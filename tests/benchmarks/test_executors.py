"""The benchmark of executors runs, and compares the same work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed (pip install .[ray])")

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "executors.py"


def test_ratio() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--seeds", "2", "--steps", "2"],
        capture_output=True,
        text=True,
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "2 seeds, 2 steps, one thread a unit, same masks"
    serial, ray = (float(line.split(":")[1].split()[0]) for line in lines[1:3])
    ratio = float(lines[2].split()[-1])
    assert serial > 0
    assert ratio == pytest.approx(ray / serial, abs=0.02)
