"""Which column of a table serves as what."""

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
"""Column names of GLUE, SuperGLUE, HANS, PAWS and the Hugging Face hub; the first found is used.

A warning tells of another that differs."""

_WHOLE = re.compile(r"([+-]?\d+)\.0*")
_WORDS_OF_TEXT = 4
"""Words that a cell must have on average for its column to be taken for texts."""


def check_roles(mapped: Mapping[str, str]) -> None:
    """Make sure that columns are mapped to roles that there are.

    Raises:
        InputError: one is not.
    """
    if unknown := sorted(set(mapped) - set(KNOWN_COLUMNS)):
        raise InputError(
            f"columns: unknown role {shown(repr(unknown[0]))}; roles are "
            f"{', '.join(KNOWN_COLUMNS)}, as in --columns text_a=NAME"
        )


def _no_column(path: Path | str, name: str, role: str, names: Collection[str]) -> InputError:
    role_too = ", or a role such as text_a" if role == CLUSTER else ""
    return InputError(
        f"{path}: no column {name!r} for {role}; found {first_names(names)}: name one of them with "
        f"--columns {role}=NAME (columns= in Python){role_too}; files whose columns have different "
        "names make a task (--task)"
    )


def choose_columns(
    path: Path | str, table: pd.DataFrame, mapped: Mapping[str, str], labelled: bool
) -> dict[str, str]:
    """The column of each role that the table has, but for clusters.

    Raises:
        InputError: a column is missing, or its name occurs twice.
    """
    found = list(table.columns)
    check_roles(mapped)
    if not found:
        raise InputError(f"{path}: is empty; expected at least one row")
    if not labelled:  # a mapping for several files names what this one need not have
        needed = ("text_a", "text_b")
        mapped = {role: name for role, name in mapped.items() if role in needed or name in found}
    chosen: dict[str, str] = {}
    mapped = {role: name for role, name in mapped.items() if role != CLUSTER}
    for role, names in KNOWN_COLUMNS.items():
        if role == CLUSTER:  # see cluster_column: it may be the column of another role
            continue
        if role in mapped and mapped[role] not in found:
            raise _no_column(path, mapped[role], role, found)
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


def cluster_column(
    path: Path | str, table: pd.DataFrame, mapped: str | None, chosen: Mapping[str, str]
) -> str | None:
    """Which column has the clusters; None where each example is its own."""
    import pandas as pd

    names = list(table.columns)
    if mapped is not None and mapped not in (*names, *chosen):
        raise _no_column(path, mapped, CLUSTER, names)
    if mapped is not None:
        return mapped if mapped in names else chosen[mapped]
    for name in KNOWN_COLUMNS[CLUSTER]:
        # Of one value, or of lists, it is something else.
        if names.count(name) == 1 and name not in chosen.values():
            values = table[name]
            if values.map(pd.api.types.is_scalar).all() and values.nunique() > 1:
                return name
    return None


def warn_of_texts_left_out(
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


def warn_of_rivals(
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
                if not is_empty(theirs)
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


def is_empty(value: Any) -> bool:
    """Whether a cell has no value, or but spaces."""
    import pandas as pd

    if isinstance(value, str):
        return not value.strip()
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def label_key(label: str) -> str:
    """What labels are told by: spaces around them do not count, and 0.0 is 0."""
    label = label.strip()
    whole = _WHOLE.fullmatch(label)
    return whole[1] if whole else label
