"""Reading users' files: csv, tsv, jsonl and parquet, plain or compressed."""

from __future__ import annotations

import csv
import gzip
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from mechcore.errors import InputError, MechcoreWarning
from mechcore.tasks.examples import ALL, Examples

KNOWN_COLUMNS: dict[str, tuple[str, ...]] = {
    "text_a": ("text_a", "premise", "sentence1", "question1", "question", "sentence", "text"),
    "text_b": ("text_b", "hypothesis", "sentence2", "question2", "sentence"),
    "label": ("gold_label", "label", "labels", "is_duplicate"),
    "subset": ("subset", "subcase"),
}
"""Column names of GLUE, HANS, PAWS and Hugging Face data, the first that occurs is used."""

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
    stem = path.name.split(".")[0]
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
    return Examples(name or stem, frame)


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
            return pd.read_json(path, lines=True, dtype=False, convert_dates=False)
        if kind == ".parquet":
            return pd.read_parquet(path)
    except (ValueError, OSError, EOFError, zlib.error) as error:  # pandas', pyarrow's derive
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path}: cannot be read as {kind}: {reason}") from error
    raise InputError(
        f"{path}: unknown kind of file; expected .csv, .tsv, .jsonl or .parquet "
        "(text files also with .gz)"
    )


def _read_delimited(path: Path, separator: str) -> pd.DataFrame:
    """Read csv or tsv text; official GLUE and MultiNLI tsv files use quotes as plain characters."""
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL
    if separator == "\t":
        opener: Any = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            fields = (field for line in file for field in line.rstrip("\r\n").split("\t"))
            if not all(map(_is_whole_field, fields)):
                quoting = csv.QUOTE_NONE
    table = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False, quoting=quoting)
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes the first fields for an index
        raise ValueError(
            f"the rows have {table.index.nlevels} more field(s) than the header, which has "
            f"{len(table.columns)}"
        )
    return table


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
        InputError: a cell is empty or holds a list.
    """
    empty = column.isna() | (column.astype(str).str.strip() == "")
    if empty.any():
        row = int(empty.to_numpy().argmax())
        raise InputError(
            f"{path}: row {row + 1}, column {column.name}: empty; expected a value: remove the row"
        )
    nested = column.map(lambda value: not pd.api.types.is_scalar(value))
    if nested.any():
        row = int(nested.to_numpy().argmax())
        raise InputError(
            f"{path}: row {row + 1}, column {column.name}: expected text, found "
            f"{column.iloc[row]!r}"
        )
    if pd.api.types.is_float_dtype(column) and (column % 1 == 0).all():
        column = column.astype(int)
    return column.astype(str)


def _list(names: object) -> str:
    return ", ".join(map(str, names))  # type: ignore[call-overload]
