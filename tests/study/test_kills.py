"""Studies that are killed, and whose disk is full: nothing is lost, repeated or left behind.

The studies run in processes forked from one that has imported the libraries, so that a start takes
next to no time and a kill can fall on any moment of the work.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import forks
import pytest
from helpers import undrawn
from main_study.small_study import CONFIG, files, results

N_KILLS = 10


@pytest.fixture(scope="module")
def processes() -> Any:
    return forks.context()


def study(out: str, largest_file: int | None = None) -> None:
    """Run in a process of its own; the exit code tells a `StoreError`."""
    from mechcore.study.run import run_study
    from mechcore.study.store import StoreError

    if largest_file is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    try:
        with undrawn():
            run_study(CONFIG, out)
    except StoreError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(3)


def finished(out: Path) -> dict[str, tuple[int, int]]:
    """The artefacts that are there, each with what changes when it is made again."""
    found = {}
    for path in (out / "store" / "objects").glob("*/*/manifest.json"):
        if not path.parent.name.startswith("."):
            state = path.stat()
            found[path.parent.name] = (state.st_ino, state.st_mtime_ns)
    return found


def test_a_study_killed_ten_times(processes: Any, whole: Path, tmp_path: Path) -> None:
    moments = random.Random(20)
    out = tmp_path / "out"
    before: dict[str, tuple[int, int]] = {}
    killed_at_work = 0
    for _ in range(N_KILLS):
        process = processes.Process(target=study, args=(str(out),))
        process.start()
        process.join(moments.uniform(0.0, 2.0))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            killed_at_work += 1
        process.join()
        now = finished(out)
        assert {key: now.get(key) for key in before} == before, "what was finished stays"
        before = now
    process = processes.Process(target=study, args=(str(out),))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert killed_at_work >= N_KILLS // 2
    after = finished(out)
    assert {key: after[key] for key in before} == before
    assert results(out) == results(whole)
    assert files(out) == files(whole)


def test_every_file_has_a_limit(
    processes: Any, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    largest = max(
        path.stat().st_size for path in (whole / "store" / "objects").rglob("*") if path.is_file()
    )
    process = processes.Process(target=study, args=(str(out), largest - 1))
    process.start()
    process.join()
    assert process.exitcode == 3
    process = processes.Process(target=study, args=(str(out),))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert results(out) == results(whole)
    assert files(out) == files(whole)
