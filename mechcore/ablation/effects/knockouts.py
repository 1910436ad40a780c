"""How much of what heads do goes through attention to keys: docs/concepts/knockouts.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from typing_extensions import Unpack

from mechcore.ablation.effects.changes import SIZE, Ablations, own_ends, p_column, place
from mechcore.ablation.effects.information import information_table
from mechcore.data.examples import ALL
from mechcore.evaluation.intervals import Statistics, mean_intervals, ratio_intervals
from mechcore.evaluation.p_values import adjusted_p, p_among, paired_p
from mechcore.tables import CLUSTERS, PLACE, Column, Kind, N, Schema
from mechcore.wording import INCONCLUSIVE, NOT_SUPPORTED, SIGNIFICANT, SUPPORTED

CARRIED = 0.5
"""Share of an effect that a category carries it with, at least."""

_FIGURES: dict[str, Kind] = dict.fromkeys(("information", "threshold", "accuracy"), "points")
_FIGURES["margin"] = "number"
_SHARE = "margin_change over margin_change_without, where the latter is shown not to be 0"
KNOCKOUTS = Schema(
    "knockouts",
    "What changes with the keys of a category hidden from the queries of a head, or of several, "
    "beside what changes without the head; negative: worse.",
    (
        Column("component", "text", "the head; or core, other heads, all heads, hidden together"),
        SIZE.called("", meaning="heads whose keys are hidden"),
        *(Column("category", "text", "the keys that are hidden"), *PLACE, N, *CLUSTERS),
        *(
            column
            for figure, kind in _FIGURES.items()
            for column in (
                *own_ends(f"{figure}_change", kind, f"change of {figure}", signed=True),
                Column(f"{figure}_change_without", kind, "the same without the head", signed=True),
            )
        ),
        Column("mass", "share", "attention on the category, of queries that have such a key"),
        *own_ends("share", "share", _SHARE, header="share of its effect"),
        p_column("p", f"of the share being {CARRIED:g}"),
        p_column("p_adjusted", "corrected over heads and categories"),
        Column("n_controls", "whole", "draws of as much attention on other keys"),
        Column("control_share", "share", "mean share where that is hidden instead"),
        Column("control_mass", "share", "part of the mass that could be hidden there"),
        p_column("p_control", "of so large a share among controls"),
        Column("carried", "text", "whether the category carries the effect", header="carries it"),
    ),
)


def knockout_table(
    plain: Ablations,
    hidden: Mapping[str, Ablations],
    masses: Mapping[tuple[str, str], Mapping[str, float]] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    **statistics: Unpack[Statistics],
) -> pd.DataFrame:
    """Changes with hidden keys, and their shares; the columns of `KNOCKOUTS`, without controls.

    A measured metric stands in place of margin, accuracy, information and threshold.

    ``plain`` are the answers without heads or named sets of them, ``hidden`` those with the keys of
    a category hidden from these instead; `mechcore.attention.knockouts.masses` gives ``masses``.
    """
    wanted, tables = [ALL, *(groups or {})], []
    members = {name: rows for name, rows in plain.full.groups(groups) if name in wanted}
    for category, ablations in hidden.items():
        sets = [s for s in plain.sets if s in ablations.without]
        whole = replace(plain, without={s: plain.without[s] for s in sets})
        table = _table(whole, ablations, members, groups, statistics)
        table = table.rename(columns={"set": "component"}).assign(category=category, carried="")
        figures = [
            row for rows in members.values() for row in _figures(whole, ablations, rows, statistics)
        ]
        keys = zip(table["component"], table["category"], strict=True)
        more = pd.DataFrame([(masses or {}).get(key, {}) for key in keys], index=table.index)
        tables.append(pd.concat([table, pd.DataFrame(figures), more], axis=1))
    joined = pd.concat(tables or [KNOCKOUTS.frame([])], ignore_index=True)
    if plain.measured is None:
        names = [name for name in KNOCKOUTS.names if name in {*joined, *KNOCKOUTS.required}]
        joined = joined.reindex(columns=names)
    for _, part in joined.groupby("subset"):
        p = adjusted_p(part["p"].to_numpy(float), "benjamini-hochberg")
        joined.loc[part.index, "p_adjusted"] = p
    return joined


def _table(
    plain: Ablations,
    hidden: Ablations,
    members: Mapping[str, np.ndarray],
    groups: Mapping[str, Sequence[str]] | None,
    statistics: Statistics,
) -> pd.DataFrame:
    """A row of every set on every subset, with what classes alone have."""
    if plain.measured is not None:
        return pd.DataFrame(
            [
                place(hidden, str(one), len(one), subset, rows)
                for subset, rows in members.items()
                for one in plain.without
            ]
        )
    ends: Statistics = {**statistics, "n_resamples": 2}  # those of whole ablations are known
    without = information_table(plain, groups, subsets=members, **ends)
    table = information_table(hidden, groups, subsets=members, **statistics)
    for name in ("information_change", "threshold_change"):
        table[f"{name}_without"] = without[name]
    return table


def _figures(
    plain: Ablations, ablations: Ablations, members: np.ndarray, statistics: Statistics
) -> list[dict[str, float]]:
    """Changes of what was measured, for every set of ``plain``, and shares of the last."""
    sample = plain.full.samples(members)[""]
    rows: list[dict[str, float]] = [{} for _ in plain.without]
    for metric in plain.metrics:
        values, without = (
            np.stack([of.changes(one, metric)[members] for one in plain.without])
            for of in (ablations, plain)
        )
        options: dict[str, Any] = {"answers": metric == "accuracy", "clusters": sample}
        intervals = mean_intervals(values, **options, **statistics)
        for row, interval, change in zip(rows, intervals, without.mean(1), strict=True):
            row |= interval.columns(f"{metric}_change") | {f"{metric}_change_without": change}
    own = adjusted_p(paired_p(without, clusters=sample), "benjamini-hochberg")
    p = paired_p(values - CARRIED * without, clusters=sample)
    shares = ratio_intervals(values, without, clusters=sample, level=statistics.get("level", 0.95))
    for row, share, p_own, p_half in zip(rows, shares, own, p, strict=True):
        shown = p_own < SIGNIFICANT
        row |= share.columns("share") | {"p": float(p_half)} if shown else {"p": np.nan}
    return rows


def to_control(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of single heads, over all examples, whose share is shown to be large."""
    large = (table["p_adjusted"] < SIGNIFICANT) & (table["share"] > CARRIED)
    return table[large & (table["subset"] == ALL) & (table["size"] == 1)]


def with_controls(
    table: pd.DataFrame, controls: Mapping[int, tuple[float, Sequence[float]]]
) -> pd.DataFrame:
    """The table with what is carried, from shares of rows of `to_control` and of their draws."""
    table = table.copy()
    for row, (share, shares) in controls.items():
        table.loc[row, ["n_controls", "control_share"]] = len(shares), np.mean(shares)
        table.loc[row, "p_control"] = p_among(share, shares)
    rules = [
        table["p"].isna() | (table["subset"] != ALL),
        table["p_adjusted"] >= SIGNIFICANT,
        (table["share"] > CARRIED) & ~(table["p_control"] > SIGNIFICANT),
    ]
    table["carried"] = np.select(rules, ["", INCONCLUSIVE, SUPPORTED], NOT_SUPPORTED)
    return table
