"""The section on the data: how many examples, cut or not, and how their labels are balanced."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pandas as pd

from mechcore.report.blocks import Block, Paragraph, Section, Table
from mechcore.report.groups import of_data, subsets_of
from mechcore.report.run_folder import RunFolder
from mechcore.wording import (
    ALL,
    DASH,
    ROLES,
    count,
    listed,
    percent,
    role_name,
    whole,
)

UNLABELLED = "without labels"

_SHOWN = ("n", "n_available", "n_cut", "subsets")
_MOST_LABELS = 4
_MOST_ROWS = 20

_NO_SUBSETS = (
    "The data have no subsets. Where a column divides them, such as by the kind of example, name "
    "it with --columns subset=NAME, and every figure is given for each subset, too."
)


def data_section(run: RunFolder) -> Section | None:
    """What the run read; None for a run that left no table of its data."""
    table = run.table("data")
    if table is None or len(table) == 0:
        return None
    facts = {role: facts_of(run, role) for role, _ in _data_sets(table)}
    blocks: list[Block] = [Paragraph(text) for text in majority_sentences(run)]
    blocks += _cut_texts(run, facts)
    blocks.append(_overview(table, facts))
    subsets = _subsets(table)
    blocks.append(subsets if subsets.rows else Paragraph(_NO_SUBSETS, note=True))
    return Section("data", "Data", blocks, ["data.csv"])


def shown_elsewhere(run: RunFolder) -> Collection[str]:
    """What ``config.json`` says of data that this section shows, where there is one."""
    table = run.table("data")
    return () if table is None or len(table) == 0 else _SHOWN


def facts_of(run: RunFolder, role: str) -> Mapping[str, Any]:
    """What ``config.json`` says of the data of a role; empty where it says nothing."""
    found = (run.config.get("data") or {}).get(role)
    return found if isinstance(found, dict) else {}


def most_frequent(
    table: pd.DataFrame, role: str, data: str, subset: str = ALL
) -> tuple[str, float] | None:
    """The most frequent label of a subset, or all that are, and its share; None without labels."""
    labels = _labels(table, role, data, subset)
    if len(labels) == 0 or not labels.index[0]:
        return None
    first = [str(each) for each in labels.index[labels == labels.iloc[0]]]
    return " or ".join(first), float(labels.iloc[0] / labels.sum())


def majority_sentences(run: RunFolder) -> Iterator[str]:
    """How often the most frequent label alone is right, for all test data in one sentence."""
    table = run.table("data")
    if table is None:
        return
    parts = []
    for role, data in _data_sets(table):
        found = most_frequent(table, role, data)
        if role != "train" and found is not None:
            label, share = found
            parts.append(f"{percent(share)} of {data} ({role_name(role)}: {label})")
    if parts:
        yield (
            f"Always answering the most frequent label is right for {listed(parts)}. Accuracies "
            "are to be read beside that."
        )


def _data_sets(table: pd.DataFrame) -> list[tuple[str, str]]:
    """(role, data), in the order of the roles."""
    order = list(ROLES)
    pairs = dict.fromkeys(zip(table["role"], table["data"], strict=True))
    return sorted(pairs, key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order))


def _labels(table: pd.DataFrame, role: str, data: str, subset: str = ALL) -> pd.Series:
    """Examples by label, most frequent first; of all subsets together for `ALL`."""
    part = of_data(table, role, data)
    if subset != ALL or (part["subset"] == ALL).any():
        part = part[part["subset"] == subset]
    return part.groupby("label", sort=False)["n"].sum().sort_values(ascending=False, kind="stable")


def _cut_texts(run: RunFolder, facts: Mapping[str, Mapping[str, Any]]) -> Iterator[Paragraph]:
    settings = run.config.get("settings") or {}
    length = (settings.get("model") or {}).get("max_length")
    where = f" at {whole(length)} tokens" if length else ""
    known = {role: each["n_cut"] for role, each in facts.items() if _is_number(each.get("n_cut"))}
    for role, n_cut in known.items():
        if n_cut:
            texts = f"{whole(n_cut)} of {count(facts[role].get('n', float('nan')), 'text')}"
            name = facts[role].get("name", role)
            verb = "was" if n_cut == 1 else "were"
            yield Paragraph(f"{texts} of {name} ({role_name(role)}) {verb} cut{where}.", note=True)
    if len(known) == len(facts) and not any(known.values()):
        yield Paragraph("No text was cut.")


def _overview(table: pd.DataFrame, facts: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    for role, data in _data_sets(table):
        labels = _labels(table, role, data)
        counts: Iterator[Any] = map(facts[role].get, ("n_available", "n_cut"))
        subsets = [name for name in subsets_of(table, role, data) if name != ALL]
        rows.append(
            [
                f"{data} ({role_name(role)})",
                whole(labels.sum()),
                *(whole(n) if _is_number(n) else DASH for n in counts),
                whole(len(subsets)) if subsets else DASH,
                _balance(labels),
            ]
        )
    header = ["data", "examples", "of available", "texts cut", "subsets", "labels"]
    return Table("The data, and the balance of their labels", header, rows, frozenset({0, 5}))


def _subsets(table: pd.DataFrame) -> Table:
    rows = []
    for role, data in _data_sets(table):
        for subset in subsets_of(table, role, data):
            if subset != ALL:
                labels = _labels(table, role, data, subset)
                name = f"{data} ({role_name(role)})"
                rows.append([name, subset, whole(labels.sum()), _balance(labels)])
    header = ["data", "subset", "n", "labels"]
    caption = "Every subset, and the balance of its labels"
    return Table(caption, header, rows, frozenset({0, 1, 3}), folded=len(rows) > _MOST_ROWS)


def _balance(labels: pd.Series) -> str:
    """``yes 30 (60 %), no 20 (40 %)``; of many labels the most frequent, and how many there are."""
    parts = [
        f"{label or UNLABELLED} {whole(n)} ({percent(n / labels.sum())})"
        for label, n in labels.items()
    ]
    if len(parts) <= _MOST_LABELS:
        return ", ".join(parts)
    return f"{', '.join(parts[:_MOST_LABELS])}; {len(parts) - _MOST_LABELS} more in data.csv"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
