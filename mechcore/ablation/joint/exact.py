"""Exact interactions, dividends and Shapley values: docs/concepts/interactions.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Float
from typing_extensions import Unpack

from mechcore.ablation import sets as ready
from mechcore.ablation.effects.changes import METRIC, SET, SIZE, Ablations, ends, p_column, place
from mechcore.ablation.sets import ComponentSet
from mechcore.components import Component, ComponentLike, parse_components
from mechcore.errors import InputError
from mechcore.evaluation.intervals import Statistics
from mechcore.evaluation.metrics import directed
from mechcore.evaluation.p_values import ROUNDING, Correction, corrected
from mechcore.tables import CLUSTERS, PLACE, Column, N, Schema, estimate

FLOOR = 0.05
"""Accuracy this close to 0 or 1 counts as saturated."""

P_VALUES = (
    p_column("p", "p of a paired t test of its being 0"),
    p_column("p_adjusted", "p corrected for the number of tests"),
)
_SUPERADDITIVE = "whether the interval is on the worse side of 0, and p_adjusted at most 0.05"
INTERACTIONS = Schema(
    "interactions",
    "Changes of sets beyond the sum of their members' changes, on every subset and metric; shares "
    "for accuracy, nats for the margin.",
    (
        *(SET, SIZE, *PLACE, N, METRIC),
        Column("joint_change", "number", "change without the set", header="joint change"),
        Column(
            "sum_of_single_changes",
            "number",
            "changes without each member alone",
            header="sum of single changes",
        ),
        *CLUSTERS,
        *estimate(
            "interaction", "number", "joint change minus that sum", populations=True, signed=True
        ),
        *P_VALUES,
        Column("superadditive", "flag", _SUPERADDITIVE),
        Column("floor", "flag", "whether accuracy is close to its floor"),
        Column("ceiling", "flag", "whether accuracy is close to its ceiling, if ablating helps"),
    ),
)

DIVIDENDS = Schema(
    "dividends",
    "Moebius dividend of every subset of the components; shares for accuracy, nats for the margin.",
    (
        *(SET, SIZE, *PLACE, N, METRIC),
        Column("change", "number", "change without the set"),
        *CLUSTERS,
        *estimate("dividend", "number", "change beyond those of all subsets", populations=True),
        *P_VALUES,
    ),
)
SHAPLEY = Schema(
    "shapley",
    "Shapley value of every component; shares for accuracy, nats for the margin.",
    (
        *(SET, SIZE, *PLACE, N, METRIC, *CLUSTERS),
        *estimate("shapley", "number", "share of the joint change", populations=True),
    ),
)


def interactions(
    ablations: Ablations,
    *,
    correction: Correction = "benjamini-hochberg",
    **statistics: Unpack[Statistics],
) -> pd.DataFrame:
    """Interactions of all sets whose members were also ablated alone, as in `INTERACTIONS`.

    The correction is of p within a subset and metric, see `mechcore.evaluation.p_values.corrected`;
    ``n_resamples``, ``level`` and ``seed`` are those of `mean_intervals`.

    Raises:
        InputError: unknown correction, or a metric that does not say whether more is better.
    """
    if ablations.measured is not None:
        directed(ablations.measured, "interactions")
    sets = with_members(ablations)
    changes = {
        metric: joint_and_alone(ablations, sets, metric) for metric in ablations.metrics if sets
    }

    def beyond(metric: str, members: np.ndarray) -> tuple[np.ndarray, list[dict[str, Any]]]:
        joint, alone = (np.compress(members, values, axis=1) for values in changes[metric])
        own = float(ablations.full.values(metric)[members].mean())
        bounded = own if metric == "accuracy" else None
        means = zip(joint.mean(1).tolist(), alone.mean(1).tolist(), strict=True)
        return joint - alone, [_effect(*both, bounded) for both in means]

    table = INTERACTIONS.frame(
        estimates(ablations, sets, "interaction", beyond, correction, **statistics)
    )
    shown = directions(table, 1 - statistics.get("level", 0.95))
    return table.assign(superadditive=shown == ablations.worse)


ByExample: TypeAlias = Callable[[str, np.ndarray], tuple[np.ndarray, list[dict[str, Any]]]]
"""From a metric and a selection of examples: values [set, example], and more columns per set."""


def estimates(
    ablations: Ablations,
    sets: Sequence[ComponentSet],
    column: str,
    by_example: ByExample,
    correction: Correction | None,
    **statistics: Unpack[Statistics],
) -> list[dict[str, Any]]:
    """Rows per set, subset and metric: means over examples, their intervals and, corrected, p."""
    rows: list[dict[str, Any]] = []
    for subset, members in ablations.full.groups() if sets else []:
        samples = ablations.full.samples(members)
        for metric in ablations.metrics:
            (values, more), answers = by_example(metric, members), metric == "accuracy"
            intervals = ends("", values, samples, answers, **statistics)
            if correction is not None:
                seed, sample = statistics.get("seed", 0), samples[""]
                tested = corrected(values, correction, answers=answers, clusters=sample, seed=seed)
                for row, p, adjusted in zip(more, *tested, strict=True):
                    row |= {"p": p, "p_adjusted": adjusted}
            for cut, row, interval in zip(sets, more, intervals, strict=True):
                where = place(ablations, str(cut), len(cut), subset, members)
                value = {column: interval.pop("mean")}
                rows.append(where | {"metric": metric} | value | row | interval)
    return rows


def directions(table: pd.DataFrame, alpha: float) -> pd.Series:
    """Signs of interactions: -1 if superadditive, 1 if subadditive, 0 if neither is shown."""
    shown = table["p_adjusted"] <= alpha
    return (shown & (table["low"] > 0)).astype(int) - (shown & (table["high"] < 0)).astype(int)


def with_members(ablations: Ablations) -> list[ComponentSet]:
    """The sets of two or more components whose members were also ablated alone."""
    return [s for s in ablations.sets if len(s) > 1 and {*s.members} <= ablations.without.keys()]


def joint_and_alone(
    ablations: Ablations, sets: Sequence[ComponentSet], metric: str
) -> tuple[Float[np.ndarray, "set example"], Float[np.ndarray, "set example"]]:
    """Changes without each set, and sums of the changes without each member alone."""
    members = {member for cut in sets for member in cut.members}
    single = {member: ablations.changes(member, metric) for member in members}
    joint = np.stack([ablations.changes(s, metric) for s in sets])
    return joint, np.stack([np.sum([single[m] for m in s.members], axis=0) for s in sets])


def _effect(change: float, expected: float, full: float | None) -> dict[str, Any]:
    """The columns from a joint and an expected change; ``full`` is accuracy, None for margins."""
    floor = ceiling = False
    if full is not None:
        left, summed = full + change, full + expected
        floor = left < FLOOR - ROUNDING or summed < -ROUNDING
        ceiling = (change > ROUNDING and left > 1 - FLOOR + ROUNDING) or summed > 1 + ROUNDING
    changes: dict[str, Any] = {"joint_change": change, "sum_of_single_changes": expected}
    return changes | {"floor": floor, "ceiling": ceiling}


# -- dividends and Shapley values -----------------------------------------------------------------


def dividends(
    ablations: Ablations,
    components: Iterable[ComponentLike] | None = None,
    *,
    correction: Correction = "benjamini-hochberg",
    **statistics: Unpack[Statistics],
) -> pd.DataFrame:
    """Moebius dividends of all subsets of at most 10 components; the columns of `DIVIDENDS`.

    Every subset was ablated (`mechcore.ablation.sets.subsets`), by default of all components that
    were ablated alone; options are those of `mechcore.interactions`.

    Raises:
        InputError: a subset was not ablated.
    """
    _, parts = _subsets(ablations, components)

    def by_example(metric: str, members: np.ndarray) -> tuple[np.ndarray, list[dict[str, Any]]]:
        changes = [float(ablations.changes(part, metric)[members].mean()) for part in parts]
        return _dividends(ablations, parts, metric, members), [{"change": c} for c in changes]

    return DIVIDENDS.frame(
        estimates(ablations, parts, "dividend", by_example, correction, **statistics)
    )


def shapley(
    ablations: Ablations,
    components: Iterable[ComponentLike] | None = None,
    **statistics: Unpack[Statistics],
) -> pd.DataFrame:
    """Exact Shapley values, which sum to the joint change; the columns of `SHAPLEY`.

    Components and options are those of `dividends`.

    Raises:
        InputError: a subset was not ablated.
    """
    chosen, parts = _subsets(ablations, components)
    weights = np.array([[(c in part.components) / len(part) for part in parts] for c in chosen])

    def by_example(metric: str, members: np.ndarray) -> tuple[np.ndarray, list[dict[str, Any]]]:
        return weights @ _dividends(ablations, parts, metric, members), [{} for _ in chosen]

    alone = [ComponentSet((component,)) for component in chosen]
    return SHAPLEY.frame(estimates(ablations, alone, "shapley", by_example, None, **statistics))


def _subsets(
    ablations: Ablations, components: Iterable[ComponentLike] | None
) -> tuple[list[Component], list[ComponentSet]]:
    """The components, by default all ablated alone, and their subsets, which all were ablated."""
    alone = [s.components[0] for s in ablations.sets if len(s) == 1]
    chosen = sorted(set(alone if components is None else parse_components(components)))
    parts = ready.subsets(chosen)
    for part in parts:
        if part not in ablations.without:
            of = ", ".join(map(str, chosen))
            raise InputError(f"subsets: {part} was not ablated; ablate all subsets of {of}")
    return chosen, parts


def _dividends(
    ablations: Ablations, parts: Sequence[ComponentSet], metric: str, members: np.ndarray
) -> Float[np.ndarray, "set example"]:
    """Dividends by Moebius inversion, smaller sets first: m(S) = C(S) - sum of m over parts."""
    known: dict[ComponentSet, np.ndarray] = {}
    for whole in parts:
        known[whole] = ablations.changes(whole, metric)[members] - sum(
            (m for part, m in known.items() if set(whole.components).issuperset(part.components)),
            np.zeros(int(members.sum())),
        )
    return np.stack(list(known.values()))
