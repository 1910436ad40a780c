"""Progress that library code reports and the command line shows.

On a terminal it is a bar; elsewhere (log files, batch jobs) a line per tenth of the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Advance: TypeAlias = Callable[[float], None]
"""Called with the amount of work done since the previous call."""


_shown: ContextVar[_Bars | _Lines | None] = ContextVar("shown", default=None)
_within: ContextVar[str] = ContextVar("within", default="")


@contextmanager
def shown(console: Console | None = None) -> Iterator[None]:
    """Show the progress of everything inside the block, on standard error by default."""
    from rich.console import Console

    console = console or Console(stderr=True)
    display = _Bars(console) if console.is_terminal else _Lines(console)
    with _set(_shown, display):
        try:
            yield
        finally:
            display.stop()


@contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def within(name: str) -> AbstractContextManager[None]:
    """Prefix the descriptions of everything inside the block with ``name``.

    Bars inside vanish when they end, since there may be hundreds.
    """
    return _set(_within, name)


@contextmanager
def bar(description: str, total: int) -> Iterator[Callable[..., None]]:
    """Progress over ``total`` steps; call the yielded function per step, or with their number.

    Silent unless `shown` is active.
    """
    with _reporting(description, total, in_shares=False) as advance:
        yield lambda steps=1: advance(steps)


def work(description: str, total: float) -> AbstractContextManager[Advance]:
    """Progress over unequal steps; call the yielded function with each cost, in ``total``'s unit.

    The time left is estimated from the remaining cost.
    """
    return _reporting(description, total, in_shares=True)


@contextmanager
def _reporting(description: str, total: float, *, in_shares: bool) -> Iterator[Advance]:
    display, name = _shown.get(), _within.get()
    if display is None:
        yield lambda amount: None
        return
    with display.add(
        f"{name}: {description}" if name else description, total, in_shares
    ) as advance:
        yield advance


class _Bars:
    """Bars on a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = _bars_on(console)

    @contextmanager
    def add(self, description: str, total: float, in_shares: bool) -> Iterator[Advance]:
        self.progress.start()  # with the first bar: an earlier error leaves no blank line
        task = self.progress.add_task(description, total=total, in_shares=in_shares)
        try:
            yield lambda amount: self.progress.advance(task, amount)
        finally:
            if _within.get():
                self.progress.remove_task(task)

    def stop(self) -> None:
        if self.progress.tasks:
            self.progress.stop()


def _bars_on(console: Console) -> Progress:
    from rich import progress
    from rich.text import Text

    class Done(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            return Text(_done(task.completed, task.total or 0, bool(task.fields.get("in_shares"))))

    name = progress.TextColumn("{task.description}", markup=False)
    times = (progress.TimeElapsedColumn(), progress.TextColumn("left"))
    left = progress.TimeRemainingColumn()
    return progress.Progress(name, progress.BarColumn(), Done(), *times, left, console=console)


def _done(completed: float, total: float, in_shares: bool) -> str:
    if not in_shares:
        return f"{completed:.0f}/{total:.0f}"
    return f"{100 * completed / total:.0f} %" if total else "0 %"


class _Lines:
    """Prints a line whenever another tenth of the work is done."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def add(self, description: str, total: float, in_shares: bool) -> Iterator[Advance]:
        completed, n_lines, started = 0.0, 0, time.monotonic()

        def advance(amount: float) -> None:
            nonlocal completed, n_lines
            completed += amount
            tenths = int(completed * 10 / total + 1e-9)
            if tenths > n_lines:
                n_lines = tenths
                line = f"{description}: {_done(completed, total, in_shares)}"
                if in_shares and tenths < 10:
                    left = (time.monotonic() - started) * (total - completed) / completed
                    line += f", about {duration(left)} left"
                self.console.print(line, highlight=False, markup=False, emoji=False)

        yield advance

    def stop(self) -> None:
        pass


def is_shown() -> bool:
    """Whether progress is shown here."""
    return _shown.get() is not None


def say(message: str) -> None:
    """Print a line above the bars; silent unless `shown` is active."""
    if (display := _shown.get()) is not None:
        display.console.print(message, highlight=False, markup=False, emoji=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """A time in words: ``40 s``, ``12 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
