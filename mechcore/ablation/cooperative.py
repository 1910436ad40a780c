"""Higher orders of interaction: Moebius dividends and Shapley values of components.

The drop D(S) of ablating a set is the value of a cooperative game among components (arXiv
2403.03942, section 5, gives D; the rest is Harsanyi's and Shapley's). The dividend m(S) is what S
does beyond all its parts: D(S) is the sum of the dividends of all subsets of S, and the dividend of
a pair is its interaction. The Shapley value shares every dividend equally among its members.
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
from mechcore.ablation.sweeping import ablate
from mechcore.components import Component, ComponentLike, parse_components
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import METRICS, Metric
from mechcore.evaluation.p_values import Correction, corrected
from mechcore.masking.means import MeanActivations
from mechcore.tables import CLUSTERS, PLACE, Column, N, Schema, estimate
from mechcore.wording import count

DIVIDENDS = Schema(
    "dividends",
    "Moebius dividend of every subset of the components; shares for accuracy, nats for the margin.",
    (
        SET,
        SIZE,
        *PLACE,
        N,
        METRIC,
        Column("drop", "number", "drop without the set"),
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
        *estimate("shapley", "number", "the component's share of the joint drop", populations=True),
        Column("standard_error", "number", "of the sampling of permutations; 0 if exact"),
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
        One row per set of components, subset of the data and metric: set, size, data, role,
        subset, n, metric, drop, dividend with its interval (shares or nats), p and p_adjusted.

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
                    "drop": float(ablations.drops(each, metric)[members].mean()),
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
    """Exact Shapley values from all subsets of up to 10 components; they add up to the joint drop.

    Args:
        ablations: answers without every subset, see `mechcore.ablation.sets.subsets`.
        components: by default all that are ablated alone.
        n_resamples: paired bootstrap resamples over examples.
        level: of the intervals.
        seed: of the resamples.

    Returns:
        One row per component, subset of the data and metric: set (the component), data, role,
        subset, n, metric, shapley with its interval over examples (shares or nats), and
        standard_error of the sampling of permutations, 0.

    Raises:
        InputError: a subset was not ablated.
    """
    found = _components(ablations, components)
    sets = _subsets(found)

    def values(metric: Metric, members: np.ndarray) -> np.ndarray:
        parts = _dividends(ablations, sets, metric, members)
        weights = [[(c in each.components) / len(each) for each in sets] for c in found]
        return np.array(weights) @ parts

    zeros = np.zeros(len(found))
    return _shapley_table(
        ablations, found, lambda m, w: (values(m, w), zeros), n_resamples, level, seed
    )


def sampled_shapley(
    model: Any,
    components: Iterable[ComponentLike],
    data: EncodedExamples,
    means: MeanActivations | None = None,
    *,
    n_permutations: int = 32,
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    **options: Any,
) -> pd.DataFrame:
    """Shapley values of any number of components, from random permutations.

    Components are ablated one after another, in random orders and each order's reverse; a
    component's value is the mean of what it adds.

    Args:
        model: any TransformerLens model.
        components: the components.
        data: labelled examples.
        means: the model's mean activations; not needed for ``fill="zero"``.
        n_permutations: orders, an even number: half of them are reverses.
        n_resamples: bootstrap resamples.
        level: of the intervals.
        seed: of the orders and resamples.
        options: see `mechcore.ablate`.

    Returns:
        As `shapley`; standard_error is that of the mean over pairs of permutations.

    Raises:
        InputError: fewer than two components, or ``n_permutations`` is odd or under 4.
    """
    found = sorted(set(parse_components(components)))
    if len(found) < 2:
        raise InputError(f"Shapley values: {count(len(found), 'component')}; expected at least two")
    if n_permutations < 4 or n_permutations % 2:
        raise InputError(
            f"Shapley values: n_permutations is {n_permutations}; expected an even number from 4: "
            "half of the orders are reverses"
        )
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(found)) for _ in range(n_permutations // 2)]
    orders = [order for one in orders for order in (one, one[::-1])]
    chains = [
        [ComponentSet.of([found[i] for i in order[:n]]) for n in range(1, len(found) + 1)]
        for order in orders
    ]
    sets = list(dict.fromkeys(each for chain in chains for each in chain))
    ablations = ablate(model, sets, data, means, seed=seed, **options)

    def values(metric: Metric, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total = np.zeros((len(found), int(members.sum())))
        by_pair = np.zeros((len(orders) // 2, len(found)))
        for n, (order, chain) in enumerate(zip(orders, chains, strict=True)):
            before = np.zeros(int(members.sum()))
            for place_, each in zip(order, chain, strict=True):
                after = ablations.drops(each, metric)[members]
                total[place_] += (after - before) / len(orders)
                by_pair[n // 2, place_] += (after - before).mean() / 2
                before = after
        return total, by_pair.std(0, ddof=1) / np.sqrt(len(by_pair))

    return _shapley_table(ablations, found, values, n_resamples, level, seed)


def _shapley_table(
    ablations: Ablations,
    components: Sequence[Component],
    values: Any,
    n_resamples: int,
    level: float,
    seed: int,
) -> pd.DataFrame:
    statistics: dict[str, Any] = {"n_resamples": n_resamples, "level": level, "seed": seed}
    rows: list[dict[str, Any]] = []
    for subset, members in ablations.groups():
        for metric in METRICS:
            by_example, errors = values(metric, members)
            samples = ablations.full.samples(members)
            intervals = ends("", by_example, samples, metric == "accuracy", **statistics)
            for component, interval, error in zip(components, intervals, errors, strict=True):
                row = place(ablations, str(component), 1, subset, members)
                row |= {
                    "metric": metric,
                    "shapley": interval.pop("mean"),
                    **interval,
                    "standard_error": float(error),
                }
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
            f"subsets: {len(components)} components; expected 1 to {MOST_EXACT}: for more, use "
            "sampled_shapley"
        )
    return [
        ComponentSet(each)
        for size in range(1, len(components) + 1)
        for each in itertools.combinations(components, size)
    ]


def _dividends(
    ablations: Ablations, sets: Sequence[ComponentSet], metric: Metric, members: np.ndarray
) -> Float[np.ndarray, "set example"]:
    """Dividends by Moebius inversion, smaller sets first: m(S) = D(S) - sum of m over parts."""
    known: dict[ComponentSet, np.ndarray] = {}
    for each in sets:
        if each not in ablations.without:
            raise InputError(
                f"subsets: {each} was not ablated; sweep over all subsets of "
                f"{', '.join(str(s) for s in sets if len(s) == 1)}"
            )
        parts = set(each.components)
        known[each] = ablations.drops(each, metric)[members] - sum(
            (value for part, value in known.items() if parts.issuperset(part.components)),
            np.zeros(int(members.sum())),
        )
    return np.stack(list(known.values()))
