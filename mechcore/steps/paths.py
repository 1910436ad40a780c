"""Tables of which components read the core or other senders, and which write the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Int

from mechcore.ablation import Ablations, sets
from mechcore.ablation.effects.confirmation import ON_HALVES
from mechcore.ablation.effects.information import beside_changes
from mechcore.ablation.paths import (
    Readers,
    Verdict,
    core_dependence_table,
    core_dependence_verdict,
    path_information_table,
    path_table,
    random_senders,
    readers_of,
)
from mechcore.ablation.paths.dependence import CORE_DEPENDENCE, beside_random, largest_readers
from mechcore.ablation.paths.tables import PATHS
from mechcore.ablation.paths.verdict import CORE_VERDICT, generalising
from mechcore.components import Component, ModelShape
from mechcore.components.names import ANSWER
from mechcore.errors import InputError, warn
from mechcore.masking.means import MeanActivations
from mechcore.steps.answers import joined, known_groups
from mechcore.steps.config import TEST_SPLITS
from mechcore.steps.inputs import Inputs
from mechcore.steps.tables import CORE
from mechcore.wording import INCONCLUSIVE

if TYPE_CHECKING:
    from mechcore.analyses.paths import Paths

CORE_READ = CORE.named(
    "core",
    f"{CORE.meaning[:-1]}; with paths, whether components that generalise read it: changes "
    "in information out of domain, means over those needed there and not shown to be in domain.",
    *(replace(column, optional=True) for column in CORE_VERDICT.columns),
)


def path_tables(
    inputs: Inputs,
    means: MeanActivations,
    senders: Sequence[Component],
    step: Paths,
    roles: pd.DataFrame | None = None,
    known: Mapping[str, Ablations] | None = None,
    half: Int[np.ndarray, " example"] | None = None,
) -> dict[str, pd.DataFrame]:
    """Changes from cutting paths, and the verdict if there are ``roles``; reuses ``known``."""
    model = inputs.model
    statistics: dict[str, Any] = {"n_resamples": step.n_resamples, "seed": step.seed}
    cuts = step.cuts(senders, model)
    receiving = [receiver.component for cut in cuts for receiver in cut.senders]
    behind = [component for component in dict.fromkeys(receiving) if component is not None]
    readers: dict[str, Readers] = {}
    own: dict[str, Any] = {"fill": step.fill, "batch_size": step.batch_size, "seed": step.seed}
    own["class_names"] = inputs.config.class_names
    for split in TEST_SPLITS if behind else ():
        more: dict[str, Any] = {"receivers": behind, "split": split}
        more["known"] = (known or {}).get(split)
        readers[split] = readers_of(model, senders, inputs.data[split], means, **own, **more)

    def table(of: Readers) -> pd.DataFrame:
        return core_dependence_table(of, known_groups(of, step.groups), **statistics)

    by_split = {split: table(of) for split, of in readers.items()}
    dependence = joined([*by_split.values()]) if by_split else CORE_DEPENDENCE.frame([])
    largest, why = largest_readers(dependence), ""
    if readers and (roles is not None or step.chosen):
        n_controls, why = _controls(senders, ModelShape.of(model), step.controls)
        needed: list[Component] = []
        if roles is not None:
            by = ["role", *(ON_HALVES if half is not None else ())]
            needed = [r for name in by for r in generalising(readers["ood"], roles, name)]
        if n_controls:
            more = {**own, "receivers": {*largest, *map(str, needed)}, "n_controls": n_controls}
            data = inputs.data["ood"]
            readers["ood"] = beside_random(readers["ood"], model, senders, data, means, **more)
            dependence = joined([by_split["id"], table(readers["ood"])])
    if not step.receivers:
        cuts = step.cuts(senders, model, [*largest, ANSWER])
    writing = [*map(str, [*senders, *behind])] if step.senders else ["all"]
    cuts = [*sets.paths(writing, ANSWER, model, together=False), *cuts]
    cuts = [*dict.fromkeys(cuts)]
    cut = [step.ablations(inputs, means, cuts, split) for split in TEST_SPLITS]
    parts = [path_table(of, **statistics) for of in cut]
    if all(without.logits is not None for of in cut for without in of.without.values()):
        grouped = [(of, known_groups(of, step.groups)) for of in cut]
        information = (path_information_table(*of, **statistics) for of in grouped)
        parts = [beside_changes(*both) for both in zip(information, parts, strict=True)]
    tables = {"core_dependence": dependence, PATHS.name: joined(parts)}
    if roles is not None:
        verdict = Verdict(INCONCLUSIVE, "no component runs after the core")
        if readers:
            options: dict[str, Any] = {"least": step.least, "seed": step.seed, "half": half}
            verdict = core_dependence_verdict(readers["ood"], roles, **options)
        text = f"{verdict.explanation} ({why})" if why else verdict.explanation
        tables["core_verdict"] = replace(verdict, explanation=text).table()
    elif why:
        warn(f"no random control heads for the senders: {why}")
    return tables


def _controls(senders: Sequence[Component], shape: ModelShape, wanted: int) -> tuple[int, str]:
    """The possible number of controls, and why there are none if some were wanted."""
    try:
        random_senders(senders, shape, min(1, wanted))
    except InputError as error:
        return 0, str(error).removesuffix(": leave controls out")
    return wanted, ""
