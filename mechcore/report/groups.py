"""Data sets of a table, their subsets, and groups of subsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from mechcore.evaluation.recalibration import CANNOT_TELL, ONE_LABEL
from mechcore.report.blocks import Paragraph, Table, table_of
from mechcore.report.run_folder import RunFolder
from mechcore.tables import Column
from mechcore.wording import ALL, FULL, count, listed, split_name, subsets_named

PLACED = Column("place", "text", "data set with its split", header="data")
MIXED = "mixed"


def data_sets(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """(split, data) of every data set of a table, out-of-domain first."""
    pairs = list(dict.fromkeys(zip(frame["split"], frame["data"], strict=True)))
    return sorted(pairs, key=lambda pair: pair[0] != "ood")


def population_note(table: pd.DataFrame) -> Iterator[Paragraph]:
    """The population that a table's intervals refer to, if examples form clusters."""
    if "n_clusters" not in table:
        return
    known = table[(table["subset"] == ALL) & table["n_clusters"].notna()]
    if known.empty:
        return
    of_data_sets = known.drop_duplicates(["split", "data"])
    whose = [f"{row.n_clusters:.0f} of {row.data}" for row in of_data_sets.itertuples()]
    other = {"clusters": "other clusters, such as templates", "texts": "other texts of the subsets"}
    yield Paragraph(
        f"Intervals refer to {other[known['population'].iloc[0]]}; clusters: {listed(whose)}. "
        "Fewer than 8 clusters give no interval. The file also has those for the other population.",
        note=True,
    )


def of_data(frame: pd.DataFrame, split: str, data: str, subset: str | None = None) -> pd.DataFrame:
    """The rows of one data set, and of one subset if given."""
    chosen = (frame["split"] == split) & (frame["data"] == data)
    if subset is not None:
        chosen &= frame["subset"] == subset
    return frame[chosen]


def subsets_of(frame: pd.DataFrame, split: str, data: str) -> list[str]:
    """Subsets of a data set, all examples first."""
    names = list(dict.fromkeys(of_data(frame, split, data)["subset"]))
    return sorted(names, key=lambda name: name != ALL)


def places(frame: pd.DataFrame) -> list[tuple[str, str, str]]:
    """(split, data, subset) of a table, as `data_sets` and `subsets_of` order them."""
    return [(*pair, subset) for pair in data_sets(frame) for subset in subsets_of(frame, *pair)]


def in_rows(
    frame: pd.DataFrame,
) -> tuple[pd.DataFrame, list[tuple[str, str, str]], list[str]]:
    """The table with a column ``row``, the index of its `places`; the places; their labels."""
    in_order = places(frame)
    labels = [
        f"{split_name(split)}: {data}" if subset == ALL else subset
        for split, data, subset in in_order
    ]
    keys = zip(frame["split"], frame["data"], frame["subset"], strict=True)
    return frame.assign(row=[in_order.index(key) for key in keys]), in_order, labels


def placed(table: pd.DataFrame) -> pd.DataFrame:
    """The table with a column ``place``, the data set of a row and its split."""
    pairs = zip(table["data"], table["split"], strict=True)
    return table.assign(place=[f"{data} ({split_name(split)})" for data, split in pairs])


def proper_subsets(table: pd.DataFrame, split: str, data: str) -> list[str]:
    """Subsets of a data set other than all of it."""
    return [name for name in subsets_of(table, split, data) if name != ALL]


def over_subsets(accuracy: pd.DataFrame | None, split: str, data: str) -> str:
    """A clause that a value is over all examples of several subsets; empty without subsets."""
    n = 0 if accuracy is None else len(proper_subsets(accuracy, split, data))
    return f", all examples of {count(n, 'subset')}" if n else ""


def labels_in(table: pd.DataFrame, split: str, data: str, subset: str = ALL) -> pd.Series:
    """Number of examples by label, most frequent first; `ALL` may be the sum of all subsets."""
    part = of_data(table, split, data)
    if subset != ALL or (part["subset"] == ALL).any():
        part = part[part["subset"] == subset]
    return part.groupby("label", sort=False)["n"].sum().sort_values(ascending=False, kind="stable")


def most_frequent(
    table: pd.DataFrame, split: str, data: str, subset: str = ALL
) -> tuple[str, float] | None:
    """The most frequent label of a subset (several if tied) and its share; None if unlabelled."""
    labels = labels_in(table, split, data, subset)
    if len(labels) == 0 or not labels.index[0]:
        return None
    most = map(str, labels.index[labels == labels.iloc[0]])
    return " or ".join(most), float(labels.iloc[0] / labels.sum())


def members_sentence(run: RunFolder, groups: Sequence[str]) -> str:
    """A sentence on the subsets that each of these groups averages; empty if unknown."""
    if (table := run.group_accuracy) is None:
        return ""
    rows = {row["subset"]: row for _, row in table[table["subnetwork"] == FULL].iterrows()}
    parts = [f"{group}: {members(rows[group])}" for group in groups if group in rows]
    if parts and MIXED in groups and MIXED not in rows:
        parts.append(f"{MIXED}: all subsets, in-domain and out-of-domain")
    text = f"Groups are means over subsets, listed under Accuracy. {'; '.join(parts)}."
    return text if parts else ""


def members(row: Any) -> str:
    """The subsets that the group in a row of ``accuracy.csv`` averages."""
    if row["subsets"] == ALL:
        return "all examples"
    names = row["subsets"].split("; ")
    # A name containing a semicolon cannot be distinguished from two names.
    return (
        subsets_named(names)
        if len(names) == row["n_subsets"]
        else count(row["n_subsets"], "subset")
    )


def one_label_notes(run: RunFolder, table: pd.DataFrame) -> Iterator[Paragraph]:
    """Notes on data, or subsets, with one label, where a change may only be a shifted threshold."""
    known = _of_one_label(run)
    for split, data in data_sets(table):
        shown, of_one = (subsets_of(part, split, data) for part in (table, known))
        subsets = [name for name in shown if name in of_one]
        if subsets:
            where = data if ALL in subsets else f"{subsets_named(subsets)} of {data}"
            text = f"Only one label on {where}: a change there {CANNOT_TELL}."
            yield Paragraph(text, note=True)


def _of_one_label(run: RunFolder) -> pd.DataFrame:
    """Split, data and subset of everything with one label."""
    sweep = run.filled("sweep")
    if sweep is not None and "reason" in sweep:
        return sweep[sweep["reason"] == ONE_LABEL]
    if (labels := run.table("data")) is None:
        return pd.DataFrame(columns=["split", "data", "subset"])
    labels = labels[labels["label"] != ""]
    whole = labels.assign(subset=ALL)
    n = pd.concat([whole, labels]).groupby(["split", "data", "subset"])["label"].nunique()
    return n[n == 1].reset_index()


def missing_table(run: RunFolder, name: str) -> Table:
    """Masks that could not be used, and why."""
    columns = [c for c in ("checkpoint", "subnetwork", "reason") if c in run.tables[name]]
    return table_of(run.tables[name], run.schemas[name], "Masks that are missing, and why", columns)
