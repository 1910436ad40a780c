"""Tables in users' files (csv, tsv, jsonl, parquet; text also gzipped), and roles of columns."""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mechcore.data.examples import CLUSTER
from mechcore.errors import InputError, first_names, reason, shown, warn
from mechcore.wording import count

if TYPE_CHECKING:
    import pandas as pd

_ENCLOSED = re.compile(r'"(?:[^"]|"")*"')  # A cell in quotes

_LARGEST_CELL = 2**31 - 1  # maximum characters in a cell; the default of csv readers is much lower

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
    """Names of labels by number that ``datasets`` stores in a Parquet file, if they are words."""
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
    """Quotes of tab-separated cells enclose them only if all do; in GLUE's files they are text."""
    import pandas as pd

    with _open_text(path) as file:
        lines = file.readlines()
    rows = [(n, line.rstrip("\r\n").split(separator)) for n, line in enumerate(lines, 1)]
    plain = separator == "\t" and any(_has_open_quote(cells) for _, cells in rows)
    if not plain:
        rows = _enclosed_rows(lines, separator)
    blank = " \t\r\n".replace(separator, "")
    rows = [(number, cells) for number, cells in rows if lines[number - 1].strip(blank)]
    if not rows:
        raise ValueError("there is no line with the names of columns")
    header = rows[0][1]
    for number, cells in rows[1:]:
        if len(cells) > len(header):
            advice = f"quote cells that contain a {'comma' if separator == ',' else 'tab'}"
            if len(header) == 1:
                advice = f"{shown(header[0], 40)}: {ONE_COLUMN}"
            has = f"{count(len(cells), 'cell')}, the header {len(header)}"
            raise ValueError(f"line {number} has {has}; {advice}")
        if plain and len(cells) < len(header) and _has_open_quote(cells):
            raise ValueError(
                f"line {number} ends within quotes; save texts with line breaks as .csv, .jsonl or "
                ".parquet"
            )
        if cells == header and len(header) > 1:
            raise ValueError(f"line {number} repeats the header; expected it once: remove the line")
    padded = [[*cells, *[None] * (len(header) - len(cells))] for _, cells in rows[1:]]
    return pd.DataFrame(padded, columns=header, dtype=object)


def _has_open_quote(cells: Sequence[str]) -> bool:
    """Whether a cell begins with a quote but does not end with one."""
    return any(cell.startswith('"') and not _ENCLOSED.fullmatch(cell) for cell in cells)


def _enclosed_rows(lines: Sequence[str], separator: str) -> list[tuple[int, list[str]]]:
    """Rows whose cells may be in quotes, with their first line; pandas may silently merge rows."""
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


KNOWN_COLUMNS: dict[str, tuple[str, ...]] = {
    "text_a": ("text_a", "premise", "sentence1", "question1", "question", "sentence", "text"),
    "text_b": ("text_b", "hypothesis", "sentence2", "question2", "sentence", "passage"),
    "label": ("gold_label", "label", "labels", "is_duplicate"),
    "subset": ("subset", "subcase"),
    CLUSTER: ("cluster", "template"),
}
"""Column names of GLUE, SuperGLUE, HANS, PAWS and the Hugging Face hub; the first match is used.

If another match differs, there is a warning."""

_WHOLE = re.compile(r"([+-]?\d+)\.0*")
_WORDS_OF_TEXT = 4  # minimum mean number of words per cell in a column of texts


def check_roles(mapped: Mapping[str, str]) -> None:
    """Raise `InputError` if a column is mapped to an unknown role."""
    if unknown := sorted(set(mapped) - set(KNOWN_COLUMNS)):
        raise InputError(
            f"columns: unknown role {shown(repr(unknown[0]))}; roles are "
            f"{', '.join(KNOWN_COLUMNS)}, as in --columns text_a=NAME"
        )


def choose_columns(
    path: Path | str, table: pd.DataFrame, mapped: Mapping[str, str], labelled: bool
) -> dict[str, str]:
    """The column of each role, see `KNOWN_COLUMNS`; that of clusters may have another role too."""
    names = list(table.columns)
    check_roles(mapped)
    if not names:
        raise InputError(f"{path}: is empty; expected at least one row")
    mapped = dict(mapped)
    cluster = mapped.pop(CLUSTER, None)
    if not labelled:  # a mapping for several files names what this one need not have
        needed = ("text_a", "text_b")
        mapped = {role: name for role, name in mapped.items() if role in needed or name in names}
    chosen: dict[str, str] = {}
    for role in (role for role in KNOWN_COLUMNS if role != CLUSTER):
        taken = {*mapped.values(), *chosen.values()}
        free = [name for name in KNOWN_COLUMNS[role] if name in names and name not in taken]
        candidates = [mapped[role]] if role in mapped else free
        if candidates:
            chosen[role] = candidates[0]
            if names.count(candidates[0]) != 1:
                raise _no_column(path, candidates[0], role, names)
    for role in ("text_a", "label") if labelled else ("text_a",):
        if role not in chosen:
            remedy = f"name it with --columns {role}=NAME (columns= in Python)"
            if len(names) == 1 and set(names[0]) & set(",;\t|"):
                remedy = ONE_COLUMN
            raise InputError(
                f"{path}: no column for {role} (looked for {first_names(KNOWN_COLUMNS[role])}); "
                f"found {first_names(names)}: {remedy}"
            )
    _warn_of_others(path, table, chosen, {*mapped} if labelled else {*mapped, "label"})
    if cluster is not None and cluster not in (*names, *chosen):
        if labelled:
            raise _no_column(path, cluster, CLUSTER, names)
        cluster = None
    if cluster is None:
        free = [name for name in KNOWN_COLUMNS[CLUSTER] if name not in chosen.values()]
        cluster = next((name for name in free if _has_clusters(table, name)), None)
    elif cluster not in names:
        cluster = chosen[cluster]
    return chosen if cluster is None else {**chosen, CLUSTER: cluster}


def _no_column(path: Path | str, name: str, role: str, names: list[str]) -> InputError:
    if n := names.count(name):
        return InputError(f"{path}: {n} columns are named {name}; expected one: rename the others")
    role_too = ", or a role such as text_a" if role == CLUSTER else ""
    return InputError(
        f"{path}: no column {name!r} for {role}; found {first_names(names)}: name one of them with "
        f"--columns {role}=NAME (columns= in Python){role_too}; for files with different column "
        "names, describe a task (--task)"
    )


def _has_clusters(table: pd.DataFrame, name: str) -> bool:
    """Whether a column can name clusters: not if it has a single value, or lists."""
    import pandas as pd

    if list(table.columns).count(name) != 1:
        return False
    return bool(table[name].map(pd.api.types.is_scalar).all()) and table[name].nunique() > 1


def _warn_of_others(
    path: Path | str, table: pd.DataFrame, chosen: Mapping[str, str], settled: Collection[str]
) -> None:
    """Warn if an unread column holds texts, or could have a role that is not ``settled``."""
    others = [name for name in table.columns if list(table.columns).count(name) == 1]
    others = [name for name in others if name not in chosen.values()]
    if not {"text_a", "text_b"} & {*settled} and "text_b" not in chosen:
        texts = [name for name in others if _looks_like_texts(table[name])]
        others = [name for name in others if name not in texts]
        if texts:
            alone = chosen["text_a"]
            warn(
                f"{path}: texts are read only from column {shown(alone, 40)}, but "
                f"{first_names(texts)} also {'holds' if len(texts) == 1 else 'hold'} texts: for "
                f"pairs, add --columns text_b={shown(texts[0], 40)}; for single texts, "
                f"--columns text_a={shown(alone, 40)} (columns= in Python)"
            )
    for role, column in chosen.items():
        for rival in KNOWN_COLUMNS[role]:
            if role in settled or rival not in others:
                continue
            others.remove(rival)
            different = sum(
                label_key(str(mine)) != label_key(str(theirs))
                for mine, theirs in zip(table[column], table[rival], strict=True)
                if not is_empty(theirs)
            )
            if different:
                warn(
                    f"{path}: columns {column} and {rival} could both be {role} and differ in "
                    f"{different} of {len(table)} rows; {column} is read: choose with --columns "
                    f"{role}={column} or {role}={rival} (columns= in Python)"
                )


def _looks_like_texts(column: pd.Series) -> bool:
    """Whether a column has only strings, most of them of several words."""
    values = column.to_numpy()[:100].tolist()
    words = [len(value.split()) for value in values if isinstance(value, str)]
    return 0 < len(words) == len(values) and sum(words) >= _WORDS_OF_TEXT * len(words)


def is_empty(value: Any) -> bool:
    """Whether a cell has no value, or only spaces."""
    import pandas as pd

    if isinstance(value, str):
        return not value.strip()
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def label_key(label: str) -> str:
    """The key by which labels are compared: surrounding spaces do not count, and 0.0 is 0."""
    label = label.strip()
    whole = _WHOLE.fullmatch(label)
    return whole[1] if whole else label
