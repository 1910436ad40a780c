"""What several subnetworks have in common (arXiv 2403.03942, sections 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from mechcore.components import Component, Mask, ModelShape
from mechcore.errors import InputError, MismatchError


@dataclass(frozen=True)
class HeuristicCore:
    """The heads that every subnetwork keeps, and how surprising that is.

    Attributes:
        heads: the core, by layer.
        n_subnetworks: how many subnetworks share it.
        n_heads: heads of the model.
        expected: size expected if each subnetwork kept as many heads as it does, but random
            ones: n_heads * prod_i (1 - head_sparsity_i).
        p_value: probability that random subnetworks of these sizes share at least as many heads;
            exact.
    """

    heads: tuple[Component, ...]
    n_subnetworks: int
    n_heads: int
    expected: float
    p_value: float


def heuristic_core(masks: Sequence[Mask]) -> HeuristicCore:
    """Heads kept by all of ``masks``.

    Raises:
        InputError: there is no mask, or one is not a single mask of zeros and ones.
        MismatchError: the masks are those of different models.
    """
    shape = _common_shape(masks)
    kept = [{c for c in mask.kept if c.is_head} for mask in masks]
    core = sorted(set.intersection(*kept))
    sizes = [len(heads) for heads in kept]
    n_heads = len(shape.heads)
    expected = n_heads * float(np.prod([size / n_heads for size in sizes]))
    p_value = intersection_tail(n_heads, sizes, len(core))
    return HeuristicCore(tuple(core), len(masks), n_heads, expected, p_value)


def intersection_tail(n: int, sizes: Sequence[int], observed: int) -> float:
    """P(at least ``observed`` of ``n`` things lie in every one of random sets of these sizes).

    The intersection of a set of size k with a random set is hypergeometric, so its distribution
    follows exactly from one set to the next.
    """
    probability = np.zeros(n + 1)
    probability[sizes[0]] = 1.0
    for size in sizes[1:]:
        step = np.zeros(n + 1)
        for current in np.flatnonzero(probability):
            step += probability[current] * stats.hypergeom.pmf(np.arange(n + 1), n, current, size)
        probability = step
    return float(min(1.0, probability[observed:].sum()))


def head_frequency(masks: Sequence[Mask], targets: Sequence[float]) -> pd.DataFrame:
    """How many subnetworks of each target sparsity keep a component.

    Args:
        masks: single masks of zeros and ones.
        targets: the target sparsity of each.

    Returns:
        One row per component and target: component, layer, head (missing for MLPs),
        target_sparsity, n_seeds, count, frequency (share).

    Raises:
        InputError: there is no mask, or the numbers of masks and targets differ.
    """
    shape = _common_shape(masks)
    if len(masks) != len(targets):
        raise InputError(f"head frequency: {len(masks)} masks but {len(targets)} target sparsities")
    rows = []
    for target in sorted(set(targets)):
        chosen = [set(m.kept) for m, t in zip(masks, targets, strict=True) if t == target]
        for component in shape.components:
            count = sum(component in kept for kept in chosen)
            rows.append(
                {
                    "component": str(component),
                    "layer": component.layer,
                    "head": component.head,
                    "target_sparsity": target,
                    "n_seeds": len(chosen),
                    "count": count,
                    "frequency": count / len(chosen),
                }
            )
    return pd.DataFrame(rows).astype({"head": "Int64"})


@dataclass(frozen=True)
class RankAgreement:
    """Spearman correlation of head frequencies at two sparsities; NaN where one is constant."""

    rho: float
    p_value: float


def frequency_agreement(frequency: pd.DataFrame) -> RankAgreement:
    """Spearman's rho between the head frequencies at the lowest and the highest sparsity.

    Args:
        frequency: a table of `head_frequency`.

    Raises:
        InputError: the table has fewer than two sparsities.
    """
    heads = frequency[frequency["head"].notna()]
    table = heads.pivot(index="component", columns="target_sparsity", values="count")
    if table.shape[1] < 2:
        raise InputError("Spearman: found one target sparsity; expected at least two")
    first, last = table.iloc[:, 0].to_numpy(), table.iloc[:, -1].to_numpy()
    if len(set(first)) == 1 or len(set(last)) == 1:
        return RankAgreement(float("nan"), float("nan"))
    result = stats.spearmanr(first, last)
    return RankAgreement(float(result.statistic), float(result.pvalue))


def _common_shape(masks: Sequence[Mask]) -> ModelShape:
    if not masks:
        raise InputError("subnetworks: no mask; at least one is needed")
    for mask in masks[1:]:
        if mask.shape != masks[0].shape:
            raise MismatchError(
                f"subnetworks: masks of different models: {masks[0].shape} and {mask.shape}"
            )
    return masks[0].shape
