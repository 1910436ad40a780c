"""Outputs that a command holds until it ends, so that no other writes to them meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_held: dict[Path, ExitStack] = {}


@contextmanager
def holding() -> Iterator[None]:
    """Give up at the end of the block what was held inside."""
    try:
        yield
    finally:
        while _held:
            _held.popitem()[1].close()


def hold(out: Path) -> None:
    """Hold an output until the command ends, where files can be made beside it.

    Raises:
        InputError: another process has it.
    """
    from mechcore.files import alone

    path = out.absolute()
    if path in _held:
        return
    refusal = (
        f"{out}: another mechcore command is writing to it; wait until it ends, or choose another "
        "--out"
    )
    with ExitStack() as stack:
        made = [folder for folder in path.parents if not folder.exists()]
        stack.callback(_remove_empty, made)
        stack.enter_context(alone(path.parent / f".{path.name}.lock", refusal))
        _held[path] = stack.pop_all()


def _remove_empty(folders: list[Path]) -> None:
    """Remove what was made for the lock alone, the innermost first."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()
