"""The roles of a table's columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechcore.data.examples import CLUSTER
from mechcore.data.formats import ONE_COLUMN
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
"""Column names of GLUE, SuperGLUE, HANS, PAWS and the Hugging Face hub; the first match is used.

If another match differs, there is a warning."""

_WHOLE = re.compile(r"([+-]?\d+)\.0*")
_WORDS_OF_TEXT = 4
"""Minimum mean number of words per cell in a column of texts."""


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
    """The column of each role that the table has; see `KNOWN_COLUMNS` and ``mapped``.

    The column of clusters may also have another role. Raises `InputError` for a missing column.
    """
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
