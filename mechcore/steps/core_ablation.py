"""Ablation of the core as a step of a study: alone, jointly, and beside other heads."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd

from mechcore.ablation import Ablations, ComponentSet, sets
from mechcore.ablation.controls import ABLATION_CONTROLS, control_table
from mechcore.ablation.effects import ABLATION
from mechcore.ablation.stability import INTERACTION_STABILITY
from mechcore.ablation.superadditivity import INTERACTIONS
from mechcore.components import Component, ModelShape
from mechcore.masking.means import MeanActivations
from mechcore.steps.ablation import CORE, Ablating, ablate_on, ablations_in, effect_tables, joined
from mechcore.steps.base import SHARED, Size, core_of, inputs_of, means_of
from mechcore.steps.config import TEST_ROLES
from mechcore.steps.inputs import Inputs
from mechcore.study.step import Job, Work
from mechcore.tables import Schema


@dataclass(frozen=True)
class AblateCore(Ablating):
    """Ablation of the core, alone and jointly, beside other heads.

    What a sweep ablated that it needs is not ablated again.

    Settings are those of `mechcore.steps.analyses_config.AblationConfig`.
    """

    kind: ClassVar[str] = "ablate"
    schemas: ClassVar[tuple[Schema, ...]] = (
        ABLATION,
        INTERACTIONS,
        INTERACTION_STABILITY,
        ABLATION_CONTROLS,
    )
    needs: ClassVar[tuple[str, ...]] = ("means", "core")
    roles: ClassVar[tuple[str, ...]] = TEST_ROLES
    names: Mapping[str, str]
    n_resamples: int
    max_joint: int
    max_non_core: int
    controls: int
    control_examples: int

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        n_sets = self.max_joint * (self.max_joint - 1) / 2
        if "sweep" not in job.needs:
            n_sets += CORE * size.n_heads + self.max_non_core
        sampled = sum(min(self.control_examples, size.examples.get(r, 0)) for r in TEST_ROLES)
        return SHARED * (n_sets * size.tested + self.controls * sampled)

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        inputs = inputs_of(work)
        means, core = means_of(work, inputs), core_of(work)
        known = ablations_in(work.needed("sweep"), self.names) if "sweep" in work.job.needs else {}
        work.write_tables(core_ablation_tables(inputs, means, core, self, known))


def core_ablation_tables(
    inputs: Inputs,
    means: MeanActivations,
    core: Sequence[Component],
    step: AblateCore,
    known: Mapping[str, Ablations],
) -> dict[str, pd.DataFrame]:
    """Ablate every core head alone and chosen ones jointly, beside heads outside the core.

    All pairs among the ``max_joint`` core heads with the largest out-of-domain drop are ablated,
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
    step: AblateCore,
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
