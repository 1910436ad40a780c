"""Progress that library code reports and the command line shows.

On a terminal it is a bar; elsewhere (log files, batch jobs) a line for every tenth of the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

_shown: ContextVar[Progress | None] = ContextVar("shown", default=None)


@contextmanager
def shown() -> Iterator[None]:
    """Show the progress of everything inside the block on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), _Done())
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    progress = Progress(*columns, *times, console=Console(stderr=True))
    token = _shown.set(progress)
    try:
        yield
    finally:
        _shown.reset(token)
        if progress.tasks:
            progress.stop()


@contextmanager
def bar(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Progress over ``total`` steps; call its value after each. Silent unless `shown` is active."""
    with _reporting(description, total, in_shares=False) as advance:
        yield lambda: advance(1)


@contextmanager
def work(description: str, total: float) -> Iterator[Callable[[float], None]]:
    """Progress over unequal steps; call its value with the cost of each, in the unit of ``total``.

    The time left is estimated from the cost that is left.
    """
    with _reporting(description, total, in_shares=True) as advance:
        yield advance


@contextmanager
def _reporting(
    description: str, total: float, *, in_shares: bool
) -> Iterator[Callable[[float], None]]:
    progress = _shown.get()
    if progress is None:
        yield lambda amount: None
    elif progress.console.is_terminal:
        progress.start()  # with the first bar: an error before it leaves no blank line
        task = progress.add_task(description, total=total, in_shares=in_shares)
        yield lambda amount: progress.advance(task, amount)
    else:
        yield _Lines(progress.console, description, total, in_shares)


class _Done(ProgressColumn):
    """Steps done of all, or the share of the work done."""

    def render(self, task: Task) -> Text:
        return Text(_done(task.completed, task.total or 0, bool(task.fields.get("in_shares"))))


def _done(completed: float, total: float, in_shares: bool) -> str:
    if not in_shares:
        return f"{completed:.0f}/{total:.0f}"
    return f"{100 * completed / total:.0f} %" if total else "0 %"


class _Lines:
    """A line whenever another tenth of the work is done."""

    def __init__(self, console: Console, description: str, total: float, in_shares: bool) -> None:
        self.console, self.description = console, description
        self.total, self.in_shares = total, in_shares
        self.completed, self.tenths, self.started = 0.0, 0, time.monotonic()

    def __call__(self, amount: float) -> None:
        self.completed += amount
        tenths = int(self.completed * 10 / self.total + 1e-9)
        if tenths > self.tenths:
            self.tenths = tenths
            line = f"{self.description}: {_done(self.completed, self.total, self.in_shares)}"
            if self.in_shares and tenths < 10:
                spent = time.monotonic() - self.started
                left = spent * (self.total - self.completed) / self.completed
                line += f", about {_duration(left)} left"
            self.console.print(line, highlight=False)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
