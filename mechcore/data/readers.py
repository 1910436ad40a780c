"""Reading users' files: csv, tsv, jsonl and parquet, plain or compressed.

Official files are read as they come: GLUE's ``.tsv``, the ``.jsonl`` and tab-separated ``.txt`` of
MultiNLI and HANS, whose parses are passed over, and PAWS-QQP as its script builds it. That script
is one for Python 2; with the changes that make it run on Python 3 it writes texts as bytes
literals, ``b'How ...'``, which are taken for the texts they stand for where a whole column has
them. What PAWS-QQP is built from has numbers of tokens for texts, and is refused.

Quotes in a ``.csv`` enclose cells. In a tab-separated file they do so where every cell of every
line can be read that way, or where only that reading gives every row as many cells as the header
has, as in what pandas writes of texts with tabs and line breaks. Else they are plain characters.
"""

from __future__ import annotations

import ast
import csv
import gzip
import json
import os
import re
import warnings
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mechcore.data.examples import ALL, Examples
from mechcore.errors import InputError, MechcoreWarning, reason, shown

if TYPE_CHECKING:
    import pandas as pd

KNOWN_COLUMNS: dict[str, tuple[str, ...]] = {
    "text_a": ("text_a", "premise", "sentence1", "question1", "question", "sentence", "text"),
    "text_b": ("text_b", "hypothesis", "sentence2", "question2", "sentence"),
    "label": ("gold_label", "label", "labels", "is_duplicate"),
    "subset": ("subset", "subcase"),
}
"""Column names of GLUE, HANS, PAWS and Hugging Face data, the first that occurs is used."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_TOKEN_NUMBERS = re.compile(r"[\d/():, ]+")
_BYTES = re.compile(r"""b(?:'.*'|".*")""", re.DOTALL)
_ENCLOSED = re.compile(r'(?:^|(?<=\t))"[^"]*(?:""[^"]*)*"(?=\t|$)', re.MULTILINE)
"""A cell in quotes, which may hold tabs and line breaks."""

UNDECIDED = "-"
"""Gold label of MNLI and SNLI examples on which the annotators did not agree."""

_KINDS: Mapping[str, str] = {
    **{kind: kind for kind in (".csv", ".tsv", ".jsonl", ".parquet")},
    ".txt": ".tsv",
    ".ndjson": ".jsonl",
}
"""How a file is read, by the ending of its name."""


def read_examples(
    path: str | Path,
    *,
    name: str | None = None,
    columns: Mapping[str, str] | None = None,
    label_map: Mapping[str, str] | None = None,
    labelled: bool = True,
    skip_empty: bool = False,
) -> Examples:
    """Read one- or two-segment texts with their labels.

    Args:
        path: a ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` file, or a tab-separated ``.txt``;
            text files also ``.gz``.
        name: what to call the data; the file's stem by default.
        columns: which column of the file serves as ``text_a``, ``text_b``, ``label`` or
            ``subset``, where `KNOWN_COLUMNS` does not find it.
        label_map: meanings of labels, such as ``{"0": "entailment"}``; others stay.
        labelled: whether a label is needed; without one, labels are empty where the file has none.
        skip_empty: leave out rows that lack a text or label, with a count of them, as the official
            QQP files have some; else they are an error.

    A file without a subset column is one subset called ``"all"``.

    Raises:
        InputError: the file is missing, unreadable or empty, or lacks a column or value.
    """
    path = Path(path)
    return examples_of(
        read_table(path),
        path,
        name=name or data_name(path),
        columns=columns,
        label_map=label_map,
        labelled=labelled,
        skip_empty=skip_empty,
    )


def examples_of(
    table: pd.DataFrame,
    path: Path | str,
    *,
    name: str,
    columns: Mapping[str, str] | None = None,
    label_map: Mapping[str, str] | None = None,
    labelled: bool = True,
    skip_empty: bool = False,
    unlabelled: str = f"gold label is {UNDECIDED!r} (no agreement among annotators)",
) -> Examples:
    """Examples from a table with rows numbered from 0.

    The options are those of `read_examples`; ``path`` is where the table comes from, and
    ``unlabelled`` what the label `UNDECIDED` stands for there, both for messages.

    Raises:
        InputError: the table is empty, or lacks a column or value.
    """
    import pandas as pd

    chosen = _choose_columns(path, table, columns or {}, labelled)
    used = table[list(dict.fromkeys(chosen.values()))]
    if skip_empty:
        used = _without_empty(path, used)
    frame = pd.DataFrame({role: texts_of(path, used[column]) for role, column in chosen.items()})
    for role in [role for role in ("text_a", "text_b") if role in frame]:
        _check_built(path, table, frame[role])
        frame[role] = _from_bytes(frame[role])
    for role, default in (("text_b", ""), ("label", ""), ("subset", ALL)):
        frame[role] = frame.get(role, default)
    frame["label"] = frame["label"].replace(dict(label_map or {}))
    undecided = (frame["label"] == UNDECIDED) & labelled
    if undecided.any():
        warnings.warn(
            f"{path}: left out {int(undecided.sum())} of {len(frame)} examples whose {unlabelled}",
            MechcoreWarning,
            stacklevel=3,
        )
        frame = frame[~undecided]
    if frame.empty:
        raise InputError(f"{path}: no labelled example; expected at least one row")
    try:
        return Examples(name, frame)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def data_name(path: str | Path) -> str:
    """What the data in a file or folder is called in tables: its name up to the first dot."""
    # Names of files need not be Unicode, but those in tables must.
    return os.fsencode(Path(path).name.split(".")[0]).decode("utf-8", "replace")


def kind_of_file(path: Path) -> str:
    """How a file is read, by the endings of its name, such as ``".tsv"`` or ``".tsv.gz"``.

    Raises:
        InputError: there is no such file, or it is of no kind that is read.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    zipped = path.suffix == ".gz"
    ending = path.suffixes[-1 - zipped :][:1]
    kind = _KINDS.get(ending[0], "") if ending else ""
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
        raise ValueError(f"a key occurs twice among {_list(key for key, _ in pairs)}")
    return found


def _open_text(path: Path) -> IO[str]:
    """A text file, compressed or not; a byte order mark is no part of it."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _read_delimited(path: Path, separator: str) -> pd.DataFrame:
    """Read csv or tsv text."""
    import pandas as pd

    plain = separator == "\t" and not _has_enclosed_cells(path)
    quoting = csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL
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
    warnings.warn(
        f"{path}: read with quotes as plain characters, one example per line; they could also "
        "enclose cells with tabs and line breaks: if they do, save the table as .csv, .jsonl or "
        ".parquet",
        MechcoreWarning,
        stacklevel=2,
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


def _choose_columns(
    path: Path | str, table: pd.DataFrame, mapped: Mapping[str, str], labelled: bool
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
            raise InputError(
                f"{path}: no column {mapped[role]!r} for {role}; found {_list(found)}: name one of "
                f"them with --columns {role}=NAME (columns= in Python)"
            )
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
            remedy = f"name it with --columns {role}=NAME (columns= in Python)"
            if len(found) == 1 and set(found[0]) & set(",;\t|"):
                remedy = "is this one column? Commas separate those of .csv, tabs of .tsv and .txt"
            raise InputError(
                f"{path}: no column for {role} (looked for {_list(KNOWN_COLUMNS[role])}); found "
                f"{_list(found)}: {remedy}"
            )
    return chosen


def _without_empty(path: Path | str, table: pd.DataFrame) -> pd.DataFrame:
    """The rows that have a value in every column."""
    empty = table.map(_is_empty).any(axis=1)
    if empty.any():
        warnings.warn(
            f"{path}: left out {int(empty.sum())} of {len(table)} examples that lack a text or "
            "label",
            MechcoreWarning,
            stacklevel=4,
        )
    return table[~empty]


def _is_empty(value: Any) -> bool:
    import pandas as pd

    if isinstance(value, str):
        return not value.strip()
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def _from_bytes(texts: pd.Series) -> pd.Series:
    """What a column of nothing but bytes literals stands for; other columns as they are."""
    if texts.empty or not all(map(_BYTES.fullmatch, texts)):
        return texts
    try:
        return texts.map(lambda text: ast.literal_eval(text).decode("utf-8"))
    except (ValueError, SyntaxError, AttributeError):  # some are not
        return texts


def _check_built(path: Path | str, table: pd.DataFrame, texts: pd.Series) -> None:
    """Make sure that texts are not what PAWS-QQP is built from: numbers of tokens."""
    built = {"qid1", "qid2"} <= set(table.columns) and not texts.empty
    if built and all(map(_TOKEN_NUMBERS.fullmatch, texts)):
        raise InputError(
            f"{path}: column {texts.name} has numbers of tokens, such as {shown(texts.iloc[0], 30)}"
            "; expected texts: build them with qqp_generate_data.py of PAWS, from the original "
            "Quora file"
        )


def texts_of(path: Path | str, column: pd.Series) -> pd.Series:
    """A column of a table with rows numbered from 0, as text, whole numbers without a point.

    Raises:
        InputError: a cell is empty, or holds something that is no text, such as a list.
    """
    import pandas as pd

    values = column.astype(object).tolist()
    numbers = [value for value in values if isinstance(value, float)]
    whole = len(numbers) == len(values) and all(map(float.is_integer, numbers))
    texts = []
    for row, value in zip(column.index, values, strict=True):
        try:
            texts.append(_text(int(value) if whole else value))
        except ValueError as error:
            place = f"row {row + 1}, column {shown(column.name)}"
            raise InputError(f"{path}: {place}: {error}") from error
    return pd.Series(texts, column.index, dtype=object, name=column.name)


def _text(value: Any) -> str:
    import pandas as pd

    if not pd.api.types.is_scalar(value) or isinstance(value, bytes):
        raise ValueError(f"expected text, found {shown(repr(value))}")
    if _is_empty(value):
        raise ValueError("empty; expected a value: remove the row")
    text = str(value)
    if not text.isascii() and _SURROGATE.search(text):
        raise ValueError(f"found half a character in {shown(text)!r}; expected Unicode text")
    return text


def _list(names: Iterable[object], most: int = 20) -> str:
    found = [shown(name, 40) for name in names]
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
