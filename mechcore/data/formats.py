"""Tables in users' files: csv, tsv, jsonl and parquet, plain or gzipped."""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from mechcore.errors import InputError, reason, shown
from mechcore.wording import count

if TYPE_CHECKING:
    import pandas as pd

_ENCLOSED = re.compile(r'"(?:[^"]|"")*"')
"""A cell in quotes."""

_LARGEST_CELL = 2**31 - 1
"""Maximum characters in a cell; the default of csv readers is much lower."""

_KINDS: Mapping[str, str] = {
    **{kind: kind for kind in (".csv", ".tsv", ".jsonl", ".parquet")},
    ".txt": ".tsv",
    ".ndjson": ".jsonl",
}
"""How a file is read, by the suffix of its name."""

ONE_COLUMN = "is this one column? Commas separate those of .csv, tabs of .tsv and .txt"


def kind_of_file(path: Path) -> str:
    """The format of a file by its suffix, such as ``".tsv.gz"``, or an `InputError`."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    zipped = path.suffix.lower() == ".gz"
    ending = path.suffixes[-1 - zipped :][:1]
    kind = _KINDS.get(ending[0].lower(), "") if ending else ""
    if not kind or (zipped and kind == ".parquet"):
        raise InputError(
            f"{path}: unknown kind of file; expected .csv, .tsv, .jsonl or .parquet, or a .txt "
            "that is separated by tabs (text files also with .gz): save it as one of these"
        )
    return kind + ".gz" * zipped


def read_table(path: Path) -> pd.DataFrame:
    """A table of any of the formats, as it is; `InputError` if it cannot be read."""
    import pyarrow.parquet

    kind = kind_of_file(path).removesuffix(".gz")
    try:
        if kind == ".jsonl":
            return _read_json_lines(path)
        if kind == ".parquet":
            # pandas metadata beside the columns is ignored.
            return pyarrow.parquet.ParquetFile(path).read().to_pandas(ignore_metadata=True)
        return _read_delimited(path, "\t" if kind == ".tsv" else ",")
    except (ValueError, OSError, EOFError, zlib.error, pyarrow.ArrowException) as error:
        why = reason(error) if path.stat().st_size else "the file is empty"
        if isinstance(error, UnicodeDecodeError):
            why = (
                f"byte 0x{error.object[error.start]:02x} is not UTF-8: save the table as UTF-8 "
                "text, or add .gz to its name if it is compressed by gzip"
            )
        raise InputError(f"{path}: cannot be read as {kind}: {why}") from error


def label_names_in(path: Path) -> dict[str, list[str]]:
    """Names of labels, in the order of their numbers, that ``datasets`` stores in a Parquet file.

    Columns whose names are themselves numbers have none, nor do other files.
    """
    import pyarrow.parquet

    if kind_of_file(path) != ".parquet":
        return {}
    noted = (pyarrow.parquet.read_schema(path).metadata or {}).get(b"huggingface", b"{}")
    features = json.loads(noted).get("info", {}).get("features") or {}
    names = {
        n: feature.get("names") for n, feature in features.items() if isinstance(feature, dict)
    }
    return {
        column: [*map(str, labels)]
        for column, labels in names.items()
        if isinstance(labels, list) and not any(str(label).isdigit() for label in labels)
    }


def _read_json_lines(path: Path) -> pd.DataFrame:
    import pandas as pd

    rows = []
    with _open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                    if not isinstance(rows[-1], dict):
                        raise ValueError(f"found a {type(rows[-1]).__name__}; expected an object")
                except (ValueError, RecursionError) as error:
                    expected = "" if rows else "; expected one JSON object a line"
                    raise ValueError(f"line {number}: {error}{expected}") from error
    return pd.DataFrame(rows, dtype=object)


def _open_text(path: Path) -> IO[str]:
    """A text file, compressed or not, whose lines end in line feeds; without a byte order mark."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="\n")
    return path.open(encoding="utf-8-sig", newline="\n")


def _read_delimited(path: Path, separator: str) -> pd.DataFrame:
    """Quotes of a tab-separated file enclose cells if they do so in all, as pandas writes them.

    Else they are plain characters, as in the official files of GLUE and MultiNLI.
    """
    import pandas as pd

    with _open_text(path) as file:
        lines = file.readlines()
    rows = [(n, line.rstrip("\r\n").split(separator)) for n, line in enumerate(lines, 1)]
    plain = separator == "\t" and any(_opened(cells) for _, cells in rows)
    if not plain:
        rows = _enclosed_rows(lines, separator)
    blank = " \t\r\n".replace(separator, "")
    rows = [(number, cells) for number, cells in rows if lines[number - 1].strip(blank)]
    if not rows:
        raise ValueError("there is no line with the names of columns")
    header = rows[0][1]
    for number, cells in rows[1:]:
        has = f"{count(len(cells), 'cell')}, the header {len(header)}"
        if len(cells) > len(header):
            advice = f"quote cells that contain a {'comma' if separator == ',' else 'tab'}"
            if len(header) == 1:
                advice = f"{shown(header[0], 40)}: {ONE_COLUMN}"
            raise ValueError(f"line {number} has {has}; {advice}")
        if plain and len(cells) < len(header) and (opened := _opened(cells)):
            raise ValueError(
                f"line {number} ends within quotes, {shown(opened[-1], 40)!r}, and has {has}; save "
                "texts with line breaks as .csv, .jsonl or .parquet"
            )
        if cells == header and len(header) > 1:
            raise ValueError(f"line {number} repeats the header; expected it once: remove the line")
    padded = [[*cells, *[None] * (len(header) - len(cells))] for _, cells in rows[1:]]
    return pd.DataFrame(padded, columns=header, dtype=object)


def _opened(cells: Sequence[str]) -> list[str]:
    """Cells that begin with a quote but do not end with one."""
    return [cell for cell in cells if cell.startswith('"') and not _ENCLOSED.fullmatch(cell)]


def _enclosed_rows(lines: Sequence[str], separator: str) -> list[tuple[int, list[str]]]:
    """Rows whose cells may be in quotes, with the numbers of the lines in which they begin.

    pandas silently reads a quote that does not end its cell, and may merge two rows.
    """
    limit = csv.field_size_limit(_LARGEST_CELL)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    rows: list[tuple[int, list[str]]] = []
    start = 1
    try:
        for cells in reader:
            rows.append((start, cells))
            start = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"the row that begins in line {start}: {error}; expected cells in quotes to end with "
            'one, quotes within them to be doubled (""), as pandas writes them, and no carriage '
            "return within a line"
        ) from error
    finally:
        csv.field_size_limit(limit)
    return rows
