"""Peak memory, shortest times, and ratios within rounds."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch


def peak(device: str) -> float:
    """Peak memory of this process so far, MiB (of the device, if there is one)."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    # Not getrusage: there a new process starts with the peak of its parent.
    status = Path("/proc/self/status").read_text()
    return float(status.split("VmHWM:")[1].split()[0]) / 2**10


def forget_peak(device: str) -> None:
    """Reset the peak, so the next `peak` covers only what follows."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def shortest(run: Callable[[], Any], repeats: int, device: str) -> tuple[float, float]:
    """Seconds of the fastest of several runs, and the peak memory of all of them, MiB.

    With one thread these are CPU seconds, which other processes do not inflate; else wall-clock
    seconds. The peak is that of the whole process (of the device, if there is one), including
    what it already holds.
    """
    forget_peak(device)
    alone = device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    seconds = []
    for _ in range(repeats):
        start = clock()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - start)
    return min(seconds), peak(device)


def peak_alone(script: str, arguments: Sequence[str]) -> float:
    """The number on the last line that another run of ``script`` prints."""
    command = [sys.executable, script, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def spread(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Median, lowest and highest."""
    return statistics.median(ratios), min(ratios), max(ratios)
