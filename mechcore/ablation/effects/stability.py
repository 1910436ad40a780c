"""Whether other examples of the same kind would rank components, or sets of them, the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechcore.ablation.effects.changes import METRIC, Ablations, own_ends
from mechcore.ablation.joint.exact import joint_and_alone, with_members
from mechcore.ablation.sets import ComponentSet
from mechcore.evaluation.agreement import (
    halved,
    jaccard,
    jaccard_by_chance,
    largest,
    resampled,
    spearman,
    spearman_brown,
)
from mechcore.tables import DATA, SPLIT, Column, N, Schema

TOP = 10
"""Number of the largest items to compare, of 20 or more; of fewer items, half."""
FEWEST = 3
"""Minimum number of items in a ranking."""

_PREDICTED = "rho between two data sets of this size, by Spearman-Brown; missing if negative"


def _mean(name: str, meaning: str) -> tuple[Column, ...]:
    draws, _, figure = name.partition("_")
    header = {"rho": "rho", "jaccard": "Jaccard of the top"}[figure]
    over = {"halves": "over splits", "resamples": "over resamples"}[draws]
    return own_ends(name, "number", meaning, over=over, header=header)


STABILITY = Schema(
    "stability",
    "Reliability of the ranking of single components by their changes, and of sets of equal size "
    "by their interactions: agreement between random halves of the examples, and with bootstrap "
    "resamples of all of them.",
    (
        Column(
            "ranked_by",
            "text",
            "analysis that ranks them: ``sweep``, ``ablation`` or ``search``, on its unseen half",
            optional=True,
        ),
        Column("size", "whole", "components in each of the sets ranked; 1 for single components"),
        *(DATA, SPLIT, N, METRIC.called("metric", names={})),
        Column("n_ranked", "whole", "components or sets ranked", header="ranked"),
        *_mean("halves_rho", "mean Spearman's rho between two halves; 0 if one has only ties"),
        Column("predicted_rho", "number", _PREDICTED, header="predicted rho"),
        Column("top", "whole", "how many of the lowest changes or interactions are compared"),
        *_mean("halves_jaccard", "mean Jaccard index of the ``top`` largest of two halves"),
        Column("jaccard_by_chance", "number", "that of two random choices", header="by chance"),
        *_mean("resamples_rho", "the same of resamples with all examples; of noise about 0.7"),
        *_mean("resamples_jaccard", "the same of resamples and all examples"),
        Column("largest", "text", "these, with the share of halves that have it in their top"),
    ),
)


def change_stability(
    ablations: Ablations, *, n_resamples: int = 1000, seed: int = 0
) -> pd.DataFrame:
    """Stability of the ranking of single components by their changes; the columns of `STABILITY`.

    ``n_resamples`` is also the number of splits into halves. Empty for fewer than `FEWEST`
    components, and for examples from too few clusters.
    """
    singles = [cut for cut in ablations.sets if len(cut) == 1]
    values = {
        metric: np.stack([ablations.changes(single, metric) for single in singles])
        for metric in ablations.metrics
        if singles
    }
    rows = _rows(ablations, singles, values, n_resamples, seed)
    return pd.DataFrame(rows, columns=STABILITY.required)


def interaction_stability(
    ablations: Ablations, *, n_resamples: int = 1000, seed: int = 0
) -> pd.DataFrame:
    """Stability of the ranking of sets by their interactions, by size, see `change_stability`."""
    rows: list[dict[str, Any]] = []
    for _, same_size in groupby(sorted(with_members(ablations), key=len), key=len):
        sets = list(same_size)
        values = {
            metric: np.subtract(*joint_and_alone(ablations, sets, metric))
            for metric in ablations.metrics
        }
        rows += _rows(ablations, sets, values, n_resamples, seed)
    return pd.DataFrame(rows, columns=STABILITY.required)


def _rows(
    ablations: Ablations,
    sets: Sequence[ComponentSet],
    values: Mapping[str, Float[np.ndarray, "set example"]],
    n_resamples: int,
    seed: int,
) -> list[dict[str, Any]]:
    """A row per metric of sets of equal size, ranked by values on every example, worst first."""
    sample = ablations.full.samples()[""]
    if len(sets) < FEWEST or sample.reason:
        return []
    place = {"size": len(sets[0]), "data": ablations.data, "split": ablations.split}
    place |= {"n": len(ablations.full.subsets), "n_ranked": len(sets)}
    names, rows = list(map(str, sets)), list[dict[str, Any]]()
    for metric, by_example in values.items():
        losses = ablations.worse * sample.totals(by_example)[0]
        agreement = _agreement(losses, names, n_resamples, seed)
        rows.append({**place, "metric": metric, **agreement})
    return rows


def _agreement(
    values: Float[np.ndarray, "set example"], names: Sequence[str], n_resamples: int, seed: int
) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    whole = values.sum(1, keepdims=True)
    halves = halved(values, n_resamples, generator)
    drawn = resampled(values, n_resamples, generator)
    top = min(TOP, len(names) // 2)
    of_whole = largest(whole, top, generator)
    of_halves = [largest(half, top, generator) for half in halves]
    of_drawn = largest(drawn, top, generator)
    again = np.mean(of_halves, axis=(0, 2))
    order = [i for i in np.argsort(-whole[:, 0], kind="stable") if of_whole[i, 0]]
    figures: dict[str, Any] = {
        "top": top,
        "jaccard_by_chance": jaccard_by_chance(len(names), top),
        "largest": ", ".join(f"{names[i]} ({again[i]:.2f})" for i in order),
    }
    rhos = {"halves": spearman(*halves), "resamples": spearman(drawn, whole)}
    both = {"halves": of_halves[0] & of_halves[1], "resamples": of_drawn & of_whole}
    for name in rhos:
        figures |= _spread(f"{name}_rho", np.nan_to_num(rhos[name]))
        figures |= _spread(f"{name}_jaccard", jaccard(both[name].sum(0), top, top))
    return figures | {"predicted_rho": spearman_brown(figures["halves_rho"])}


def _spread(name: str, values: Float[np.ndarray, " draw"]) -> dict[str, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return {name: float(values.mean()), f"{name}_low": float(low), f"{name}_high": float(high)}
