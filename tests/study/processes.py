"""Other processes that do one thing step by step, as the test tells them to."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import pytest

PATIENCE = 120.0
"""Seconds after which another process is taken to hang."""


def needs_fork() -> pytest.MarkDecorator:
    """Skips tests where processes cannot be forked."""
    there = "fork" in multiprocessing.get_all_start_methods()
    return pytest.mark.skipif(not there, reason="this platform cannot fork processes")


class Other:
    """A forked process; ``work`` gets its end of a pipe, then ``arguments``."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        context: Any = multiprocessing.get_context("fork")
        self.pipe, end = context.Pipe()
        self.process = context.Process(target=_main, args=(work, end, self.pipe, arguments))
        self.process.start()
        end.close()

    def hear(self) -> Any:
        """What it says next; an error in it is raised here."""
        assert self.pipe.poll(PATIENCE), "the other process says nothing"
        said = self.pipe.recv()
        if isinstance(said, _Error):
            raise AssertionError(said.text)
        return said

    def tell(self, message: Any = None) -> None:
        """Let it go on."""
        self.pipe.send(message)

    def kill(self) -> None:
        """End it with SIGKILL."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(PATIENCE)
        assert self.process.exitcode == -signal.SIGKILL

    def end(self) -> None:
        """Wait until it has done everything; an error in it is raised here."""
        assert self.hear() == _END
        self.process.join(PATIENCE)
        assert self.process.exitcode == 0


@dataclass
class _Error:
    text: str


_END = "the end"


def _main(work: Callable[..., None], pipe: Connection, other: Connection, arguments: Any) -> None:
    other.close()
    try:
        work(pipe, *arguments)
    except BaseException:
        pipe.send(_Error(traceback.format_exc()))
    else:
        pipe.send(_END)
    finally:
        pipe.close()
        os._exit(0)  # nothing of the test runner's ending
