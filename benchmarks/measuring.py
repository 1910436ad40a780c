"""Peak memory, and ratios within rounds."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch


def peak(device: str) -> float:
    """Peak memory of this process so far, MiB (of the device, if there is one)."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    # Not getrusage: a new process begins there with the peak of the one that started it.
    status = Path("/proc/self/status").read_text()
    return float(status.split("VmHWM:")[1].split()[0]) / 2**10


def peak_alone(script: str, arguments: Sequence[str]) -> float:
    """The number that another run of ``script`` prints on its last line."""
    command = [sys.executable, script, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def spread(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Median, lowest and highest."""
    return statistics.median(ratios), min(ratios), max(ratios)
