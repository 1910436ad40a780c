"""How torch's threads wait for one another on a processor that others use, too: briefly.

OpenMP's threads look out for work for milliseconds before they sleep, which is fastest as long as
nobody else wants the cores. Where others do, it takes most of the time, from mechcore too. OpenMP
reads its environment once, when torch loads it, so this is set before, and only where the user has
set nothing of the kind.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

WAITING = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}
"""Turns of GNU's OpenMP, and milliseconds of Intel's and LLVM's."""


def wait_briefly() -> None:
    """Set how threads wait, for this process and those that it starts, on a shared machine.

    Others share it where they keep a quarter of the cores busy, and at least one.
    """
    if "torch" in sys.modules or not os.environ.keys().isdisjoint([*WAITING, "OMP_WAIT_POLICY"]):
        return
    if _n_running() > max(1, (os.cpu_count() or 1) // 4):
        os.environ.update(WAITING)


def _n_running() -> int:
    """Threads that run or want to, this one among them, where Linux counts them."""
    try:
        return int(Path("/proc/loadavg").read_text("ascii").split()[3].split("/")[0])
    except (OSError, ValueError, IndexError):
        return 1
