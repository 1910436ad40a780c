"""How torch's threads wait for one another on processors: not busily for long.

OpenMP's threads look out for work for milliseconds before they sleep. Where other processes want
the cores, that takes most of their time, from mechcore too. OpenMP reads its environment once, when
torch loads it, so this is set before, and only where the user has set nothing of the kind.
"""

from __future__ import annotations

import os
import sys

WAITING = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}
"""Turns of GNU's OpenMP, some 10 microseconds, and milliseconds of Intel's and LLVM's."""


def wait_briefly() -> None:
    """Set how threads wait, for this process and those that it starts."""
    if "torch" not in sys.modules and os.environ.keys().isdisjoint([*WAITING, "OMP_WAIT_POLICY"]):
        os.environ.update(WAITING)
