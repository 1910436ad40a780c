"""Who reads the core, and who writes the answer: a step of a study, and its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pandas as pd

from mechcore.ablation import Ablations, sets
from mechcore.components import Component, ModelShape
from mechcore.components.paths import ANSWER, PathSet
from mechcore.errors import InputError
from mechcore.masking.means import MeanActivations
from mechcore.paths import (
    Readers,
    Verdict,
    core_dependence_table,
    core_dependence_verdict,
    path_information_table,
    path_table,
    random_senders,
    readers_of,
)
from mechcore.paths.dependence import (
    CORE_DEPENDENCE,
    beside_random,
    largest_readers,
)
from mechcore.paths.senders import cuts_behind
from mechcore.paths.verdict import generalising
from mechcore.steps.ablation import (
    ablate_on,
    joined,
    known_groups,
)
from mechcore.steps.config import TEST_ROLES
from mechcore.steps.inputs import Inputs
from mechcore.wording import INCONCLUSIVE

if TYPE_CHECKING:
    from mechcore.analyses.paths import Paths


def core_tables(
    inputs: Inputs,
    means: MeanActivations,
    core: Sequence[Component],
    step: Paths,
    roles: pd.DataFrame | None,
    known: Mapping[str, Ablations],
) -> dict[str, pd.DataFrame]:
    """What every component behind the core loses without it, and the answer without each component.

    Args:
        inputs: the model and the data.
        means: the model's.
        core: its core, not empty.
        step: with the settings.
        roles: of `component_roles`; without them there are no controls and there is no verdict.
        known: what a sweep found on these examples, by role, and is not ablated again.

    Returns:
        The tables ``paths``, ``path_information`` and ``core_dependence``, and with roles
        ``core_verdict``.
    """
    shape = ModelShape.of(inputs.model)
    statistics: dict[str, Any] = {"n_resamples": step.n_resamples, "seed": step.seed}
    options: dict[str, Any] = {"fill": step.fill, "batch_size": step.batch_size, "seed": step.seed}
    more: dict[str, Any]
    found: dict[str, Readers] = {}
    if cuts_behind(core, shape.components, inputs.model):
        for role in TEST_ROLES:
            more = {**options, "n_controls": 0, "known": known.get(role)}
            found[role] = readers_on(inputs, means, core, role, **more)

    def table(readers: Readers) -> pd.DataFrame:
        groups = known_groups(readers, step.groups)
        return core_dependence_table(readers, groups, **statistics)

    told = {role: table(readers) for role, readers in found.items()}
    dependence = joined([*told.values()]) if told else CORE_DEPENDENCE.frame([])
    largest = largest_readers(dependence)
    why = ""
    if roles is not None:
        n_controls, why = _controls(core, shape, step.controls)
        if n_controls and found:
            wanted = {*largest, *map(str, generalising(found["ood"], roles))}
            more = {**options, "receivers": wanted, "n_controls": n_controls}
            more["class_names"] = inputs.config.class_names
            found["ood"] = beside_random(
                found["ood"], inputs.model, core, inputs.data["ood"], means, **more
            )
            dependence = joined([told["id"], table(found["ood"])])
    cuts = sets.paths("all", ANSWER, inputs.model, together=False)
    if largest:
        cuts += sets.paths(core, largest, inputs.model, together=False)
    tables = {"core_dependence": dependence}
    tables |= path_tables(inputs, means, cuts, step.groups, n_resamples=step.n_resamples, **options)
    if roles is not None:
        verdict = Verdict(INCONCLUSIVE, "no component runs after the core")
        if "ood" in found:
            verdict = core_dependence_verdict(found["ood"], roles, least=step.least, seed=step.seed)
        text = f"{verdict.explanation} ({why})" if why else verdict.explanation
        tables["core_verdict"] = replace(verdict, explanation=text).table()
    return tables


def _controls(core: Sequence[Component], shape: ModelShape, wanted: int) -> tuple[int, str]:
    """How many controls there can be, and why there are none where some were wanted."""
    try:
        random_senders(core, shape, min(1, wanted))
    except InputError as error:
        return 0, str(error).removesuffix(": leave controls out")
    return wanted, ""


def readers_on(
    inputs: Inputs,
    means: MeanActivations | None,
    senders: Sequence[Component],
    role: str,
    **options: Any,
) -> Readers:
    """What components answer that do not see some heads, on the test data of a role.

    Args:
        inputs: the model and the data.
        means: the model's.
        senders: the heads.
        role: of the data.
        options: others of `mechcore.paths.readers_of`.
    """
    labels = inputs.config.class_names
    data = inputs.data[role]
    return readers_of(
        inputs.model,
        senders,
        data,
        means,
        role=cast(Literal["id", "ood"], role),
        class_names=labels,
        **options,
    )


def path_tables(
    inputs: Inputs,
    means: MeanActivations | None,
    cuts: Sequence[PathSet],
    groups: Mapping[str, tuple[str, ...]],
    *,
    n_resamples: int,
    seed: int,
    state: Path | None = None,
    **options: Any,
) -> dict[str, pd.DataFrame]:
    """Cut sets of paths on both kinds of data.

    Args:
        inputs: the model and the data.
        means: the model's.
        cuts: sets of paths to one receiver each.
        groups: out-of-domain subsets by the name of their group.
        n_resamples: bootstrap resamples.
        seed: of draws, folds and resamples.
        state: folder for the state files of an interruptible run.
        options: ``fill``, ``batch_size`` and others of `mechcore.ablate`.

    Returns:
        The tables ``paths`` and, unless the classes are a whole vocabulary, ``path_information``.
    """
    found = []
    for role in TEST_ROLES:
        file = None if state is None else state / f"sweep-{role}.safetensors"
        found.append(ablate_on(inputs, means, cuts, role, seed=seed, state=file, **options))
    return tables_of(found, groups, n_resamples=n_resamples, seed=seed)


def tables_of(
    found: Sequence[Ablations], groups: Mapping[str, tuple[str, ...]], **statistics: Any
) -> dict[str, pd.DataFrame]:
    """Tables of sets of paths that were cut.

    Args:
        found: the answers, on each kind of data.
        groups: out-of-domain subsets by the name of their group.
        statistics: ``n_resamples`` and ``seed``.

    Returns:
        As `path_tables`.
    """
    tables = {"paths": joined([path_table(each, **statistics) for each in found])}
    if all(without.logits is not None for each in found for without in each.without.values()):
        told = [path_information_table(e, known_groups(e, groups), **statistics) for e in found]
        tables["path_information"] = joined(told)
    return tables
