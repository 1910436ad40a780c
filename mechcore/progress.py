"""Progress that library code reports and the command line shows.

On a terminal it is a bar; elsewhere (log files, batch jobs) a line for every tenth of the work.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_shown: ContextVar[Progress | None] = ContextVar("shown", default=None)


@contextmanager
def shown() -> Iterator[None]:
    """Show the progress of everything inside the block on standard error."""
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
    """Progress over ``total`` steps; call its value after each. Silent unless `shown` is active."""
    progress = _shown.get()
    if progress is None:
        yield lambda: None
    elif progress.console.is_terminal:
        progress.start()  # with the first bar: an error before it leaves no blank line
        task = progress.add_task(description, total=total)
        yield lambda: progress.advance(task)
    else:
        yield _lines(progress.console, description, total)


def _lines(console: Console, description: str, total: int) -> Callable[[], None]:
    done = itertools.count(1)

    def advance() -> None:
        n = next(done)
        if n * 10 // total > (n - 1) * 10 // total:
            console.print(f"{description}: {n}/{total}", highlight=False)

    return advance
