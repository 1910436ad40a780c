"""Components from tables."""

from __future__ import annotations

import zlib
from pathlib import Path

import pandas as pd

from mechcore.components import Component, parse_components
from mechcore.errors import InputError, reason, shown
from mechcore.files import read_csv


def _names(frame: pd.DataFrame) -> str:
    return shown(", ".join(frame.columns), 300)


def read_components(path: str | Path) -> list[Component]:
    """Components from the column ``component`` of a table, such as a run's ``core.csv``.

    Args:
        path: the table, or the folder of a run.

    Raises:
        InputError: there is no such table, it cannot be read, or it names no component.
    """
    path = Path(path)
    for inside in (path / "tables" / "core.csv", path / "core.csv"):
        if inside.is_file():
            path = inside
    if not path.is_file():
        raise InputError(f"core table {path}: no such file; expected core.csv or a run's folder")
    try:
        frame = read_csv(path, dtype=str, keep_default_na=False)
    except (ValueError, OSError, EOFError, zlib.error) as error:  # where it is compressed
        raise InputError(f"core table {path}: cannot be read ({reason(error)})") from error
    if "component" not in frame:
        raise InputError(f"core table {path}: no column component; found {_names(frame)}")
    try:
        found = parse_components(frame["component"].tolist())
    except InputError as error:
        raise InputError(f"core table {path}: {error}") from error
    if not found:
        raise InputError(f"core table {path}: the core is empty; name components instead")
    return found
