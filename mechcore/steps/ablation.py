"""Ablation as a step of a study: which sets, on both kinds of data, into tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mechcore.ablation import (
    Ablations,
    ComponentSet,
    ablate,
    ablation_table,
    dividends,
    interactions,
    sets,
    shapley,
)
from mechcore.ablation.cooperative import MOST_EXACT
from mechcore.ablation.engines import Precision
from mechcore.ablation.sweeping import Engine
from mechcore.components import Component, ModelShape
from mechcore.errors import InputError
from mechcore.masking.interventions import FillName
from mechcore.masking.means import MeanActivations
from mechcore.steps.config import TEST_ROLES
from mechcore.steps.inputs import Inputs

if TYPE_CHECKING:
    from mechcore.steps.analyses import AblateCore


def core_ablation_tables(
    inputs: Inputs, means: MeanActivations, core: Sequence[Component], step: AblateCore
) -> dict[str, pd.DataFrame]:
    """Ablate every core head alone and chosen ones jointly, beside heads outside the core.

    All pairs among the ``max_joint`` core heads with the largest out-of-domain drop are ablated,
    these heads together, and the whole core. Of the other heads, ``max_non_core`` drawn at random
    are ablated one at a time and reported as one average.

    Returns:
        The tables ``ablation`` and ``interactions``.
    """
    outside = [head for head in ModelShape.of(inputs.model).heads if head not in set(core)]
    drawn = np.random.default_rng(step.seed).permutation(len(outside))[: step.max_non_core]
    others = [ComponentSet((outside[i],)) for i in sorted(drawn)]
    singles = [ComponentSet((head,)) for head in core]
    ood = _ablate(inputs, means, [*singles, *others], "ood", step.fill, step.batch_size)
    joint = joint_sets(singles, ood, step.max_joint)
    id_ = _ablate(inputs, means, [*singles, *others, *joint], "id", step.fill, step.batch_size)
    if joint:
        ood = ood.with_more(_ablate(inputs, means, joint, "ood", step.fill, step.batch_size))
    kinds = dict.fromkeys(singles, "single") | dict.fromkeys(joint, "joint")
    return _effect_tables([id_, ood], kinds, others, step.n_resamples)


def sweep_tables(
    inputs: Inputs,
    means: MeanActivations | None,
    kinds: Mapping[ComponentSet, str],
    *,
    fill: FillName = "mean",
    engine: Engine = "auto",
    precision: Precision = "float32",
    batch_size: int = 64,
    n_resamples: int = 1000,
    seed: int = 0,
    state: Path | None = None,
) -> tuple[dict[str, pd.DataFrame], list[Ablations]]:
    """Ablate sets on both kinds of data.

    The options are those of `mechcore.ablate`; ``kinds`` are the sets, with what to call each in
    the column ``kind``, and ``state`` is the folder for the state files of an interruptible run.

    Returns:
        The tables ``ablation`` and ``interactions`` and, where all subsets of two or more
        components are among the sets, ``dividends`` and ``shapley``; and the answers themselves.

    Raises:
        InputError: there is no set, or a component is out of range.
    """
    if not kinds:
        raise InputError("ablation: no set; name at least one component (--components)")
    found = [
        _ablate(
            inputs,
            means,
            list(kinds),
            role,
            fill,
            batch_size,
            engine=engine,
            precision=precision,
            seed=seed,
            state=None if state is None else state / f"sweep-{role}.safetensors",
        )
        for role in TEST_ROLES
    ]
    tables = _effect_tables(found, kinds, [], n_resamples, seed)
    alone = [s.components[0] for s in kinds if len(s) == 1]
    if 2 <= len(alone) <= MOST_EXACT and set(sets.subsets(alone)) <= set(kinds):
        options: dict[str, Any] = {"n_resamples": n_resamples, "seed": seed}
        tables["dividends"] = _joined([dividends(each, **options) for each in found])
        tables["shapley"] = _joined([shapley(each, **options) for each in found])
    return tables, found


def _ablate(
    inputs: Inputs,
    means: MeanActivations | None,
    chosen: Sequence[ComponentSet],
    role: str,
    fill: FillName,
    batch_size: int,
    **options: Any,
) -> Ablations:
    return ablate(
        inputs.model,
        chosen,
        inputs.data[role],
        means,
        role=role,  # type: ignore[arg-type]
        fill=fill,
        class_labels=inputs.config.class_labels,
        batch_size=batch_size,
        **options,
    )


def _effect_tables(
    found: Sequence[Ablations],
    kinds: Mapping[ComponentSet, str],
    others: Sequence[ComponentSet],
    n_resamples: int,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    average = (f"heads outside the core (mean of {len(others)})", others)
    options: dict[str, Any] = {"n_resamples": n_resamples, "seed": seed}
    effects = [ablation_table(a, kinds, average=average, **options) for a in found]
    together = [interactions(a, **options) for a in found]
    return {"ablation": _joined(effects), "interactions": _joined(together)}


def _joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One table; empty ones have no types of their own to pass on."""
    return pd.concat([t for t in tables if not t.empty] or tables[:1], ignore_index=True)


def joint_sets(
    singles: Sequence[ComponentSet], ood: Ablations, max_joint: int
) -> list[ComponentSet]:
    """Pairs among the heads that matter most out of domain, these together, and the whole core."""
    ranked = sorted(singles, key=lambda s: -float(ood.drops(s, "accuracy").mean()))[:max_joint]
    found = [
        ComponentSet.of([*a.components, *b.components])
        for i, a in enumerate(ranked)
        for b in ranked[i + 1 :]
    ]
    for group in (ranked, list(singles)):
        if len(group) > 1:
            found.append(ComponentSet.of([c for each in group for c in each.components]))
    return list(dict.fromkeys(found))
