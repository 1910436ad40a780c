"""Examples from users' tables.

Official files are read as they come: GLUE's ``.tsv``, the ``.jsonl`` and tab-separated ``.txt`` of
MultiNLI and HANS, whose parses are passed over, and PAWS-QQP as its script builds it. That script
is one for Python 2; with the changes that make it run on Python 3 it writes texts as bytes
literals, ``b'How ...'``, which are taken for the texts they stand for where a whole column has
them. What PAWS-QQP is built from has numbers of tokens for texts, and is refused.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechcore.data.examples import ALL, CLUSTER, UNDECIDED, Examples
from mechcore.data.formats import ONE_COLUMN, label_names_in, read_table
from mechcore.data.labels import normal_name
from mechcore.errors import InputError, first_names, shown, warn

if TYPE_CHECKING:
    import pandas as pd

KNOWN_COLUMNS: dict[str, tuple[str, ...]] = {
    "text_a": ("text_a", "premise", "sentence1", "question1", "question", "sentence", "text"),
    "text_b": ("text_b", "hypothesis", "sentence2", "question2", "sentence", "passage"),
    "label": ("gold_label", "label", "labels", "is_duplicate"),
    "subset": ("subset", "subcase"),
    CLUSTER: ("cluster", "template"),
}
"""Column names of GLUE, SuperGLUE, HANS, PAWS and the Hugging Face hub; the first found is used.

A warning tells of another that differs."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_WHOLE = re.compile(r"([+-]?\d+)\.0*")
_TOKEN_NUMBERS = re.compile(r"[\d/():, ]+")
_BYTES = re.compile(r"""b(?:'.*'|".*")""", re.DOTALL)
_WORDS_OF_TEXT = 4
"""Words that a cell must have on average for its column to be taken for texts."""


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
        columns: which column of the file serves as ``text_a``, ``text_b``, ``label``, ``subset``
            or ``cluster``, where `KNOWN_COLUMNS` does not find it. What the clusters are may also
            be said by a role, as in ``{"cluster": "text_a"}``.
        label_map: meanings of labels, such as ``{"0": "entailment"}``; others stay.
        labelled: whether a label is needed; without one, labels are empty where the file has none.
        skip_empty: leave out rows that lack a text or label, with a count of them, as the official
            QQP files have some; else they are an error.

    A file without a subset column is one subset called ``"all"``. Without a cluster column, or
    where its cell is empty, an example is a cluster of its own.

    Raises:
        InputError: the file is missing, unreadable or empty, or lacks a column or value.
    """
    path = Path(path)
    table = read_table(path)
    return examples_of(
        with_label_names(path, table, label_names_in(path), label_map),
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
) -> Examples:
    """Examples from a table with rows numbered from 0.

    The options are those of `read_examples`; ``path`` is where the table comes from, for messages.

    Raises:
        InputError: the table is empty, or lacks a column or value.
    """
    import pandas as pd

    table = table.set_axis([*map(str, table.columns)], axis=1)  # a DataFrame's may be numbers
    columns = {role: str(column) for role, column in (columns or {}).items()}
    chosen = _choose_columns(path, table, columns, labelled)
    settled = {*columns} if labelled else {*columns, "label"}
    if not {"text_a", "text_b"} & {*columns} and "text_b" not in chosen:
        settled |= _warn_of_texts_left_out(path, table, chosen)
    _warn_of_rivals(path, table, chosen, settled)
    named = columns.get(CLUSTER)
    if not labelled and named not in (*table.columns, *chosen):
        named = None  # as for other columns, see _choose_columns
    cluster = _cluster_column(path, table, named, chosen)
    used = table[list(dict.fromkeys(chosen.values()))]
    if skip_empty:
        used = _without_empty(path, used)
    frame = pd.DataFrame({role: texts_of(path, used[column]) for role, column in chosen.items()})
    for role in [role for role in ("text_a", "text_b") if role in frame]:
        _check_built(path, table, frame[role])
        frame[role] = _from_bytes(frame[role])
    for role, default in (("text_b", ""), ("label", ""), ("subset", ALL)):
        frame[role] = frame.get(role, default)
    if cluster is not None:
        names = table.loc[frame.index, cluster]
        frame[CLUSTER] = (
            texts_of(path, names[~names.map(_is_empty)]).reindex(frame.index).fillna("")
        )
    frame = with_labels(path, frame, label_map, labelled)
    try:
        return Examples(name, frame)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def data_name(path: str | Path) -> str:
    """What the data in a file or folder is called in tables: its name up to the first dot."""
    # Names of files need not be Unicode, but those in tables must.
    return os.fsencode(Path(path).name.split(".")[0]).decode("utf-8", "replace")


def _choose_columns(
    path: Path | str, table: pd.DataFrame, mapped: Mapping[str, str], labelled: bool
) -> dict[str, str]:
    found = list(table.columns)
    unknown = sorted(set(mapped) - set(KNOWN_COLUMNS))
    if unknown:
        raise InputError(
            f"columns: unknown role {unknown[0]!r}; roles are {first_names(KNOWN_COLUMNS)}"
        )
    if not found:
        raise InputError(f"{path}: is empty; expected at least one row")
    if not labelled:  # a mapping for several files names what this one need not have
        needed = ("text_a", "text_b")
        mapped = {role: name for role, name in mapped.items() if role in needed or name in found}
    chosen: dict[str, str] = {}
    mapped = {role: name for role, name in mapped.items() if role != CLUSTER}
    for role, names in KNOWN_COLUMNS.items():
        if role == CLUSTER:  # see _cluster_column: it may be the column of another role
            continue
        if role in mapped and mapped[role] not in found:
            raise InputError(
                f"{path}: no column {mapped[role]!r} for {role}; found {first_names(found)}: "
                f"name one of them with --columns {role}=NAME (columns= in Python); files whose "
                "columns have different names make a task (--task)"
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
                remedy = ONE_COLUMN
            raise InputError(
                f"{path}: no column for {role} (looked for {first_names(KNOWN_COLUMNS[role])}); "
                f"found {first_names(found)}: {remedy}"
            )
    return chosen


def _cluster_column(
    path: Path | str, table: pd.DataFrame, mapped: str | None, chosen: Mapping[str, str]
) -> str | None:
    """Which column has the clusters; None where each example is its own."""
    import pandas as pd

    there = list(table.columns)
    if mapped is not None and mapped in (*there, *chosen):
        return mapped if mapped in there else chosen[mapped]
    if mapped is not None:
        raise InputError(
            f"{path}: no column {mapped!r} for {CLUSTER}; found {first_names(there)}: name one of "
            f"them with --columns {CLUSTER}=NAME (columns= in Python), or a role such as text_a; "
            "files whose columns have different names make a task (--task)"
        )
    for name in KNOWN_COLUMNS[CLUSTER]:
        # Of one value, or of lists, it is something else.
        if there.count(name) == 1 and name not in chosen.values():
            values = table[name]
            if values.map(pd.api.types.is_scalar).all() and values.nunique() > 1:
                return name
    return None


def _warn_of_texts_left_out(
    path: Path | str, table: pd.DataFrame, chosen: Mapping[str, str]
) -> set[str]:
    """Say so where a text is read alone beside columns that may be its second half; which."""
    others = [name for name in table.columns if name not in chosen.values()]
    names = {name for name in others if name.strip().lower() in KNOWN_COLUMNS["text_b"]}
    texts = [name for name in others if name in names or _looks_like_texts(table[name])]
    if texts:
        alone = chosen["text_a"]
        warn(
            f"{path}: texts are those of column {shown(alone, 40)} alone, and {first_names(texts)} "
            f"{'holds' if len(texts) == 1 else 'hold'} texts too: for pairs, add --columns "
            f"text_b={shown(texts[0], 40)}; if single texts are meant, --columns "
            f"text_a={shown(alone, 40)} (columns= in Python)"
        )
    return {*texts}


def _warn_of_rivals(
    path: Path | str, table: pd.DataFrame, chosen: Mapping[str, str], settled: Collection[str]
) -> None:
    """Say so where a column that is read has a rival of a known name that says something else.

    Roles and columns that are ``settled`` are passed over.
    """
    names, passed = [*table.columns], {*chosen.values(), *settled}
    for role, column in chosen.items():
        for rival in KNOWN_COLUMNS[role] if role not in settled else ():
            if rival in passed or names.count(rival) != 1:
                continue
            passed.add(rival)
            pairs = [
                (label_key(str(mine)), label_key(str(theirs)))
                for mine, theirs in zip(table[column], table[rival], strict=True)
                if not _is_empty(theirs)
            ]
            different = sum(mine != theirs for mine, theirs in pairs)
            ours, others = ({pair[side] for pair in pairs} for side in (0, 1))
            renamed = not ours & others and len(ours) == len(others) == len({*pairs})
            if different and not (renamed and role in ("label", "subset")):
                warn(
                    f"{path}: columns {column} and {rival} could both be {role} and differ in "
                    f"{different} of {len(table)} rows; {column} is read: choose with --columns "
                    f"{role}={column} or {role}={rival} (columns= in Python)"
                )


def _looks_like_texts(column: pd.Series | pd.DataFrame, among: int = 100) -> bool:
    """Whether a column, one of its name, has nothing but strings, most of them of several words."""
    values = column.to_numpy()[:among].tolist() if column.ndim == 1 else []
    words = [len(value.split()) for value in values if isinstance(value, str)]
    return 0 < len(words) == len(values) and sum(words) >= _WORDS_OF_TEXT * len(words)


def _without_empty(path: Path | str, table: pd.DataFrame) -> pd.DataFrame:
    """The rows that have a value in every column."""
    empty = table.map(_is_empty).any(axis=1)
    if empty.any():
        warn(
            f"{path}: left out {int(empty.sum())} of {len(table)} examples that lack a text or "
            "label"
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


def with_label_names(
    path: Path | str,
    table: pd.DataFrame,
    names: Mapping[str, Any],
    label_map: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """The table with names in place of the numbers of labels, and `UNDECIDED` for -1 and none.

    Numbers that ``label_map`` gives a meaning stay; so do columns without numbers. ``names`` are
    lists in the order of the numbers, by column; what is no list is passed over.

    Raises:
        InputError: a number is that of no name.
    """
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
                    f"{path}: label {index} of column {shown(column)} is {name} there, and "
                    f"{meaning} by label_map, which is used (--label-map; label_map= in Python): "
                    "leave it out unless the file is wrong"
                )
    return table


def with_labels(
    path: Path | str, frame: pd.DataFrame, label_map: Mapping[str, str] | None, labelled: bool
) -> pd.DataFrame:
    """Examples with the meanings of their labels; those `UNDECIDED` are left out if ``labelled``.

    Raises:
        InputError: no example is left.
    """
    keys = frame["label"].map(label_key)
    unnamed = (keys == "-1") & ("-1" not in {label_key(str(label)) for label in label_map or ()})
    if labelled and unnamed.any() and all(key.removeprefix("-").isdigit() for key in {*keys}):
        warn(
            f"{path}: label -1, which {int(unnamed.sum())} of {len(frame)} examples have, mostly "
            f"stands for none: to leave them out, add --label-map -1={UNDECIDED} (label_map= in "
            "Python)"
        )
    frame = frame.assign(label=with_meanings(frame["label"], label_map))
    undecided = (frame["label"] == UNDECIDED) & labelled
    if undecided.any():
        warn(
            f"{path}: left out {int(undecided.sum())} of {len(frame)} examples without a label: it "
            f"is {UNDECIDED} (annotators did not agree) or -1 (none is given)"
        )
    if undecided.all():
        raise InputError(f"{path}: no labelled example; expected at least one row")
    return frame[~undecided]


def with_meanings(labels: pd.Series, meanings: Mapping[str, str] | None) -> pd.Series:
    """Labels with what some of them mean in their place; those that are numbers may be given so."""
    exact = {str(label): meaning for label, meaning in (meanings or {}).items()}
    alike = {label_key(label): meaning for label, meaning in exact.items()}
    return labels.map(lambda label: exact.get(label, alike.get(label_key(label), label)))


def label_key(label: str) -> str:
    """What labels are told by: spaces around them do not count, and 0.0 is 0."""
    label = label.strip()
    whole = _WHOLE.fullmatch(label)
    return whole[1] if whole else label


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
