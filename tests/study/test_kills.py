"""Studies that are killed: nothing is lost, repeated or left behind.

The studies run in processes forked from one that has imported the libraries, so that a start takes
next to no time and a kill can fall on any moment of the work.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import forks
from helpers import undrawn
from main_study.small_study import CONFIG, files, results

N_KILLS = 6


def study(out: str) -> None:
    """Run in a process of its own."""
    from mechcore.study.run import run_study

    with undrawn():
        run_study(CONFIG, out)


def finished(out: Path) -> dict[str, tuple[int, int]]:
    """The artefacts that are there, each with what changes when it is made again."""
    states = {}
    for path in (out / "store" / "objects").glob("*/*/manifest.json"):
        if not path.parent.name.startswith("."):
            state = path.stat()
            states[path.parent.name] = (state.st_ino, state.st_mtime_ns)
    return states


def test_a_study_killed_again_and_again(whole: Path, tmp_path: Path) -> None:
    processes, moments = forks.context(), random.Random(20)
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
