"""Progress: a bar on a terminal; elsewhere, as in log files, a line a step, and one a minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console

Advance: TypeAlias = Callable[..., None]
"""Called with the amount of work done since the previous call, 1 by default, and what it was."""

_EVERY = 60.0  # seconds between lines about unfinished work
_FEWEST = 0.05  # share of the work before which the time left is unknown


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
    """Prefix the descriptions of everything inside the block, whose bars vanish at their end."""
    return _set(_within, name)


@contextmanager
def bar(description: str, total: float) -> Iterator[Advance]:
    """Progress over work of size ``total``; call the yielded function with each amount done."""
    display, name = _shown.get(), _within.get()
    if display is None:
        yield lambda amount=1, name="": None
        return
    with display.add(f"{name}: {description}" if name else description, total) as advance:
        yield advance


class _Bars:
    def __init__(self, console: Console) -> None:
        from rich import progress

        name = progress.TextColumn("{task.description}", markup=False)
        shares = (progress.BarColumn(), progress.TaskProgressColumn())
        elapsed, left = progress.TimeElapsedColumn(), progress.TextColumn("left")
        times = (elapsed, left, progress.TimeRemainingColumn())
        self.console = console
        self.progress = progress.Progress(name, *shares, *times, console=console)

    @contextmanager
    def add(self, description: str, total: float) -> Iterator[Advance]:
        self.progress.start()  # with the first bar: an earlier error leaves no blank line
        task = self.progress.add_task(description, total=total)
        try:
            yield lambda amount=1, name="": self.progress.advance(task, amount)
        finally:
            if _within.get():
                self.progress.remove_task(task)

    def stop(self) -> None:
        if self.progress.tasks:
            self.progress.stop()


class _Lines:
    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def add(self, description: str, total: float) -> Iterator[Advance]:
        completed, inner, started = 0.0, bool(_within.get()), time.monotonic()
        last = started

        def advance(amount: float = 1, name: str = "") -> None:
            nonlocal completed, last
            completed += amount
            now, ended = time.monotonic(), completed >= total * (1 - 1e-9)
            if not (name or now - last >= _EVERY or (ended and not inner)):
                return
            last = now
            left = (now - started) * (total - completed) / max(completed, 1e-9)
            early = completed < _FEWEST * total
            time_left = "" if ended or early else f", about {_duration(left)} left"
            share = f"{100 * completed / total:.0f} %{f' ({name})' if name else ''}"
            _print(self.console, f"{description}: {share}{time_left}")

        yield advance

    def stop(self) -> None:
        pass


def say(message: str) -> None:
    """Print a line above the bars; silent unless `shown` is active."""
    if (display := _shown.get()) is not None:
        _print(display.console, message)


def _print(console: Console, message: str) -> None:
    console.print(message, highlight=False, markup=False, emoji=False, soft_wrap=True)


def is_shown() -> bool:
    """Whether progress is shown here."""
    return _shown.get() is not None


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
