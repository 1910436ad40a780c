"""All that a run says of one component, put together from every table that names it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from mechcore.ablation.effects.changes import ABLATION
from mechcore.attention.labels import FEWEST_EXAMPLES
from mechcore.components import Component
from mechcore.report.ablation_tables import interaction_table
from mechcore.report.attention_views import pattern_properties
from mechcore.report.blocks import Shown, Table, table_of
from mechcore.report.flips import Flips, flips_of
from mechcore.report.groups import PLACED, data_sets, of_data, placed
from mechcore.report.run_folder import RunFolder
from mechcore.wording import ALL, DASH, count, number, percent, sparsity, whole

NAME = re.compile(r"(?<![\w.])L\d{1,3}\.(?:H\d{1,3}|MLP)(?!\w)")
"""How a component is called in texts and tables."""

_JOINT = {
    "interactions": "Ablated together with others, over all examples",
    "superadditive": "In sets that a search found, over all examples",
}


@dataclass(frozen=True)
class Part:
    """One table of the facts of a component, with the columns that hold ``words``.

    Rows are cells as text, or numbers of rows of `Facts.shared`.
    """

    title: str
    header: Sequence[str]
    words: Sequence[int]
    rows: Sequence[Any]


@dataclass(frozen=True)
class About:
    """One component: what it is in words and tables, its attention if drawn, and flips."""

    lead: str
    parts: Sequence[Part] = ()
    attention: dict[str, Any] | None = None
    flips: Flips | None = None


@dataclass(frozen=True)
class Facts:
    """Components by name, in order, and the rows that several of them share."""

    about: dict[str, About] = field(default_factory=dict)
    shared: Sequence[Sequence[str]] = ()


def components_of(run: RunFolder) -> list[str]:
    """Every component that a table names as one, by layer, MLPs after heads."""
    named = ("roles", "head_frequency", "head_categories", "core")
    found = {name for each in named for name in _column(run.table(each), "component")}
    found |= set(_column(run.singles, "set")) | {e.component for e in run.attention_examples}
    return [str(each) for each in sorted(Component.parse(n) for n in found if NAME.fullmatch(n))]


def facts(run: RunFolder) -> Facts:
    """What the run says of every component."""
    shared: list[Sequence[str]] = []
    joint = {
        name: _by_member(table, shared) for name in _JOINT if (table := run.table(name)) is not None
    }
    categories = _by_name(run.table("head_categories"), "component")
    frequency = _by_name(run.table("head_frequency"), "component")
    alone = _alone(run.singles)
    roles = _by_name(run.table("roles"), "component")
    drawn = {example.component: example for example in run.attention_examples}
    flips, seeds = flips_of(run), _keepers(run.table("subnetworks"))
    about = {}
    for name in components_of(run):
        parts = list(_kept(name, frequency.get(name), seeds))
        if name in categories:
            parts.append(_masses(categories[name].iloc[0]))
        if name in alone:
            parts.append(alone[name])
        for kind, (shown, rows_of) in joint.items():
            if rows := rows_of.get(name):
                parts.append(Part(_JOINT[kind], shown.header, sorted(shown.text_columns), rows))
        about[name] = About(
            _lead(run, name, categories.get(name), roles.get(name)),
            parts,
            pattern_properties(drawn[name]) if name in drawn else None,
            flips.get(name),
        )
    return Facts(about, shared)


def _by_member(
    table: pd.DataFrame, shared: list[Sequence[str]]
) -> tuple[Table, dict[str, list[int]]]:
    """Interactions, and which of them a component is in; appends the rows to ``shared``.

    Rows are over all examples, sets with the largest interaction first: a long list begins with
    what matters.
    """
    found: dict[str, list[int]] = {}
    overall = table[table["subset"] == ALL]
    margin = overall[overall["metric"] == "margin"]
    size = margin["interaction"].abs().groupby(margin["set"]).max()
    order = overall["set"].map(size).sort_values(ascending=False, kind="stable").index
    for i, members in enumerate(overall.loc[order, "set"].str.split("+"), len(shared)):
        for member in members:
            found.setdefault(member, []).append(i)
    shown = interaction_table(overall.loc[order])
    shared += shown.rows
    return shown, found


def _column(table: pd.DataFrame | None, name: str) -> Iterable[str]:
    return [] if table is None else table[name]


def _by_name(table: pd.DataFrame | None, column: str) -> dict[str, pd.DataFrame]:
    return {} if table is None else {str(name): part for name, part in table.groupby(column)}


def _lead(
    run: RunFolder, name: str, categories: pd.DataFrame | None, roles: pd.DataFrame | None
) -> str:
    sentences = [] if roles is None else [str(roles.iloc[0]["explanation"])]
    if name in run.core:
        sentences.append("In the heuristic core: every subnetwork keeps it.")
    elif run.table("core") is not None and name.partition(".")[2] != "MLP":
        sentences.append("Not in the heuristic core.")
    if categories is not None:
        row = categories.iloc[0]
        sentences.append(f"Its category is {row['category']}.")
        if row.get("also"):
            sentences.append(f"It also attends to {row['also']}.")
    return " ".join(sentences)


# -- which subnetworks keep it ------------------------------------------------------------------


def _keepers(subnetworks: pd.DataFrame | None) -> list[tuple[float, str, frozenset[str]]]:
    """(target sparsity, seed, components kept) of every subnetwork."""
    if subnetworks is None:
        return []
    return [
        (row["target_sparsity"], number(row["seed"], 0), frozenset(row["kept"].split()))
        for _, row in subnetworks.iterrows()
    ]


def _kept(
    name: str,
    frequency: pd.DataFrame | None,
    seeds: Sequence[tuple[float, str, frozenset[str]]],
) -> Iterator[Part]:
    if frequency is None or len(frequency) == 0:
        return
    rows = []
    for _, row in frequency.sort_values("target_sparsity").iterrows():
        target = row["target_sparsity"]
        keeping = [(seed, name in kept) for where, seed, kept in seeds if where == target]
        rows.append(
            [
                sparsity(target),
                f"{whole(row['count'])} of {count(row['n_seeds'], 'seed')}",
                percent(row["frequency"]),
                ", ".join(seed for seed, kept in keeping if kept) or DASH,
                ", ".join(seed for seed, kept in keeping if not kept) or DASH,
            ]
        )
    header = ["target sparsity", "kept by", "share", "seeds that keep it", "seeds that prune it"]
    yield Part("Kept in subnetworks", header, [0, 1, 3, 4], rows)


# -- what it attends to, and what it costs to ablate -------------------------------------------


def _masses(row: pd.Series) -> Part:
    names = [str(c).removeprefix("mass_") for c in row.index if str(c).startswith("mass_")]
    rows = [
        [
            name,
            number(100 * row[f"mass_{name}"], 1),
            _ends(row, name),
            number(row.get(f"ratio_{name}", float("nan")), 1),
        ]
        for name in names
    ]
    rows.append(["entropy (nats)", number(row["entropy"]), "", ""])
    header = ["attention to", "mass (%)", "interval", "times uniform"]
    return Part(f"Attention, over {count(row['n_examples'], 'example')}", header, [0], rows)


def _ends(row: pd.Series, name: str) -> str:
    low, high = row.get(f"low_{name}"), row.get(f"high_{name}")
    if low is None or high is None or pd.isna(low) or pd.isna(high):
        n = row.get(f"examples_{name}", float("nan"))
        return f"none: {count(n, 'example')}" if n < FEWEST_EXAMPLES else ""
    return f"[{number(100 * low, 1)}, {number(100 * high, 1)}]"


def _alone(singles: pd.DataFrame | None) -> dict[str, Part]:
    """What every set costs: all examples first, in each data set."""
    if singles is None or len(singles) == 0:
        return {}
    parts = [of_data(singles, role, data) for role, data in data_sets(singles)]
    ordered = pd.concat(
        [p.loc[(p["subset"] != ALL).sort_values(kind="stable").index] for p in parts]
    )
    shown: list[Shown] = [PLACED, "subset", "accuracy_change", "margin_change"]
    table = table_of(placed(ordered), ABLATION, "", shown)
    rows: dict[str, list[Sequence[str]]] = {}
    for name, row in zip(ordered["set"], table.rows, strict=True):
        rows.setdefault(name, []).append(row)
    title, words = "Ablated alone, with intervals", sorted(table.text_columns)
    return {name: Part(title, table.header, words, each) for name, each in rows.items()}
