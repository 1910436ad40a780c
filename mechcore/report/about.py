"""All that a run says of one component, put together from every table that names it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from mechcore.ablation.effects.changes import ABLATION
from mechcore.ablation.effects.flips import COUNTS, FLIPS
from mechcore.ablation.effects.roles import COMPONENT_ROLES, NONE, UNDECIDED
from mechcore.ablation.joint.exact import INTERACTIONS
from mechcore.attention.labels import FEWEST_EXAMPLES
from mechcore.components import Component
from mechcore.report.ablation_tables import interaction_table
from mechcore.report.attention_views import pattern_properties
from mechcore.report.blocks import Shown, Table, table_of
from mechcore.report.groups import PLACED, data_sets, of_data, placed
from mechcore.report.run_folder import RunFolder
from mechcore.wording import (
    ALL,
    DASH,
    OUT_FIRST,
    PLACES,
    count,
    listed,
    number,
    percent,
    sparsity,
    split_name,
    whole,
)

NAME = re.compile(r"(?<![\w.])L\d{1,3}\.(?:H\d{1,3}|MLP)(?!\w)")
"""How a component is called in texts and tables."""

_JOINT = {
    INTERACTIONS.name: "Ablated together with others, over all examples",
    "superadditive": "In sets that a search found, over all examples",
}


@dataclass(frozen=True)
class Part:
    """A table of a component; rows are cells, or numbers of rows in `Facts.shared`."""

    title: str
    header: Sequence[str]
    words: Sequence[int]
    rows: Sequence[Any]


@dataclass(frozen=True)
class Flip:
    """One text: where it is from, the answers, and the head's attention on it if drawn."""

    title: str
    texts: Sequence[str]
    answers: str
    attention: dict[str, Any] | None


@dataclass(frozen=True)
class Flips:
    """How many answers flip without a component, and some of them."""

    lead: str
    examples: Sequence[Flip] = ()


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
    tables = map(run.table, (COMPONENT_ROLES.name, "head_frequency", "head_categories", "core"))
    names = {name for table in tables if table is not None for name in table["component"]}
    names |= set() if run.singles is None else set(run.singles["set"])
    names |= {example.component for example in run.attention_examples}
    return [str(c) for c in sorted(Component.parse(n) for n in names if NAME.fullmatch(n))]


def facts(run: RunFolder) -> Facts:
    """What the run says of every component."""
    shared: list[Sequence[str]] = []
    joint = {
        name: _by_member(table, shared) for name in _JOINT if (table := run.table(name)) is not None
    }
    categories = _by_name(run.table("head_categories"), "component")
    frequency = _by_name(run.table("head_frequency"), "component")
    alone = _alone(run.singles)
    roles = _by_name(run.table(COMPONENT_ROLES.name), "component")
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
    rows_of: dict[str, list[int]] = {}
    overall = table[table["subset"] == ALL]
    margin = overall[overall["metric"] == "margin"]
    size = margin["interaction"].abs().groupby(margin["set"]).max()
    order = overall["set"].map(size).sort_values(ascending=False, kind="stable").index
    for i, members in enumerate(overall.loc[order, "set"].str.split("+"), len(shared)):
        for member in members:
            rows_of.setdefault(member, []).append(i)
    shown = interaction_table(overall.loc[order])
    shared += shown.rows
    return shown, rows_of


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
    name: str, frequency: pd.DataFrame | None, seeds: Sequence[tuple[float, str, frozenset[str]]]
) -> Iterator[Part]:
    if frequency is None:
        return
    rows = []
    for _, row in frequency.sort_values("target_sparsity").iterrows():
        target = row["target_sparsity"]
        of_target = [(seed, name in kept) for where, seed, kept in seeds if where == target]
        keep, prune = (
            ", ".join(seed for seed, kept in of_target if kept is wanted) or DASH
            for wanted in (True, False)
        )
        kept_by = f"{whole(row['count'])} of {count(row['n_seeds'], 'seed')}"
        rows.append([sparsity(target), kept_by, percent(row["frequency"]), keep, prune])
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
    return {name: Part(title, table.header, words, own) for name, own in rows.items()}


# -- texts whose answer flips without it ---------------------------------------------------------


def flips_of(run: RunFolder) -> Mapping[str, Flips]:
    """The flips of every component that was ablated for its role, by name."""
    table, roles = run.table(FLIPS.name), run.table(COMPONENT_ROLES.name)
    if table is None or roles is None:
        return {}
    drawn = {
        (example.component, rank): pattern_properties(example)
        for rank, of_rank in enumerate(run.flips_attention, start=1)
        for example in of_rank
    }
    flips = {name: Flips("No answer flips without it.") for name in roles["component"]}
    idle = set(roles.loc[roles["role"].isin([NONE, UNDECIDED]), "component"])
    for name, part in table.groupby("component", sort=False):
        rows = part.to_dict("records")
        examples = [_flip(row, drawn.get((str(name), int(row["rank"])))) for row in rows]
        lead = _flips_lead(part.iloc[0], len(part))
        if Component.parse(str(name)).is_head:
            if name in idle:
                lead += " Its attention is not drawn, as no effect of the head is shown."
            elif not all(flip.attention for flip in examples):
                lead += " Its attention is drawn on short texts only."
        flips[str(name)] = Flips(lead, examples)
    return flips


def _flips_lead(row: pd.Series, n: int) -> str:
    parts = []
    for split in OUT_FIRST:
        counts = {change: row[name] for (change, of), name in COUNTS.items() if of == split}
        kinds = ", ".join(f"{whole(count)} {change}" for change, count in counts.items() if count)
        total = f"{whole(sum(counts.values()))} {PLACES[split]} ({kinds})"
        parts.append(total if kinds else f"none {PLACES[split]}")
    which = "Those out of domain come first, and those with the largest change of margin."
    if row[[*COUNTS.values()]].sum() == n:
        which = "All are here."
    return f"Without it answers flip: {listed(parts)}. {which}"


def _flip(row: Mapping[Any, Any], attention: dict[str, Any] | None) -> Flip:
    where = f"{row['data']} ({split_name(row['split'])}), {row['subset']}"
    full, without = (
        f"{row[f'answer{end}']}, margin {FLIPS[f'margin{end}'].show(row[f'margin{end}'])} nats"
        for end in ("", "_without")
    )
    return Flip(
        f"{whole(row['rank'])}. {row['change'].capitalize()}: {where}",
        [text for text in (row["text_a"], row["text_b"]) if text],
        f"Label: {row['label']}. Answer: {full}. Without it: {without}.",
        attention,
    )
