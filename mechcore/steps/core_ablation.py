"""Ablation of the core, or of components in its place: alone, jointly, and beside others."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mechcore.ablation import Ablations, ComponentSet, dividends, sets, shapley
from mechcore.ablation.effects.controls import control_table
from mechcore.components import Component, ModelShape
from mechcore.masking.means import MeanActivations
from mechcore.steps.ablation import ablate_on, effect_tables, joined
from mechcore.steps.config import TEST_SPLITS
from mechcore.steps.inputs import Inputs

if TYPE_CHECKING:
    from mechcore.analyses.ablation import Ablation


def core_ablation_tables(
    inputs: Inputs,
    means: MeanActivations,
    core: Sequence[Component],
    step: Ablation,
    known: Mapping[str, Ablations],
    state: Path | None = None,
) -> dict[str, pd.DataFrame]:
    """Ablate every core head alone and chosen ones jointly, beside heads outside the core.

    All pairs among the ``max_joint`` core heads with the largest out-of-domain loss are ablated,
    these heads together, and the whole core; then the sets of ``step``, with each member alone. Of
    the other heads of the same layers, ``max_non_core`` drawn at random are ablated one at a time
    and reported as one average; ``controls`` random sets of as many of each layer are ablated
    beside the whole core.

    Args:
        inputs: the model and the data.
        means: the model's.
        core: its core, or the components in its place.
        step: with the settings.
        known: what is known already, by split, and is not ablated again.
        state: folder for the state files of an interruptible run.

    Returns:
        The tables ``ablation``, ``interactions``, ``interaction_stability`` and
        ``ablation_controls``; where all subsets are ablated, ``dividends`` and ``shapley``, too.
    """
    shape = ModelShape.of(inputs.model)
    alone = sorted({*core, *(member for each in step.further for member in each.components)})
    others = [ComponentSet((c,)) for c in beside(alone, shape, step.max_non_core, step.seed)]
    singles = [ComponentSet((component,)) for component in alone]

    def without(wanted: Sequence[ComponentSet], split: str, file: str) -> Ablations:
        there = known.get(split)
        left = [each for each in wanted if there is None or each not in there.without]
        if left or there is None:
            new = _ablated(inputs, means, left, split, step, state and state / file)
            there = new if there is None else there.with_more(new)
        return replace(there, without={each: there.without[each] for each in wanted})

    ood = without([*singles, *others], "ood", "ood-alone")
    of_core = [each for each in singles if each.components[0] in core]
    together = [*joint_sets(of_core, ood, step.max_joint), *step.further]
    together += sets.subsets(core) if step.subsets else []
    joint = [each for each in dict.fromkeys(together) if len(each) > 1]
    id_ = without([*singles, *others, *joint], "id", "id")
    if joint:
        ood = ood.with_more(without(joint, "ood", "ood-joint"))
    kinds = dict.fromkeys(singles, "single") | dict.fromkeys(joint, "joint")
    controls = [_beside_each(found, known.get(found.split), alone) for found in (id_, ood)]
    if len(core) > 1 and step.controls:
        controls += _beside_core(inputs, means, core, step, (id_, ood), state)
    what = "heads outside the core, of its layers" if core else "heads outside the core"
    if step.components or step.sets:
        what = "other components"
    average = (f"{what} (mean of {len(others)})", others)
    options: dict[str, Any] = {"n_resamples": step.n_resamples, "seed": step.seed}
    tables = effect_tables([id_, ood], kinds, average, **options)
    for of_all in (dividends, shapley) if step.subsets else ():
        tables[of_all.__name__] = joined([of_all(each, core, **options) for each in (id_, ood)])
    return tables | {"ablation_controls": joined(controls)}


def _ablated(
    inputs: Inputs,
    means: MeanActivations,
    wanted: Sequence[ComponentSet],
    split: str,
    step: Ablation,
    state: Path | None,
) -> Ablations:
    """The answers without each set, with the settings of the step."""
    options: dict[str, Any] = {"seed": step.seed, "state": state and f"{state}.safetensors"}
    return ablate_on(inputs, means, wanted, split, step.fill, step.batch_size, **options)


def beside(core: Sequence[Component], shape: ModelShape, n: int, seed: int) -> list[Component]:
    """Components outside the core, drawn for its members in turn: heads of the same layer, or MLPs.

    Args:
        core: heads, or other components; where there is none, any head may be drawn.
        shape: of the model.
        n: how many at most; fewer where there are no more for one of them.
        seed: of the draw.
    """
    generator = np.random.default_rng(seed)
    among = shape.heads if all(each.is_head for each in core) else shape.components
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
    """Whether two are heads of one layer, or both MLPs."""
    return one.is_head == other.is_head and (one.layer == other.layer or not one.is_head)


def _beside_each(
    found: Ablations, known: Ablations | None, core: Sequence[Component]
) -> pd.DataFrame:
    """Each member beside all others like it that were ablated."""
    there = found if known is None else found.with_more(known)
    others = [s for s in there.sets if len(s) == 1 and s.components[0] not in core]
    return control_table(
        there,
        {
            ComponentSet((member,)): [s for s in others if _alike(s.components[0], member)]
            for member in core
        },
    )


def _beside_core(
    inputs: Inputs,
    means: MeanActivations,
    core: Sequence[Component],
    step: Ablation,
    known: Sequence[Ablations],
    state: Path | None,
) -> list[pd.DataFrame]:
    """The whole core beside random sets, on some examples; alone on all where there is no set."""
    whole, seed = ComponentSet.of(core), step.seed
    drawn = sets.matched_random(core, inputs.model, step.controls, fewer=True, seed=seed)
    others = list(drawn.values())
    if not others:
        return [control_table(each, {whole: []}) for each in known]
    sampled = inputs.sampled(TEST_SPLITS, step.control_examples, seed)
    return [
        control_table(
            _ablated(sampled, means, [whole, *others], split, step, kept), {whole: others}
        )
        for split in TEST_SPLITS
        for kept in (state and state / f"controls-{split}",)
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
