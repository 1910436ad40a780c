"""Ablation of the core as a step of a study: alone, jointly, and beside other heads."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mechcore.ablation import Ablations, ComponentSet, sets
from mechcore.ablation.controls import control_table
from mechcore.components import Component, ModelShape
from mechcore.masking.means import MeanActivations
from mechcore.steps.ablation import ablate_on, effect_tables, joined
from mechcore.steps.config import TEST_ROLES
from mechcore.steps.inputs import Inputs

if TYPE_CHECKING:
    from mechcore.analyses.ablation import CoreAblation


def core_ablation_tables(
    inputs: Inputs,
    means: MeanActivations,
    core: Sequence[Component],
    step: CoreAblation,
    known: Mapping[str, Ablations],
) -> dict[str, pd.DataFrame]:
    """Ablate every core head alone and chosen ones jointly, beside heads outside the core.

    All pairs among the ``max_joint`` core heads with the lowest out-of-domain change are ablated,
    these heads together, and the whole core. Of the other heads of its layers, ``max_non_core``
    drawn at random are ablated one at a time and reported as one average; ``controls`` random sets
    of as many of each layer are ablated beside the whole core.

    Args:
        inputs: the model and the data.
        means: the model's.
        core: its core.
        step: with the settings.
        known: what is known already, by role, and is not ablated again.

    Returns:
        The tables ``ablation``, ``interactions``, ``interaction_stability`` and
        ``ablation_controls``.
    """
    shape = ModelShape.of(inputs.model)
    others = [ComponentSet((head,)) for head in beside(core, shape, step.max_non_core, step.seed)]
    singles = [ComponentSet((head,)) for head in core]

    def without(wanted: Sequence[ComponentSet], role: str) -> Ablations:
        there = known.get(role)
        left = [each for each in wanted if there is None or each not in there.without]
        if left or there is None:
            size, seed = step.batch_size, step.seed
            found = ablate_on(inputs, means, left, role, step.fill, size, seed=seed)
            there = found if there is None else there.with_more(found)
        return replace(there, without={each: there.without[each] for each in wanted})

    ood = without([*singles, *others], "ood")
    joint = joint_sets(singles, ood, step.max_joint)
    id_ = without([*singles, *others, *joint], "id")
    if joint:
        ood = ood.with_more(without(joint, "ood"))
    kinds = dict.fromkeys(singles, "single") | dict.fromkeys(joint, "joint")
    controls = [_beside_heads(found, known.get(found.role), core) for found in (id_, ood)]
    if len(core) > 1 and step.controls:
        controls += _beside_core(inputs, means, core, step, (id_, ood))
    tables = effect_tables([id_, ood], kinds, others, step.n_resamples, step.seed)
    return tables | {"ablation_controls": joined(controls)}


def beside(core: Sequence[Component], shape: ModelShape, n: int, seed: int) -> list[Component]:
    """Heads outside the core, drawn for its heads in turn, each of the same layer.

    Args:
        core: heads; where there is none, any head may be drawn.
        shape: of the model.
        n: how many at most; fewer where a layer has no more.
        seed: of the draw.
    """
    generator = np.random.default_rng(seed)
    outside = [head for head in shape.heads if head not in set(core)]
    left = [outside[i] for i in generator.permutation(len(outside))]
    if not core:
        return sorted(left[:n])
    drawn: list[Component] = []
    for i in itertools.islice(itertools.cycle(generator.permutation(len(core))), n):
        same = [head for head in left if head.layer == core[i].layer]
        if not same:
            break
        drawn.append(same[0])
        left.remove(same[0])
    return sorted(drawn)


def _beside_heads(
    found: Ablations, known: Ablations | None, core: Sequence[Component]
) -> pd.DataFrame:
    """Each head of the core beside all other heads of its layer that were ablated."""
    there = found if known is None else found.with_more(known)
    others = [s for s in there.sets if len(s) == 1 and s.components[0] not in core]
    return control_table(
        there,
        {
            ComponentSet((head,)): [
                s for s in others if s.components[0].is_head and s.components[0].layer == head.layer
            ]
            for head in core
        },
    )


def _beside_core(
    inputs: Inputs,
    means: MeanActivations,
    core: Sequence[Component],
    step: CoreAblation,
    known: Sequence[Ablations],
) -> list[pd.DataFrame]:
    """The whole core beside random sets, on some examples; alone on all where there is no set."""
    whole, size, seed = ComponentSet.of(core), step.batch_size, step.seed
    drawn = sets.matched_random(core, inputs.model, step.controls, fewer=True, seed=seed)
    others = list(drawn.values())
    if not others:
        return [control_table(each, {whole: []}) for each in known]
    sampled = inputs.sampled(TEST_ROLES, step.control_examples, seed)
    return [
        control_table(
            ablate_on(sampled, means, [whole, *others], role, step.fill, size, seed=seed),
            {whole: others},
        )
        for role in TEST_ROLES
    ]


def joint_sets(
    singles: Sequence[ComponentSet], ood: Ablations, max_joint: int
) -> list[ComponentSet]:
    """Pairs among the heads that matter most out of domain, these together, and the whole core."""
    ranked = sorted(singles, key=lambda s: float(ood.changes(s, "accuracy").mean()))[:max_joint]
    found = [
        ComponentSet.of([*a.components, *b.components])
        for i, a in enumerate(ranked)
        for b in ranked[i + 1 :]
    ]
    for group in (ranked, list(singles)):
        if len(group) > 1:
            found.append(ComponentSet.of([c for each in group for c in each.components]))
    return list(dict.fromkeys(found))
