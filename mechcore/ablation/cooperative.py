"""Higher orders of interaction: Moebius dividends and Shapley values of components.

The change C(S) without a set is the value of a cooperative game among components (arXiv 2403.03942,
section 5, gives -C; the rest is Harsanyi's and Shapley's). The dividend m(S) is what S does beyond
all its parts: C(S) is the sum of the dividends of all subsets of S, and the dividend of a pair is
its interaction. The Shapley value shares every dividend equally among its members.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechcore.ablation.effects import (
    METRIC,
    SET,
    SIZE,
    Ablations,
    ComponentSet,
    SetLike,
    ends,
    place,
)
from mechcore.ablation.superadditivity import P_VALUES
from mechcore.components import Component, ComponentLike, parse_components
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import METRICS, Metric
from mechcore.evaluation.p_values import Correction, corrected
from mechcore.tables import CLUSTERS, PLACE, Column, N, Schema, estimate

DIVIDENDS = Schema(
    "dividends",
    "Moebius dividend of every subset of the components; shares for accuracy, nats for the margin.",
    (
        SET,
        SIZE,
        *PLACE,
        N,
        METRIC,
        Column("change", "number", "change without the set"),
        *CLUSTERS,
        *estimate("dividend", "number", "what the set does beyond all its parts", populations=True),
        *P_VALUES,
    ),
)
SHAPLEY = Schema(
    "shapley",
    "Shapley value of every component; shares for accuracy, nats for the margin.",
    (
        SET,
        SIZE,
        *PLACE,
        N,
        METRIC,
        *CLUSTERS,
        *estimate(
            "shapley", "number", "the component's share of the joint change", populations=True
        ),
    ),
)

MOST_EXACT = 10
"""Components up to which all subsets are ablated."""


def dividends(
    ablations: Ablations,
    components: Iterable[ComponentLike] | None = None,
    *,
    sets: Iterable[SetLike] | None = None,
    correction: Correction = "benjamini-hochberg",
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Moebius dividends of all subsets of ``components``, or of ``sets``.

    Args:
        ablations: answers without every subset, see `mechcore.ablation.sets.subsets`.
        components: by default all that are ablated alone.
        sets: in place of all subsets of these; each must have been ablated with all its subsets.
        correction: of the p-values, see `mechcore.interactions`.
        n_resamples: paired bootstrap resamples over examples.
        level: of the intervals.
        seed: of the resamples.

    Returns:
        One row per set of components, subset of the data and metric: set, size, data, split,
        subset, n, metric, change, dividend with its interval (shares or nats), p and p_adjusted.

    Raises:
        InputError: a subset was not ablated, or a set is given twice, or none.
    """
    if sets is None:
        listed = closed = _subsets(_components(ablations, components))
    else:
        listed = [ComponentSet.of(each) for each in sets]
        if not listed or len({*listed}) < len(listed):
            raise InputError(
                f"dividends: found the sets {', '.join(map(str, listed)) or 'none'}; expected at "
                "least one, and each once"
            )
        parts = {part for each in listed for part in _subsets(each.components)}
        closed = sorted(parts, key=len)
    rows_of = [closed.index(each) for each in listed]
    statistics: dict[str, Any] = {"n_resamples": n_resamples, "level": level, "seed": seed}
    rows: list[dict[str, Any]] = []
    for subset, members in ablations.groups():
        for metric in METRICS:
            values = _dividends(ablations, closed, metric, members)[rows_of]
            samples, answers = ablations.full.samples(members), metric == "accuracy"
            intervals = ends("", values, samples, answers, **statistics)
            p, adjusted = corrected(
                values, correction, answers=answers, clusters=samples[""], seed=seed
            )
            for i, each in enumerate(listed):
                row = place(ablations, str(each), len(each), subset, members)
                row |= {
                    "metric": metric,
                    "change": float(ablations.changes(each, metric)[members].mean()),
                    "dividend": intervals[i].pop("mean"),
                    **intervals[i],
                    "p": p[i],
                    "p_adjusted": adjusted[i],
                }
                rows.append(row)
    return pd.DataFrame(rows)


def shapley(
    ablations: Ablations,
    components: Iterable[ComponentLike] | None = None,
    *,
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Exact Shapley values from all subsets of up to 10 components; their sum is the joint change.

    Args:
        ablations: answers without every subset, see `mechcore.ablation.sets.subsets`.
        components: by default all that are ablated alone.
        n_resamples: paired bootstrap resamples over examples.
        level: of the intervals.
        seed: of the resamples.

    Returns:
        One row per component, subset of the data and metric: set (the component), data, split,
        subset, n, metric and shapley with its interval over examples (shares or nats).

    Raises:
        InputError: a subset was not ablated.
    """
    chosen = _components(ablations, components)
    sets = _subsets(chosen)
    weights = np.array([[(c in each.components) / len(each) for each in sets] for c in chosen])
    statistics: dict[str, Any] = {"n_resamples": n_resamples, "level": level, "seed": seed}
    rows: list[dict[str, Any]] = []
    for subset, members in ablations.groups():
        samples = ablations.full.samples(members)
        for metric in METRICS:
            by_example = weights @ _dividends(ablations, sets, metric, members)
            intervals = ends("", by_example, samples, metric == "accuracy", **statistics)
            for component, interval in zip(chosen, intervals, strict=True):
                row = place(ablations, str(component), 1, subset, members)
                row |= {"metric": metric, "shapley": interval.pop("mean"), **interval}
                rows.append(row)
    return pd.DataFrame(rows)


def _components(
    ablations: Ablations, components: Iterable[ComponentLike] | None
) -> list[Component]:
    if components is None:
        return sorted(s.components[0] for s in ablations.sets if len(s) == 1)
    return sorted(set(parse_components(components)))


def _subsets(components: Sequence[Component]) -> list[ComponentSet]:
    """All subsets but the empty one, smaller ones first."""
    if not 1 <= len(components) <= MOST_EXACT:
        raise InputError(
            f"subsets: {len(components)} components; expected 1 to {MOST_EXACT}: take fewer"
        )
    return [
        ComponentSet(each)
        for size in range(1, len(components) + 1)
        for each in itertools.combinations(components, size)
    ]


def _dividends(
    ablations: Ablations, sets: Sequence[ComponentSet], metric: Metric, members: np.ndarray
) -> Float[np.ndarray, "set example"]:
    """Dividends by Moebius inversion, smaller sets first: m(S) = C(S) - sum of m over parts."""
    known: dict[ComponentSet, np.ndarray] = {}
    for each in sets:
        if each not in ablations.without:
            raise InputError(
                f"subsets: {each} was not ablated; sweep over all subsets of "
                f"{', '.join(str(s) for s in sets if len(s) == 1)}"
            )
        parts = set(each.components)
        known[each] = ablations.changes(each, metric)[members] - sum(
            (value for part, value in known.items() if parts.issuperset(part.components)),
            np.zeros(int(members.sum())),
        )
    return np.stack(list(known.values()))
