"""Atomic writing, and reading, of the few file formats that mechcore uses."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mechcore.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

_FORMULA = re.compile("'*[=+\\-@\\t\\r\\n\\uff1d\\uff0b\\uff0d\\uff20]")
"""How a cell begins that a spreadsheet would compute (full-width signs count for some), or that
`write_csv` has made safe."""


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


@contextmanager
def locked(path: Path, timeout: float = 0) -> Iterator[bool]:
    """Hold a lock, or say that it was not free within so many seconds (-1: wait for it).

    The system drops it when the process dies; its file is there only while it is held.

    Raises:
        OSError: the file cannot be written.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        # While it is held: whoever has opened the file, and gets its lock, sees that its name is
        # gone, and begins again (filelock since 3.24).
        path.unlink(missing_ok=True)
        lock.release()


@contextmanager
def alone(path: Path, refusal: str) -> Iterator[None]:
    """Hold a lock while the block lasts, where its file can be made.

    Raises:
        InputError: another process has it; ``refusal`` says so.
    """
    with ExitStack() as stack:
        free = True
        with suppress(OSError):  # what is written next says so
            free = stack.enter_context(locked(path))
        if not free:
            raise InputError(refusal)
        yield


def write_atomically(path: str | Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then move it into place.

    A reader sees the old file or the whole new one, never a part; nothing stays after an error.

    Raises:
        OSError: the disk is full, say; it names ``path``.
    """
    path = Path(path)
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
        # Writers such as pandas choose the format by the ending.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=f".{path.name}")
        temporary = Path(name)
        try:
            os.close(handle)
            write(temporary)
            _sync(temporary)
            _open_to_others(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        if error.errno is None:
            raise
        # The name of the temporary file, if any, would say nothing.
        raise OSError(error.errno, error.strerror, str(path)) from error


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
        for path in folder.rglob("*"):
            if path.is_file():
                _sync(path)
                _open_to_others(path)
        if out.exists():
            out.rmdir()  # empty; Windows cannot rename onto it
        folder.rename(out)


def tensors_digest(tensors: Mapping[str, Tensor], first: bytes = b"") -> str:
    """SHA-256 of names, shapes, types and values, and of what comes ``first``, hexadecimal."""
    import torch

    digest = hashlib.sha256(first)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def copy_linked(source: Path, target: Path) -> None:
    """Copy a folder by giving its files a second name, where the file system can."""

    def copy(old: str, new: str) -> None:
        try:
            os.link(old, new)
        except OSError:
            shutil.copyfile(old, new)

    shutil.copytree(source, target, copy_function=copy)


def _sync(path: Path) -> None:
    """Bring a file to the disk, so that a crash of the machine leaves no name without content."""
    with path.open("r+b") as file:  # Windows flushes what may be written only
        os.fsync(file.fileno())


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


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write bytes atomically."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_atomically(path, write)


def write_json(path: str | Path, content: Any) -> None:
    """Write indented JSON atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


# -- tables ---------------------------------------------------------------------------------------


def write_csv(path: str | Path, frame: pd.DataFrame) -> None:
    """Write a table as CSV atomically, without the index, for `read_csv`.

    Texts, and names of columns, that a spreadsheet would take for a formula get an apostrophe in
    front, which spreadsheets hide; numbers stay as they are.
    """
    safe = _map_texts(frame, lambda text: f"'{text}" if _FORMULA.match(text) else text)
    # Python before 3.13 leaves a carriage return unquoted, which then reads as the end of a row.
    cells = [*safe.columns, *safe.to_numpy(dtype=object).flat]
    returns = any(isinstance(cell, str) and "\r" in cell for cell in cells)
    quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
    write_atomically(path, lambda temporary: safe.to_csv(temporary, index=False, quoting=quoting))


def read_csv(path: str | Path, **options: Any) -> pd.DataFrame:
    """Read a table that `write_csv` wrote; ``options`` and errors are those of pandas."""
    import pandas as pd

    return unguarded(pd.read_csv(path, **options))


def unguarded(frame: pd.DataFrame) -> pd.DataFrame:
    """A table read from a file of `write_csv`, without the apostrophes that it put in front."""
    return _map_texts(
        frame, lambda text: text[1:] if text[:1] == "'" and _FORMULA.match(text) else text
    )


def _map_texts(frame: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    """The table with every text changed, names of columns included."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    def changed(value: Any) -> Any:
        return change(value) if isinstance(value, str) else value

    new = frame.copy()
    for i, dtype in enumerate(frame.dtypes):  # by position: names may occur twice
        if is_numeric_dtype(dtype) or is_bool_dtype(dtype):
            continue
        old = frame.iloc[:, i].astype(object)
        if any(changed(value) is not value for value in old):
            new.isetitem(i, old.map(changed).array)
    return new.set_axis([changed(name) for name in frame.columns], axis=1)


# -- tensors --------------------------------------------------------------------------------------


def write_safetensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write tensors with text metadata atomically; equal content gives equal bytes.

    Raises:
        OSError: the disk is full, say.
    """
    from safetensors.torch import save

    content = memoryview(save(dict(tensors), dict(metadata)))
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8:start]))
    if metadata:  # which the library writes in any order
        header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            # Padded to the same size; both escape what JSON asks for and nothing else.
            file.writelines([content[:8], text.ljust(start - 8), content[start:]])

    write_atomically(path, write)
