"""Sets of components from files."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.ablation.effects import ComponentSet
from mechcore.components import Component, Mask, parse_components
from mechcore.data.formats import without_repeats
from mechcore.errors import InputError, MismatchError, reason, shown
from mechcore.files import read_csv
from mechcore.models.model_identity import check_masks


def read_sets(
    path: str | Path, model: Any | None = None, *, any_model: bool = False
) -> list[ComponentSet]:
    """Sets from a file.

    Args:
        path: a text file with one set a line (``L0.H1 L2.MLP``, also with ``+`` or commas, with
            ``name:`` in front to give it a name, ``#`` for comments); a CSV table with a column
            ``set``; a JSON list of lists or object of lists; or a mask (``.safetensors``), whose
            ablated components are the set.
        model: the TransformerLens model that the sets are for, to check a mask against.
        any_model: accept a mask that was found on another model, see `Mask.load`.

    Raises:
        InputError: the file is missing, or something in it is no set of components.
        MismatchError: it is a mask of another model.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"sets file {path}: no such file")
    if path.suffix == ".safetensors":
        mask = Mask.load(path, any_model=any_model)
        if model is not None:
            try:
                check_masks([mask], model)
            except MismatchError as error:
                raise MismatchError(f"sets file {path}: {error}") from error
        masks = list(mask) if mask.is_batched else [mask]
        return [ComponentSet.of(each) for each in masks]
    try:
        named = _named(path)
    except (ValueError, RecursionError) as error:
        raise InputError(f"sets file {path}: cannot be read ({reason(error)})") from error
    found = []
    for where, name, text in named:
        try:
            parts = (
                text.replace("+", " ").replace(",", " ").split() if isinstance(text, str) else text
            )
            found.append(ComponentSet.of(parse_components(parts), name))
            if not found[-1]:
                raise InputError("names no component; expected some, such as L4.H0 L3.MLP")
        except InputError as error:
            raise InputError(f"sets file {path}, {where}: {error}") from error
    if not found:
        raise InputError(f"sets file {path}: holds no set")
    return found


def _named(path: Path) -> list[tuple[str, str | None, Any]]:
    """Place in the file, name and components of every set."""
    if path.suffix == ".json":
        text = path.read_text(encoding="utf-8-sig")  # a byte order mark is no part of it
        content = json.loads(text, object_pairs_hook=without_repeats)
        if isinstance(content, dict):
            return [(name, name, parts) for name, parts in content.items()]
        if not isinstance(content, list):
            raise ValueError(f"found {type(content).__name__}, expected a list or an object")
        return [(f"set {i}", None, parts) for i, parts in enumerate(content, 1)]
    if path.suffix == ".csv":
        frame = read_csv(path, dtype=str, keep_default_na=False)
        if "set" not in frame:
            raise ValueError(f"no column 'set'; found {_names(frame)}")
        rows: dict[str, int] = {}  # the first of those with the same set
        for i, text in enumerate(frame["set"], 1):
            rows.setdefault(text, i)
        return [(f"row {i}", None, text) for text, i in rows.items()]
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        text = line.split("#")[0].strip()
        if text:
            name, colon, rest = text.rpartition(":")
            found.append((f"line {number}", name.strip() if colon else None, rest))
    return found


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
