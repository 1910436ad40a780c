"""Atomic writing of the few file formats that mechcore uses."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors.torch import save_file
from torch import Tensor

from mechcore.errors import InputError


def check_can_write(path: str | Path) -> None:
    """Make sure that ``path`` could be made, before work is spent on it.

    Raises:
        InputError: what stands where its folder should be is a file, or is not writable.
    """
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise InputError(f"{path}: cannot be written: {place} is not a writable folder")


def write_atomically(path: str | Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then move it into place.

    A reader sees the old file or the whole new one, never a part; nothing stays after an error.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Writers such as pandas choose the format by the ending.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=f".{path.name}")
    temporary = Path(name)
    try:
        os.close(handle)
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        _open_to_others(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """A folder to fill that becomes ``out`` at the end of the block, and vanishes on an error.

    ``out`` must not exist, or be empty.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".", suffix=f".{out.name}") as holder:
        folder = Path(holder) / out.name  # with the usual permissions, unlike the holder
        folder.mkdir()
        yield folder
        for path in filter(Path.is_file, folder.rglob("*")):
            _open_to_others(path)
            with path.open("rb") as file:
                os.fsync(file.fileno())
        if out.exists():
            out.rmdir()  # empty; Windows cannot rename onto it
        folder.rename(out)


def _open_to_others(path: Path) -> None:
    """Give a file the usual permissions; temporary files, and safetensors, have narrower ones."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text atomically."""

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomically(path, write)


def write_json(path: str | Path, content: Any) -> None:
    """Write indented JSON atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_csv(path: str | Path, frame: pd.DataFrame) -> None:
    """Write a table as CSV atomically, without the index."""
    write_atomically(path, lambda temporary: frame.to_csv(temporary, index=False))


def write_safetensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write tensors with text metadata atomically."""
    write_atomically(path, lambda temporary: save_file(dict(tensors), temporary, dict(metadata)))
