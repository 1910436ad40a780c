"""Processes forked from one that has imported the libraries: to start one takes next to no time."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIBRARIES = ["transformer_lens.model_bridge", "scipy.stats", "pandas", "matplotlib.figure"]
"""What mechcore imports, and nothing of mechcore: it asks for packages when it is imported."""


def context() -> Any:
    """Of `multiprocessing`, whose one process to fork from is shared by all tests."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(LIBRARIES)
    return server


def python(site: Path, *arguments: str, output: Path) -> str:
    """Run ``-m MODULE ...`` or ``-c CODE`` with a folder of packages installed.

    Args:
        site: the folder of packages.
        output: a folder for what is printed.

    Returns:
        What it printed.
    """
    out, err = output / "stdout", output / "stderr"
    process = context().Process(target=_main, args=(site, arguments, out, err))
    process.start()
    process.join()
    assert process.exitcode == 0, err.read_text(encoding="utf-8")
    return out.read_text(encoding="utf-8")


def _main(site: Path, arguments: Sequence[str], out: Path, err: Path) -> None:
    for path, number in ((out, 1), (err, 2)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    sys.path.insert(0, str(site))
    kind, what, *rest = arguments
    sys.argv = [what, *rest]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(what, {"__name__": "__main__"})
