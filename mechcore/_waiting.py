"""How torch's threads wait for one another on a processor that others use, too: briefly.

OpenMP's threads look out for work for milliseconds before they sleep, which is fastest as long as
nobody else wants the cores. Where others do, it takes most of the time, from mechcore too. OpenMP
reads its environment once, when torch loads it, so this is set before, and only where the user has
set nothing of the kind.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator

WAITING = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}
"""Turns of GNU's OpenMP, and milliseconds of Intel's and LLVM's."""


def wait_briefly() -> None:
    """Set how threads wait, for this process and those that it starts, on a shared machine."""
    if "torch" in sys.modules or not os.environ.keys().isdisjoint([*WAITING, "OMP_WAIT_POLICY"]):
        return
    if is_shared(_running(), os.cpu_count() or 1):
        os.environ.update(WAITING)


def is_shared(running: Iterable[int], n_cores: int) -> bool:
    """Whether others keep a quarter of the cores busy, and at least one.

    Args:
        running: how many threads ran or wanted to, this one among them, at some moments.
        n_cores: of the machine.
    """
    return min(running, default=1) > max(1, n_cores // 4)


def _running() -> Iterator[int]:
    """What Linux counts at three moments; nothing elsewhere."""
    for _ in range(3):
        try:
            with open("/proc/loadavg", encoding="ascii") as file:
                yield int(file.read().split()[3].split("/")[0])
        except (OSError, ValueError, IndexError):
            return
        time.sleep(0.002)
