"""Short spinning of torch's threads, set before torch loads, where other jobs need the cores."""

from __future__ import annotations

import os
import sys
from pathlib import Path

WAITING = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}
"""Spins of GNU's OpenMP, and milliseconds of Intel's and LLVM's."""


def wait_briefly() -> None:
    """Shorten spinning if others keep a quarter of the cores busy, and at least one."""
    if "torch" in sys.modules or not os.environ.keys().isdisjoint([*WAITING, "OMP_WAIT_POLICY"]):
        return
    if _n_running() > max(1, (os.cpu_count() or 1) // 4):
        os.environ.update(WAITING)


def _n_running() -> int:
    """Number of runnable threads including this one, if Linux reports it."""
    try:
        return int(Path("/proc/loadavg").read_text("ascii").split()[3].split("/")[0])
    except (OSError, ValueError, IndexError):
        return 1
