"""How far subnetworks and their core depend on the training data that they were pruned on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import reduce
from operator import and_

import numpy as np
import pandas as pd

from mechcore.components import Mask
from mechcore.evaluation.agreement import spearman
from mechcore.subnetworks.core import head_frequency, head_overlap
from mechcore.tables import TARGET, Column, Schema

WHOLE, HALVES = "all data", ("half 1", "half 2")
"""What subnetworks were pruned on."""

HALF_OVERLAP = Schema(
    "half_overlap",
    "How many heads two subnetworks share that were pruned on other data, with another seed, or "
    "both.",
    (
        Column("compared", "text", "what the two have in common and what not"),
        TARGET,
        Column("n_pairs", "whole", "pairs of subnetworks", header="pairs"),
        Column(
            "jaccard",
            "number",
            "mean Jaccard index of their heads",
            header="Jaccard",
            ends=("low", "high"),
        ),
        Column("low", "number", "the lowest"),
        Column("high", "number", "the highest"),
        Column(
            "expected",
            "number",
            "mean Jaccard index if each kept as many random heads of each layer; missing where "
            "both are of one seed, whose masks share their noise",
            header="by chance",
        ),
    ),
)
HALF_CORES = Schema(
    "half_cores",
    "How many heads the cores of halves of the training data share with each other and with the "
    "core of all of it; of target sparsities and seeds that none of them lacks. Masks of one seed "
    "share their noise, so that cores share more than by chance even where no head matters.",
    (
        Column("first", "text", "``all data``, ``half 1`` or ``half 2``"),
        Column("second", "text", "what it is compared with"),
        Column("n_subnetworks", "whole", "subnetworks of each", header="subnetworks"),
        Column("first_size", "whole", "heads in the core of the first"),
        Column("second_size", "whole", "heads in that of the second"),
        Column("shared", "whole", "heads in both cores"),
        Column(
            "jaccard",
            "number",
            "shared / heads of either; missing where neither has one",
            "",
            "Jaccard",
        ),
        Column(
            "rho",
            "number",
            "Spearman's rho of how many subnetworks keep each head; missing where all the same",
            header="rho of head frequencies",
        ),
        Column("first_core", "text", "the core of the first"),
        Column("second_core", "text", "that of the second"),
    ),
)

Pruned = tuple[float, int]


def half_overlap(masks: Mapping[str, Mapping[Pruned, Mask]]) -> pd.DataFrame:
    """The columns of `HALF_OVERLAP`: overlap of heads between halves beside that between seeds.

    Masks are by what they were pruned on, `WHOLE` and `HALVES`, then by target and seed.
    """
    tables = []
    for target_sparsity in sorted({target for of_data in masks.values() for target, _ in of_data}):
        chosen = {
            (data, seed): mask
            for data, of_data in masks.items()
            for (of, seed), mask in of_data.items()
            if of == target_sparsity
        }
        names, seeds = [f"{data} {seed}" for data, seed in chosen], [seed for _, seed in chosen]
        table = head_overlap([*chosen.values()], names, seeds)
        pairs = itertools.combinations(chosen, 2)
        table["compared"] = [_compared(*first, *second) for first, second in pairs]
        grouped = table.groupby("compared", sort=False)
        summary = grouped["jaccard"].agg(n_pairs="count", jaccard="mean", low="min", high="max")
        summary["expected"] = grouped["expected"].mean()
        tables.append(summary.reindex([c for c in _COMPARED if c in summary.index]).reset_index())
        tables[-1].insert(1, "target_sparsity", target_sparsity)
    return pd.concat(tables, ignore_index=True)[HALF_OVERLAP.names]


_COMPARED = (
    "two halves, one seed",
    "two halves, two seeds",
    "one half, two seeds",
    "all data, two seeds",
    "all data and a half, one seed",
    "all data and a half, two seeds",
)


def _compared(first: str, first_seed: int, second: str, second_seed: int) -> str:
    data = "two halves"
    if first == second:
        data = first if first == WHOLE else "one half"
    elif WHOLE in (first, second):
        data = f"{WHOLE} and a half"
    return f"{data}, {'one seed' if first_seed == second_seed else 'two seeds'}"


def half_cores(masks: Mapping[str, Mapping[Pruned, Mask]]) -> pd.DataFrame:
    """`HALF_CORES`: cores of halves of the data and of all; masks as for `half_overlap`."""
    by_data = {data: [*of_data.values()] for data, of_data in masks.items()}
    cores = {data: reduce(and_, of_data) for data, of_data in by_data.items()}
    names = {data: [str(c) for c in core.kept if c.is_head] for data, core in cores.items()}
    table = head_overlap([*cores.values()], [*cores])
    table.loc[table["either"] == 0, "jaccard"] = np.nan
    table["n_subnetworks"] = len(by_data[WHOLE])
    counts = {data: _counts(of_data) for data, of_data in by_data.items()}
    pairs = zip(table["first"], table["second"], strict=True)
    table["rho"] = [spearman(counts[first], counts[second])[0] for first, second in pairs]
    for side in ("first", "second"):
        table[f"{side}_size"] = table[side].map({data: len(core) for data, core in names.items()})
        table[f"{side}_core"] = table[side].map({data: " ".join(c) for data, c in names.items()})
    return table[HALF_CORES.names]


def _counts(masks: list[Mask]) -> np.ndarray:
    table = head_frequency(masks, [0.0] * len(masks))
    return table.loc[table["head"].notna(), ["count"]].to_numpy()


def common_masks(masks: Mapping[str, Mapping[Pruned, Mask]]) -> dict[str, dict[Pruned, Mask]]:
    """Those of the targets and seeds that no data lack, in order."""
    common = sorted(set.intersection(*(set(of_data) for of_data in masks.values())))
    return {data: {key: of_data[key] for key in common} for data, of_data in masks.items()}
