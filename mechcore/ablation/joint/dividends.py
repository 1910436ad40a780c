"""Higher orders of interaction: Moebius dividends and Shapley values of components.

The change C(S) without a set is the value of a cooperative game among components (arXiv 2403.03942,
section 5, gives -C; the rest is Harsanyi's and Shapley's). The dividend m(S) is what S does beyond
all its parts: C(S) is the sum of the dividends of all subsets of S, and the dividend of a pair is
its interaction. The Shapley value shares every dividend equally among its members.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechcore.ablation import sets
from mechcore.ablation.cuts import ComponentSet
from mechcore.ablation.effects.changes import METRIC, SET, SIZE, Ablations
from mechcore.ablation.joint.exact import P_VALUES, estimates
from mechcore.components import Component, ComponentLike, parse_components
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import Metric
from mechcore.evaluation.intervals import Statistics
from mechcore.evaluation.p_values import Correction
from mechcore.tables import CLUSTERS, PLACE, Column, N, Schema, estimate

if TYPE_CHECKING:
    from typing_extensions import Unpack

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


def dividends(
    ablations: Ablations,
    components: Iterable[ComponentLike] | None = None,
    *,
    correction: Correction = "benjamini-hochberg",
    **statistics: Unpack[Statistics],
) -> pd.DataFrame:
    """Moebius dividends of all subsets of ``components``.

    Args:
        ablations: answers without every subset, see `mechcore.ablation.sets.subsets`.
        components: at most 10; by default all that are ablated alone.
        correction: of the p-values, see `mechcore.interactions`.
        statistics: see `mechcore.interactions`.

    Returns:
        The columns of `DIVIDENDS`, one row per set of components, subset of the data and metric.

    Raises:
        InputError: a subset was not ablated.
    """
    parts = sets.subsets(_components(ablations, components))

    def by_example(metric: Metric, members: np.ndarray) -> tuple[np.ndarray, list[dict[str, Any]]]:
        changes = [float(ablations.changes(part, metric)[members].mean()) for part in parts]
        return _dividends(ablations, parts, metric, members), [{"change": c} for c in changes]

    _check(ablations, parts)
    return DIVIDENDS.frame(
        estimates(ablations, parts, "dividend", by_example, correction, **statistics)
    )


def shapley(
    ablations: Ablations,
    components: Iterable[ComponentLike] | None = None,
    **statistics: Unpack[Statistics],
) -> pd.DataFrame:
    """Exact Shapley values from all subsets of up to 10 components; their sum is the joint change.

    Args:
        ablations: answers without every subset, see `mechcore.ablation.sets.subsets`.
        components: by default all that are ablated alone.
        statistics: see `mechcore.interactions`.

    Returns:
        The columns of `SHAPLEY`, one row per component, subset of the data and metric.

    Raises:
        InputError: a subset was not ablated.
    """
    chosen = _components(ablations, components)
    parts = sets.subsets(chosen)
    weights = np.array([[(c in part.components) / len(part) for part in parts] for c in chosen])

    def by_example(metric: Metric, members: np.ndarray) -> tuple[np.ndarray, list[dict[str, Any]]]:
        return weights @ _dividends(ablations, parts, metric, members), [{} for _ in chosen]

    _check(ablations, parts)
    alone = [ComponentSet((component,)) for component in chosen]
    return SHAPLEY.frame(estimates(ablations, alone, "shapley", by_example, None, **statistics))


def _components(
    ablations: Ablations, components: Iterable[ComponentLike] | None
) -> list[Component]:
    if components is None:
        return sorted(s.components[0] for s in ablations.sets if len(s) == 1)
    return sorted(set(parse_components(components)))


def _check(ablations: Ablations, parts: Sequence[ComponentSet]) -> None:
    for part in parts:
        if part not in ablations.without:
            raise InputError(
                f"subsets: {part} was not ablated; sweep over all subsets of "
                f"{', '.join(str(s) for s in parts if len(s) == 1)}"
            )


def _dividends(
    ablations: Ablations, parts: Sequence[ComponentSet], metric: Metric, members: np.ndarray
) -> Float[np.ndarray, "set example"]:
    """Dividends by Moebius inversion, smaller sets first: m(S) = C(S) - sum of m over parts."""
    known: dict[ComponentSet, np.ndarray] = {}
    for whole in parts:
        known[whole] = ablations.changes(whole, metric)[members] - sum(
            (m for part, m in known.items() if set(whole.components).issuperset(part.components)),
            np.zeros(int(members.sum())),
        )
    return np.stack(list(known.values()))
