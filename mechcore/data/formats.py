"""Tables in users' files: csv, tsv, jsonl and parquet, plain or compressed.

Quotes in a ``.csv`` enclose cells. In a tab-separated file they do so where every cell of every
line can be read that way, or where only that reading gives every row as many cells as the header
has, as in what pandas writes of texts with tabs and line breaks. Else they are plain characters.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mechcore.errors import InputError, first_names, reason, warn
from mechcore.wording import count

if TYPE_CHECKING:
    import pandas as pd

_ENCLOSED = re.compile(r'(?:^|(?<=\t))"[^"]*(?:""[^"]*)*"(?=\t|$)', re.MULTILINE)
"""A cell in quotes, which may hold tabs and line breaks."""

_LARGEST_CELL = 2**31 - 1
"""Characters in a cell; csv readers take a fraction of it by default."""

_KINDS: Mapping[str, str] = {
    **{kind: kind for kind in (".csv", ".tsv", ".jsonl", ".parquet")},
    ".txt": ".tsv",
    ".ndjson": ".jsonl",
}
"""How a file is read, by the ending of its name."""


def kind_of_file(path: Path) -> str:
    """How a file is read, by the endings of its name, such as ``".tsv"`` or ``".tsv.gz"``.

    Raises:
        InputError: there is no such file, or it is of no kind that is read.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    zipped = path.suffix.lower() == ".gz"
    ending = path.suffixes[-1 - zipped :][:1]
    kind = _KINDS.get(ending[0].lower(), "") if ending else ""
    if not kind or (zipped and kind == ".parquet"):
        raise InputError(
            f"{path}: unknown kind of file; expected .csv, .tsv, .jsonl or .parquet, or a .txt "
            "that is separated by tabs (text files also with .gz)"
        )
    return kind + ".gz" * zipped


def read_table(path: Path) -> pd.DataFrame:
    """A table of any of the formats, as it is.

    Raises:
        InputError: there is no such file, or it cannot be read.
    """
    import pyarrow.parquet

    kind = kind_of_file(path).removesuffix(".gz")
    try:
        if kind == ".jsonl":
            return _read_json_lines(path)
        if kind == ".parquet":
            # What pandas may have noted beside the columns is not looked at.
            return pyarrow.parquet.ParquetFile(path).read().to_pandas(ignore_metadata=True)
        return _read_delimited(path, "\t" if kind == ".tsv" else ",")
    except (ValueError, OSError, EOFError, zlib.error, pyarrow.ArrowException) as error:
        why = reason(error) if path.stat().st_size else "the file is empty"
        raise InputError(f"{path}: cannot be read as {kind}: {why}") from error


def _read_json_lines(path: Path) -> pd.DataFrame:
    import pandas as pd

    rows = []
    with _open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    rows.append(json.loads(line, object_pairs_hook=without_repeats))
                    if not isinstance(rows[-1], dict):
                        raise ValueError(f"found a {type(rows[-1]).__name__}; expected an object")
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"line {number}: {error}") from error
    return pd.DataFrame(rows, dtype=object)


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of JSON with these keys and values, of which each key must be there once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key occurs twice among {first_names([key for key, _ in pairs])}")
    return found


def _open_text(path: Path, newline: str | None = None) -> IO[str]:
    """A text file, compressed or not; a byte order mark is no part of it."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline=newline)
    return path.open(encoding="utf-8-sig", newline=newline)


def _read_delimited(path: Path, separator: str) -> pd.DataFrame:
    """Read csv or tsv text."""
    import pandas as pd

    plain = separator == "\t" and not _has_enclosed_cells(path)
    if not plain:
        _check_quotes(path, separator)
    quoting = csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL
    options: dict[str, Any] = {"sep": separator, "quoting": quoting, "keep_default_na": False}
    table = pd.read_csv(path, dtype=str, **options)
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes the first fields for an index
        raise ValueError(
            f"the rows have {count(table.index.nlevels, 'more field')} than the header, which has "
            f"{len(table.columns)}"
        )
    # As the file has them; pandas makes them different.
    header = pd.read_csv(path, dtype=str, header=None, nrows=1, **options).iloc[0]
    return table.set_axis(header.tolist(), axis=1)


def _check_quotes(path: Path, separator: str) -> None:
    """Make sure that every quote that begins a cell ends it, or else pandas joins rows silently."""
    before = csv.field_size_limit(_LARGEST_CELL)
    try:
        with _open_text(path, newline="") as file:
            rows = csv.reader(file, delimiter=separator, strict=True)
            start = 1
            try:
                for _ in rows:
                    start = rows.line_num + 1
            except csv.Error as error:
                raise ValueError(
                    f"the row that begins in line {start}: {error}; expected cells in quotes to "
                    'end with one, and quotes within them to be doubled (""), as pandas writes '
                    "them"
                ) from error
    finally:
        csv.field_size_limit(before)


def _has_enclosed_cells(path: Path) -> bool:
    """Whether quotes in a tab-separated file enclose cells, see the module's docstring.

    Official GLUE and MultiNLI files have texts that begin or end with a quote. Two such texts look
    like one cell with line breaks in it, so that lines of equal length are taken as they are; but
    lines of a single column are of equal length whatever they mean.
    """
    with _open_text(path) as file:
        text = file.read()
    if all(_is_whole_field(field) for line in text.split("\n") for field in line.split("\t")):
        return True
    rest = _ENCLOSED.sub("", text)
    if '"' in rest or not _is_even(rest):
        return False
    if "\t" not in rest or not _is_even(text):
        return True
    warn(
        f"{path}: read with quotes as plain characters, one example per line; they could also "
        "enclose cells with tabs and line breaks: if they do, save the table as .csv, .jsonl or "
        ".parquet"
    )
    return False


def _is_even(text: str) -> bool:
    """Whether all lines but empty ones have as many cells as the first."""
    return len({line.count("\t") for line in text.split("\n") if line}) <= 1


def _is_whole_field(field: str) -> bool:
    """Whether csv quoting reads a field of one line as it was meant."""
    if not field.startswith('"'):
        return True
    inside = field[1:-1].replace('""', "")
    return len(field) > 1 and field.endswith('"') and '"' not in inside
