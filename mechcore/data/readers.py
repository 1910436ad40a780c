"""Examples from users' tables; official files of GLUE, MultiNLI, HANS and PAWS-QQP unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechcore.data.examples import ALL, CLUSTER, UNDECIDED, Examples
from mechcore.data.formats import choose_columns, is_empty, label_key, label_names_in, read_table
from mechcore.data.labels import normal_name
from mechcore.errors import InputError, first_names, shown, warn

if TYPE_CHECKING:
    import pandas as pd

_SURROGATE = re.compile("[\ud800-\udfff]")
_TOKEN_NUMBERS = re.compile(r"[\d/():, ]+")
_BYTES = re.compile(r"""b(?:'.*'|".*")""", re.DOTALL)


def read_examples(
    path: str | Path,
    *,
    name: str | None = None,
    label_map: Mapping[str, str] | None = None,
    **options: Any,
) -> Examples:
    """Read texts, single or in pairs, with their labels.

    ``path`` is a ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` file, or a tab-separated ``.txt``;
    text files also ``.gz``. The data are called as the file by default. For the other options see
    `examples_of`.

    Raises:
        InputError: the file is missing, unreadable or empty, or lacks a column or value.
    """
    path = Path(path)
    table = with_label_names(path, read_table(path), label_names_in(path), label_map)
    return examples_of(table, path, name=name or data_name(path), label_map=label_map, **options)


def examples_of(
    table: pd.DataFrame,
    path: Path | str,
    *,
    name: str,
    columns: Mapping[str, str] | None = None,
    label_map: Mapping[str, str] | None = None,
    labelled: bool = True,
    skip_empty: bool = False,
) -> Examples:
    """Examples from a table with rows numbered from 0; ``path`` says where they come from.

    ``columns`` says which column serves as ``text_a``, ``text_b``, ``label``, ``subset`` or
    ``cluster``, where `mechcore.data.formats.KNOWN_COLUMNS` does not find it; clusters may also be
    those of a role, as in ``{"cluster": "text_a"}``. ``label_map`` has meanings of labels, such as
    ``{"0": "entailment"}``; others stay. Without ``labelled``, labels may be missing. With
    ``skip_empty``, rows that lack a text or label are skipped with a warning, else they are an
    error.
    """
    import pandas as pd

    table = table.set_axis([*map(str, table.columns)], axis=1)  # a DataFrame's may be numbers
    columns = {role: str(column) for role, column in (columns or {}).items()}
    chosen = choose_columns(path, table, columns, labelled)
    cluster = chosen.pop(CLUSTER, None)
    used = table[list(dict.fromkeys(chosen.values()))]
    if skip_empty:
        empty = used.map(is_empty).any(axis=1)
        used = used[~empty]
        if empty.any():
            n = f"{int(empty.sum())} of {len(table)}"
            warn(f"{path}: skipped {n} examples that lack a text or label")
    frame = pd.DataFrame({role: texts_of(path, used[column]) for role, column in chosen.items()})
    for role in [role for role in ("text_a", "text_b") if role in frame]:
        _check_built(path, table, frame[role])
    frame = pd.DataFrame({"text_b": "", "label": "", "subset": ALL}, frame.index).assign(**frame)
    if cluster is not None:
        names = table.loc[frame.index, cluster]
        frame[CLUSTER] = texts_of(path, names[~names.map(is_empty)]).reindex(frame.index).fillna("")
    frame = with_labels(path, frame, label_map, labelled)
    try:
        return Examples(name, frame)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def data_name(path: str | Path) -> str:
    """The name of the data of a file or folder in tables: its name up to the first dot."""
    return Path(path).name.split(".")[0]


def _check_built(path: Path | str, table: pd.DataFrame, texts: pd.Series) -> None:
    """Raise for the index files of PAWS-QQP, and for bytes as its script writes on Python 3."""
    patterns = [_BYTES, *([_TOKEN_NUMBERS] if {"qid1", "qid2"} <= set(table.columns) else [])]
    if not texts.empty and any(all(map(pattern.fullmatch, texts)) for pattern in patterns):
        raise InputError(
            f"{path}: column {texts.name} has values such as {shown(texts.iloc[0], 30)}; expected "
            "texts: build PAWS-QQP from the original Quora file with its qqp_generate_data.py, on "
            "Python 2 or without .encode()"
        )


def with_label_names(
    path: Path | str,
    table: pd.DataFrame,
    names: Mapping[str, Any],
    label_map: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """The table with label ``names``, by column, for numbers without one in ``label_map``."""
    import pandas as pd

    mapped = {label_key(str(label)): meaning for label, meaning in (label_map or {}).items()}
    for column, known in names.items():
        if not isinstance(known, list) or column not in table:
            continue
        if not pd.api.types.is_numeric_dtype(table[column]):
            continue
        labels = []
        for row, value in enumerate(table[column].tolist(), 1):
            number = UNDECIDED if pd.isna(value) else label_key(str(value))
            if number in mapped or number == UNDECIDED:
                labels.append(number)
            elif value in range(-1, len(known)):
                labels.append([*known, UNDECIDED][int(value)])
            else:
                raise InputError(
                    f"{path}: row {row}, column {shown(column)}: found {number}; expected 0 to "
                    f"{len(known) - 1}, which are {first_names(known, 6)}, or -1 for no label"
                )
        table[column] = pd.Series(labels, table.index, dtype=object)
        for index, name in enumerate(known):
            meaning = mapped.get(str(index), name)
            if normal_name(meaning) in {*map(normal_name, known)} - {normal_name(name)}:
                warn(
                    f"{path}: label {index} of column {shown(column)} is {name} in the file, but "
                    f"{meaning} in label_map, which is used (--label-map; label_map= in Python): "
                    "leave it out unless the file is wrong"
                )
    return table


def with_labels(
    path: Path | str, frame: pd.DataFrame, label_map: Mapping[str, str] | None, labelled: bool
) -> pd.DataFrame:
    """Examples with mapped labels; `UNDECIDED` ones are skipped if ``labelled``."""
    keys = frame["label"].map(label_key)
    unnamed = (keys == "-1") & ("-1" not in {label_key(str(label)) for label in label_map or ()})
    if labelled and unnamed.any() and all(key.removeprefix("-").isdigit() for key in {*keys}):
        warn(
            f"{path}: {int(unnamed.sum())} of {len(frame)} examples have the label -1, which "
            f"usually means no label: to skip them, add --label-map -1={UNDECIDED} (label_map= in "
            "Python)"
        )
    frame = frame.assign(label=with_meanings(frame["label"], label_map))
    undecided = (frame["label"] == UNDECIDED) & labelled
    if undecided.any():
        warn(
            f"{path}: skipped {int(undecided.sum())} of {len(frame)} examples without a label "
            f"({UNDECIDED}: annotators disagreed; -1: none given)"
        )
    if undecided.all():
        raise InputError(f"{path}: no labelled example; expected at least one row")
    return frame[~undecided]


def with_meanings(labels: pd.Series, meanings: Mapping[str, str] | None) -> pd.Series:
    """Labels replaced by their meanings; numeric labels may be given as numbers."""
    exact = {str(label): meaning for label, meaning in (meanings or {}).items()}
    alike = {label_key(label): meaning for label, meaning in exact.items()}
    return labels.map(lambda label: exact.get(label, alike.get(label_key(label), label)))


def texts_of(path: Path | str, column: pd.Series) -> pd.Series:
    """A column as text, whole numbers without a point; raises `InputError` for any other cell."""
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
    if is_empty(value):
        raise ValueError("empty; expected a value: remove the row")
    text = str(value)
    if not text.isascii() and _SURROGATE.search(text):
        raise ValueError(f"found half a character in {shown(text)!r}; expected Unicode text")
    return text
