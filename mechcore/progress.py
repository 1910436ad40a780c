"""Progress bars that library code can report to and the command line can show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_shown: ContextVar[Progress | None] = ContextVar("shown", default=None)


@contextmanager
def shown() -> Iterator[None]:
    """Show the bars of everything inside the block on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    progress = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
    token = _shown.set(progress)
    try:
        yield
    finally:
        _shown.reset(token)
        if progress.tasks:
            progress.stop()


@contextmanager
def bar(description: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar of ``total`` steps; call its value after each. Silent unless `shown` is active."""
    progress = _shown.get()
    if progress is None:
        yield lambda: None
        return
    progress.start()  # with the first bar: an error before it leaves no blank line
    task = progress.add_task(description, total=total)
    yield lambda: progress.advance(task)
