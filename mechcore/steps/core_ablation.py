"""Ablation of the core, or of named components: alone, jointly, and against controls."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mechcore.ablation import (
    Ablations,
    ComponentSet,
    ablation_table,
    dividends,
    interactions,
    sets,
    shapley,
)
from mechcore.ablation.effects.changes import ABLATION, control_table
from mechcore.ablation.effects.stability import interaction_stability
from mechcore.ablation.joint.exact import INTERACTIONS
from mechcore.components import Component, ModelShape
from mechcore.masking.means import MeanActivations
from mechcore.steps.answers import joined
from mechcore.steps.config import TEST_SPLITS
from mechcore.steps.inputs import Inputs

if TYPE_CHECKING:
    from mechcore.analyses.ablation import Ablation

_PLACE = ["set", "data", "split", "subset"]


def core_ablation_tables(
    inputs: Inputs,
    means: MeanActivations,
    core: Sequence[Component],
    step: Ablation,
    known: Mapping[str, Ablations],
    state: Path | None = None,
) -> dict[str, pd.DataFrame]:
    """Ablate core heads alone and jointly, see `joint_sets`, with controls; reuses ``known``."""
    alone = sorted({*core, *(member for named in step.further for member in named.components)})
    others = beside(alone, ModelShape.of(inputs.model), step.max_non_core, step.seed)
    singles, other_sets = ([ComponentSet((c,)) for c in some] for some in (alone, others))

    def ablated(wanted: Sequence[ComponentSet], split: str, file: str, of: Inputs) -> Ablations:
        kept = state and state / f"{file}.safetensors"
        return step.ablations(of, means, wanted, split, kept)

    def without(wanted: Sequence[ComponentSet], split: str, file: str) -> Ablations:
        before = known.get(split)
        left = [one for one in wanted if before is None or one not in before.without]
        if left or before is None:
            new = ablated(left, split, file, inputs)
            before = new if before is None else before.with_more(new)
        return replace(before, without={one: before.without[one] for one in wanted})

    ood = without([*singles, *other_sets], "ood", "ood-alone")
    of_core = [single for single in singles if single.components[0] in core]
    together = [*joint_sets(of_core, ood, step.n_joint), *step.further]
    together += sets.subsets(core) if step.subsets else []
    joint = [one for one in dict.fromkeys(together) if len(one) > 1]
    id_ = without([*singles, *other_sets, *joint], "id", "id")
    if joint:
        ood = ood.with_more(without(joint, "ood", "ood-joint"))
    both = (id_, ood)
    controls = [_beside_each(of, known.get(of.split), alone) for of in both]
    if len(core) > 1 and step.controls:
        whole = ComponentSet.of(core)
        options: dict[str, Any] = {"fewer": True, "seed": step.seed}
        drawn = [*sets.matched_random(core, inputs.model, step.controls, **options).values()]
        beside_core: Sequence[Ablations] = both
        if drawn:  # on fewer examples
            few = inputs.sampled(TEST_SPLITS, step.control_examples, step.seed)
            every = [whole, *drawn]
            beside_core = [ablated(every, s, f"controls-{s}", few) for s in TEST_SPLITS]
        controls += [control_table(of, {whole: drawn}) for of in beside_core]
    what = "heads outside the core, of its layers" if core else "heads outside the core"
    if step.components or step.sets:
        what = "other components"
    kinds = dict.fromkeys(singles, "single") | dict.fromkeys(joint, "joint")
    average = (f"{what} (mean of {len(others)})", other_sets)
    options = {"n_resamples": step.n_resamples, "seed": step.seed}
    tables = {
        ABLATION.name: [ablation_table(of, kinds, average=average, **options) for of in both],
        INTERACTIONS.name: [interactions(of, **options) for of in both],
        "stability": [interaction_stability(of, **options) for of in both],
    }
    for of_all in (dividends, shapley) if step.subsets else ():
        tables[of_all.__name__] = [of_all(of, core, **options) for of in both]
    made = {name: joined(parts) for name, parts in tables.items()}
    whole_numbers = {"n_beside": "Int64", "n_controls": "Int64"}
    of_each = joined(controls).astype(whole_numbers)
    made[ABLATION.name] = made[ABLATION.name].merge(of_each, "left", _PLACE)
    return made


def beside(core: Sequence[Component], shape: ModelShape, n: int, seed: int) -> list[Component]:
    """At most ``n`` components outside the core, each like one of its members in turn."""
    generator = np.random.default_rng(seed)
    among = shape.heads if all(member.is_head for member in core) else shape.components
    outside = [component for component in among if component not in set(core)]
    left = [outside[i] for i in generator.permutation(len(outside))]
    if not core:
        return sorted(left[:n])
    drawn: list[Component] = []
    for i in itertools.islice(itertools.cycle(generator.permutation(len(core))), n):
        same = [component for component in left if _alike(component, core[i])]
        if not same:
            break
        drawn.append(same[0])
        left.remove(same[0])
    return sorted(drawn)


def _alike(one: Component, other: Component) -> bool:
    return one.is_head == other.is_head and (one.layer == other.layer or not one.is_head)


def _beside_each(
    ablations: Ablations, known: Ablations | None, core: Sequence[Component]
) -> pd.DataFrame:
    every = ablations if known is None else ablations.with_more(known)
    others = [s for s in every.sets if len(s) == 1 and s.components[0] not in core]
    alike = {
        ComponentSet((member,)): [s for s in others if _alike(s.components[0], member)]
        for member in core
    }
    return control_table(every, alike)


def joint_sets(
    singles: Sequence[ComponentSet], ood: Ablations, max_joint: int
) -> list[ComponentSet]:
    """Pairs among the most important heads out of domain, these together, and the whole core."""
    ranked = sorted(singles, key=lambda s: float(ood.changes(s, "accuracy").mean()))[:max_joint]
    groups = [*itertools.combinations(ranked, 2), ranked, singles]
    joint = [
        ComponentSet.of([c for s in group for c in s.components])
        for group in groups
        if len(group) > 1
    ]
    return list(dict.fromkeys(joint))
