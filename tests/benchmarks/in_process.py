"""Running a benchmark without the processes that it starts: what they do is done here."""

import contextlib
import importlib
import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the benchmarks."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(name)


def printed_by(module: Any, options: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What the benchmark prints with these options."""

    def run_here(command: Sequence[str], **_: Any) -> Any:
        return SimpleNamespace(stdout=printed_by(module, command[2:], monkeypatch))

    threads = torch.get_num_threads()
    output = io.StringIO()
    try:
        with monkeypatch.context() as patched, contextlib.redirect_stdout(output):
            patched.setattr(sys, "argv", [str(module.__file__), *options])
            patched.setattr(subprocess, "run", run_here)
            module.main()
    finally:
        torch.set_num_threads(threads)
    return output.getvalue()
