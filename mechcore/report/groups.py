"""Groups of subsets in words: which subsets a mean is over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from mechcore.report.figures import FULL, of_data, subsets_of
from mechcore.report.run_folder import RunFolder
from mechcore.wording import ALL, count, listed, percent, subsets_named

MIXED = "mixed"
"""The group of all subsets, in-domain and out-of-domain."""


def proper_subsets(table: pd.DataFrame, role: str, data: str) -> list[str]:
    """Subsets of a data set other than all of it."""
    return [name for name in subsets_of(of_data(table, role, data), role, data) if name != ALL]


def group_sentences(run: RunFolder) -> Iterator[str]:
    """Means of the full model over the groups of subsets, and over which subsets they are."""
    table = run.table("group_accuracy")
    if table is None or len(table) == 0:
        return
    parts, without = [], []
    for _, row in table[table["subnetwork"] == FULL].iterrows():
        if row["missing"]:
            without.append(f"{row['group']} (no example of {row['missing'].replace('; ', ', ')})")
        else:
            parts.append(f"{percent(row['accuracy'])} on {row['group']} ({_members(row)})")
    text = (
        f"As a mean over subsets, each counting the same, it is {listed(parts)}." if parts else ""
    )
    if without:
        text += f" There is no mean for {listed(without)}."
    if text:
        yield text.lstrip()


def members_sentence(run: RunFolder, groups: Sequence[str]) -> str:
    """Which subsets each of these groups is a mean over; empty where the run does not say."""
    table = run.table("group_accuracy")
    if table is None:
        return ""
    rows = {row["group"]: row for _, row in table[table["subnetwork"] == FULL].iterrows()}
    parts = [f"{group}: {_members(rows[group])}" for group in groups if group in rows]
    if parts and MIXED in groups and MIXED not in rows:
        parts.append(f"{MIXED}: all subsets, in-domain and out-of-domain")
    text = f"Groups are means over subsets, named under Accuracy. {'; '.join(parts)}."
    return text if parts else ""


def _members(row: pd.Series) -> str:
    if row["subsets"] == ALL:
        return "all examples"
    names = row["subsets"].split("; ")
    # A name with a semicolon in it cannot be told from two.
    return (
        subsets_named(names)
        if len(names) == row["n_subsets"]
        else count(row["n_subsets"], "subset")
    )
