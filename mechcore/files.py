"""Atomic writing, and reading, of the few file formats that mechcore uses."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mechcore.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor


def check_can_write(path: str | Path) -> None:
    """Raise `InputError`, before any work, if ``path`` cannot be created."""
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise InputError(f"{path}: cannot be written: {place} is not a writable folder")


def write_atomically(path: str | Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then move it into place, whole."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Writers such as pandas infer the format from the suffix.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=f".{path.name}")
        temporary = Path(name)
        try:
            os.close(handle)
            write(temporary)
            _open_to_others(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        if error.errno is None:
            raise
        # The name of the temporary file would mean nothing to the user.
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """A folder to fill that becomes ``out``, so far missing or empty, at the end of the block."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".", suffix=f".{out.name}") as holder:
        folder = Path(holder) / out.name  # with the usual permissions, unlike the holder
        folder.mkdir()
        yield folder
        for path in folder.rglob("*"):
            if path.is_file():
                _open_to_others(path)
        if out.exists():
            out.rmdir()  # empty; Windows cannot rename onto it
        folder.rename(out)


def tensors_digest(tensors: Mapping[str, Tensor], first: bytes = b"") -> str:
    """Hexadecimal SHA-256 of the bytes ``first`` and of names, shapes, types and values."""
    import torch

    digest = hashlib.sha256(first)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def copy_linked(source: Path, target: Path) -> None:
    """Copy a folder with hard links to its files if the file system allows."""

    def copy(old: str, new: str) -> None:
        try:
            os.link(old, new)
        except OSError:
            shutil.copyfile(old, new)

    shutil.copytree(source, target, copy_function=copy)


def _open_to_others(path: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write bytes atomically."""
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def write_json(path: str | Path, content: Any) -> None:
    """Write indented JSON atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_csv(path: str | Path, frame: pd.DataFrame) -> None:
    """Write a table as CSV atomically, without the index, floats with twelve digits."""
    # Python before 3.13 leaves a carriage return unquoted, which then reads as the end of a row.
    cells = [*frame.columns, *frame.to_numpy(dtype=object).flat]
    returns = any(isinstance(cell, str) and "\r" in cell for cell in cells)
    quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
    form: Any = {"index": False, "quoting": quoting}
    form["float_format"] = lambda value: repr(float(f"{value:.12g}"))
    write_atomically(path, lambda temporary: frame.to_csv(temporary, **form))


def write_safetensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write tensors with text metadata atomically; equal content gives equal bytes."""
    from safetensors.torch import save

    content = memoryview(save(dict(tensors), dict(metadata)))
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8:start]))
    if metadata:  # the library writes it in arbitrary order
        header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    # Padded to the same size; both writers escape only what JSON requires.
    write_bytes(path, b"".join([content[:8], text.ljust(start - 8), content[start:]]))
