"""Reading users' files: csv, tsv, jsonl and parquet, plain or compressed."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import warnings
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Literal

import pandas as pd
import pyarrow.parquet

from mechcore.errors import InputError, MechcoreWarning, reason, shown
from mechcore.tasks.examples import ALL, Examples

KNOWN_COLUMNS: dict[str, tuple[str, ...]] = {
    "text_a": ("text_a", "premise", "sentence1", "question1", "question", "sentence", "text"),
    "text_b": ("text_b", "hypothesis", "sentence2", "question2", "sentence"),
    "label": ("gold_label", "label", "labels", "is_duplicate"),
    "subset": ("subset", "subcase"),
}
"""Column names of GLUE, HANS, PAWS and Hugging Face data, the first that occurs is used."""

_SURROGATE = re.compile("[\ud800-\udfff]")

UNDECIDED = "-"
"""Gold label of MNLI and SNLI examples on which the annotators did not agree."""


def read_examples(
    path: str | Path,
    *,
    name: str | None = None,
    columns: Mapping[str, str] | None = None,
    label_names: Mapping[str, str] | None = None,
    labelled: bool = True,
) -> Examples:
    """Read one- or two-segment texts with their labels.

    Args:
        path: a ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` file, text files also ``.gz``.
        name: what to call the data; the file's stem by default.
        columns: which column of the file serves as ``text_a``, ``text_b``, ``label`` or
            ``subset``, where `KNOWN_COLUMNS` does not find it.
        label_names: meanings of labels, such as ``{"0": "entailment"}``; others stay.
        labelled: whether a label is needed; without one, labels are empty where the file has none.

    A file without a subset column is one subset called ``"all"``.

    Raises:
        InputError: the file is missing, unreadable or empty, or lacks a column or value.
    """
    path = Path(path)
    table = read_table(path)
    chosen = _choose_columns(path, table, columns or {}, labelled)
    frame = pd.DataFrame({role: texts_of(path, table[column]) for role, column in chosen.items()})
    frame["text_b"] = frame.get("text_b", "")
    frame["label"] = frame.get("label", "")
    frame["label"] = frame["label"].replace(dict(label_names or {}))
    # Names of files need not be Unicode, but those in tables must.
    stem = os.fsencode(path.name.split(".")[0]).decode("utf-8", "replace")
    frame["subset"] = frame.get("subset", ALL)
    undecided = (frame["label"] == UNDECIDED) & labelled
    if undecided.any():
        warnings.warn(
            f"{path}: left out {int(undecided.sum())} of {len(frame)} examples whose gold label "
            f"is {UNDECIDED!r} (no agreement among annotators)",
            MechcoreWarning,
            stacklevel=2,
        )
        frame = frame[~undecided]
    if frame.empty:
        raise InputError(f"{path}: no labelled example; expected at least one row")
    try:
        return Examples(name or stem, frame)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_table(path: Path) -> pd.DataFrame:
    """A table of any of the formats, as it is.

    Raises:
        InputError: there is no such file, or it cannot be read.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    plain = path.suffixes[-2:-1] if path.suffix == ".gz" else path.suffixes[-1:]
    kind = plain[0] if plain else ""
    try:
        if kind in (".csv", ".tsv"):
            return _read_delimited(path, "\t" if kind == ".tsv" else ",")
        if kind in (".jsonl", ".ndjson"):
            return _read_json_lines(path)
        if kind == ".parquet":
            # What pandas may have noted beside the columns is not looked at.
            return pyarrow.parquet.ParquetFile(path).read().to_pandas(ignore_metadata=True)
    except (ValueError, OSError, EOFError, zlib.error, pyarrow.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as {kind}: {reason(error)}") from error
    raise InputError(
        f"{path}: unknown kind of file; expected .csv, .tsv, .jsonl or .parquet "
        "(text files also with .gz)"
    )


def _read_json_lines(path: Path) -> pd.DataFrame:
    rows = []
    with _open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    rows.append(json.loads(line, object_pairs_hook=_without_repeats))
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"line {number}: {error}") from error
                if not isinstance(rows[-1], dict):
                    raise ValueError(
                        f"line {number}: found a {type(rows[-1]).__name__}; expected an object"
                    )
    return pd.DataFrame(rows, dtype=object)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key occurs twice among {_list(key for key, _ in pairs)}")
    return found


def _open_text(path: Path) -> IO[str]:
    """A text file, compressed or not; a byte order mark is no part of it."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _read_delimited(path: Path, separator: str) -> pd.DataFrame:
    """Read csv or tsv text; official GLUE and MultiNLI tsv files use quotes as plain characters."""
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL
    if separator == "\t":
        with _open_text(path) as file:
            fields = (field for line in file for field in line.rstrip("\r\n").split("\t"))
            if not all(map(_is_whole_field, fields)):
                quoting = csv.QUOTE_NONE
    options: dict[str, Any] = {"sep": separator, "quoting": quoting, "keep_default_na": False}
    table = pd.read_csv(path, dtype=str, **options)
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes the first fields for an index
        raise ValueError(
            f"the rows have {table.index.nlevels} more field(s) than the header, which has "
            f"{len(table.columns)}"
        )
    # As the file has them; pandas makes them different.
    header = pd.read_csv(path, dtype=str, header=None, nrows=1, **options).iloc[0]
    return table.set_axis(header.tolist(), axis=1)


def _is_whole_field(field: str) -> bool:
    """Whether csv quoting reads a field of one line as it was meant."""
    if not field.startswith('"'):
        return True
    inside = field[1:-1].replace('""', "")
    return len(field) > 1 and field.endswith('"') and '"' not in inside


def _choose_columns(
    path: Path, table: pd.DataFrame, mapped: Mapping[str, str], labelled: bool
) -> dict[str, str]:
    found = [str(column) for column in table.columns]
    unknown = sorted(set(mapped) - set(KNOWN_COLUMNS))
    if unknown:
        raise InputError(f"columns: unknown role {unknown[0]!r}; roles are {_list(KNOWN_COLUMNS)}")
    if not found:
        raise InputError(f"{path}: is empty; expected at least one row")
    if not labelled:  # a mapping for several files names what this one need not have
        needed = ("text_a", "text_b")
        mapped = {role: name for role, name in mapped.items() if role in needed or name in found}
    chosen: dict[str, str] = {}
    for role, names in KNOWN_COLUMNS.items():
        if role in mapped and mapped[role] not in found:
            raise InputError(f"{path}: no column {mapped[role]!r}; found {_list(found)}")
        taken = {*mapped.values(), *chosen.values()}
        free = [name for name in names if name in found and name not in taken]
        present = [mapped[role]] if role in mapped else free
        if present:
            chosen[role] = present[0]
            if found.count(present[0]) > 1:
                raise InputError(
                    f"{path}: {found.count(present[0])} columns are called "
                    f"{present[0]}; expected one: rename the others"
                )
    for role in ("text_a", "label") if labelled else ("text_a",):
        if role not in chosen:
            raise InputError(
                f"{path}: no column for {role} (looked for {_list(KNOWN_COLUMNS[role])}); found "
                f"{_list(found)}: name it with --columns {role}=NAME"
            )
    return chosen


def texts_of(path: Path, column: pd.Series) -> pd.Series:
    """A column of a table as text, whole numbers without a point.

    Raises:
        InputError: a cell is empty, or holds something that is no text, such as a list.
    """
    values = column.astype(object).tolist()
    numbers = [value for value in values if isinstance(value, float)]
    whole = len(numbers) == len(values) and all(map(float.is_integer, numbers))
    texts = []
    for row, value in enumerate(values, 1):
        try:
            texts.append(_text(int(value) if whole else value))
        except ValueError as error:
            raise InputError(f"{path}: row {row}, column {shown(column.name)}: {error}") from error
    return pd.Series(texts, column.index, dtype=object, name=column.name)


def _text(value: Any) -> str:
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("empty; expected a value: remove the row")
        if not value.isascii() and _SURROGATE.search(value):
            raise ValueError(f"found half a character in {shown(value)!r}; expected Unicode text")
        return value
    if not pd.api.types.is_scalar(value) or isinstance(value, bytes):
        raise ValueError(f"expected text, found {shown(repr(value))}")
    if pd.isna(value):
        raise ValueError("empty; expected a value: remove the row")
    return str(value)


def _list(names: Iterable[object], most: int = 20) -> str:
    found = [shown(name, 40) for name in names]
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
