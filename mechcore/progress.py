"""Progress that library code reports and the command line shows.

On a terminal it is a bar; elsewhere (log files, batch jobs) a line for every tenth of the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Advance: TypeAlias = Callable[[float], None]
"""Called with the amount of work that was done since the call before."""


class Display(Protocol):
    """Where progress is shown."""

    def add(
        self, description: str, total: float, in_shares: bool
    ) -> AbstractContextManager[Advance]:
        """Show work of this size while the block lasts."""


_shown: ContextVar[Display | None] = ContextVar("shown", default=None)
_within: ContextVar[str] = ContextVar("within", default="")


@contextmanager
def shown() -> Iterator[None]:
    """Show the progress of everything inside the block on standard error."""
    from rich.console import Console

    console = Console(stderr=True)
    display = _Bars(console) if console.is_terminal else _Lines(console)
    with shown_on(display):
        try:
            yield
        finally:
            display.stop()


@contextmanager
def shown_on(display: Display | None) -> Iterator[None]:
    """Show the progress of everything inside the block on a display; on None, not at all."""
    token = _shown.set(display)
    try:
        yield
    finally:
        _shown.reset(token)


@contextmanager
def within(name: str) -> Iterator[None]:
    """Put ``name`` before the descriptions of everything inside the block.

    Bars inside vanish when they end, as there may be hundreds.
    """
    token = _within.set(name)
    try:
        yield
    finally:
        _within.reset(token)


@contextmanager
def bar(description: str, total: int) -> Iterator[Callable[..., None]]:
    """Progress over ``total`` steps; call its value after each, or with how many there were.

    Silent unless `shown` is active.
    """
    with _reporting(description, total, in_shares=False) as advance:
        yield lambda steps=1: advance(steps)


@contextmanager
def work(description: str, total: float) -> Iterator[Advance]:
    """Progress over unequal steps; call its value with the cost of each, in the unit of ``total``.

    The time left is estimated from the cost that is left.
    """
    with _reporting(description, total, in_shares=True) as advance:
        yield advance


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
        """A bar."""
        self.progress.start()  # with the first bar: an error before it leaves no blank line
        task = self.progress.add_task(description, total=total, in_shares=in_shares)
        try:
            yield lambda amount: self.progress.advance(task, amount)
        finally:
            if _within.get():
                self.progress.remove_task(task)

    def stop(self) -> None:
        """Leave the bars as they are."""
        if self.progress.tasks:
            self.progress.stop()


def _bars_on(console: Console) -> Progress:
    from rich import progress
    from rich.text import Text

    class Done(progress.ProgressColumn):
        """Steps done of all, or the share of the work done."""

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
    """A line whenever another tenth of the work is done."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def add(self, description: str, total: float, in_shares: bool) -> Iterator[Advance]:
        """Lines about one piece of work."""
        completed, told, started = 0.0, 0, time.monotonic()

        def advance(amount: float) -> None:
            nonlocal completed, told
            completed += amount
            tenths = int(completed * 10 / total + 1e-9)
            if tenths > told:
                told = tenths
                line = f"{description}: {_done(completed, total, in_shares)}"
                if in_shares and tenths < 10:
                    left = (time.monotonic() - started) * (total - completed) / completed
                    line += f", about {duration(left)} left"
                self.console.print(line, highlight=False, markup=False, emoji=False)

        yield advance

    def stop(self) -> None:
        """Nothing is left to do."""


class Relay:
    """Hands on the share of the work that is done, for example to another process.

    Args:
        tell: called with shares from 0 to 1, each time a hundredth more is done.
    """

    def __init__(self, tell: Callable[[float], None]) -> None:
        self.tell = tell

    @contextmanager
    def add(self, description: str, total: float, in_shares: bool) -> Iterator[Advance]:
        """Shares of one piece of work."""
        done, told = 0.0, 0

        def advance(amount: float) -> None:
            nonlocal done, told
            done += amount
            share = done / total if total else 1.0
            if int(share * 100 + 1e-9) > told:
                told = int(share * 100 + 1e-9)
                self.tell(share)

        yield advance


def is_shown() -> bool:
    """Whether progress is shown here."""
    return _shown.get() is not None


def say(message: str) -> None:
    """A line for the user, above the bars; silent unless `shown` is active."""
    display = _shown.get()
    if isinstance(display, (_Bars, _Lines)):
        display.console.print(message, highlight=False, markup=False, emoji=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """A time in words: ``40 s``, ``12 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
