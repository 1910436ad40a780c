"""Ablation as steps of a study: which sets, on both kinds of data, into tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd
import torch

from mechcore.ablation import (
    Ablations,
    ComponentSet,
    RoleSettings,
    ablate,
    ablation_table,
    component_roles,
    confirm_roles,
    dividends,
    information_table,
    interactions,
    sets,
    shapley,
)
from mechcore.ablation.confirmed import ROLES_TABLE
from mechcore.ablation.cooperative import DIVIDENDS, MOST_EXACT, SHAPLEY
from mechcore.ablation.drop_states import INJECTED, OOD_MEAN
from mechcore.ablation.effects import ABLATION, Cut
from mechcore.ablation.engines import Precision
from mechcore.ablation.information import INFORMATION
from mechcore.ablation.stability import (
    INTERACTION_STABILITY,
    STABILITY,
    drop_stability,
    interaction_stability,
)
from mechcore.ablation.superadditivity import INTERACTIONS
from mechcore.ablation.sweeping import Engine
from mechcore.components import ModelShape
from mechcore.data.examples import ALL
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import Evaluation
from mechcore.masking.fills import FILLS
from mechcore.masking.interventions import FillName
from mechcore.masking.means import MeanActivations
from mechcore.paths import Readers
from mechcore.pruning.attribution import BATCH_SIZE, margin_slopes
from mechcore.steps.answers import load_answers, save_answers
from mechcore.steps.base import SHARED, WITH_GRADIENT, MainStep, Size, inputs_of, means_of
from mechcore.steps.config import TEST_ROLES
from mechcore.steps.inputs import Inputs
from mechcore.steps.tables import FULL
from mechcore.study.step import Job, Work
from mechcore.tables import Schema

SWEEP = ABLATION.named("sweep", "What every single component costs; as ``ablation``.")
SWEEP_OOD_MEAN = SWEEP.named(
    f"sweep_{OOD_MEAN}",
    "As ``sweep``, out of domain, with the mean of the texts there as the fill.",
)
INFORMATION_OOD_MEAN = INFORMATION.named(
    f"information_{OOD_MEAN}",
    "As ``information``, out of domain, with the mean of the texts there as the fill.",
    INJECTED,
)

SWEEP_TABLES = (ABLATION, INTERACTIONS, INTERACTION_STABILITY, INFORMATION, DIVIDENDS, SHAPLEY)
"""What `sweep_tables` returns."""

CORE = 0.2
"""Share of heads in a core that is not known yet."""


@dataclass(frozen=True)
class Ablating(MainStep):
    """What the steps that ablate sets of components have in common.

    ``fill`` is what replaces an ablated output.
    """

    seed: int
    batch_size: int
    fill: str

    def uses(self) -> list[object]:
        """The fill."""
        return [FILLS[self.fill]]


@dataclass(frozen=True)
class Sweep(Ablating):
    """Every component of a kind ablated alone: the answers."""

    kind: ClassVar[str] = "sweep"
    needs: ClassVar[tuple[str, ...]] = ("means",)
    roles: ClassVar[tuple[str, ...]] = TEST_ROLES
    components: Literal["heads", "mlps", "all"]

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        n_examples = sum(size.examples.get(role, 0) for role in self.roles)
        return SHARED * size.components(self.components) * n_examples

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        inputs = inputs_of(work)
        means, shape = means_of(work, inputs), ModelShape.of(inputs.model)
        alone = [ComponentSet((each,)) for each in shape.kind(self.components)]
        for role in self.roles:
            options: dict[str, Any] = {"batch_size": self.batch_size, "seed": self.seed}
            options["state"] = work.partial / SWEPT[role]
            found = ablate_on(inputs, means, alone, role, self.fill, **options)
            save_answers(work.folder / SWEPT[role], _by_name(found))


@dataclass(frozen=True)
class SweepOodMean(Sweep):
    """The sweep out of domain again, with the mean of the texts there in place of training's.

    It also leaves what the training mean injects there, in nats of every example's margin.
    """

    kind: ClassVar[str] = OOD_MEAN
    needs: ClassVar[tuple[str, ...]] = ("means", "train means")
    roles: ClassVar[tuple[str, ...]] = ("ood",)

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        return super().passes(job, size) + 2 * WITH_GRADIENT * size.examples["ood"]

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        super().run(work)
        inputs = inputs_of(work)
        training, own = (
            margin_slopes(
                inputs.model,
                inputs.data["ood"],
                means_of(work, inputs, needed),
                class_names=inputs.config.class_names,
                batch_size=min(self.batch_size, BATCH_SIZE),
            )
            for needed in ("train means", "means")
        )
        shape = ModelShape.of(inputs.model)
        injected = own - training
        columns = {str(c): injected[(..., *shape.index(c))].numpy() for c in shape.components}
        pd.DataFrame(columns).to_parquet(work.folder / INJECTED_FILE)


@dataclass(frozen=True)
class Drops(MainStep):
    """Tables of what every single component costs, from the answers of a sweep or two."""

    kind: ClassVar[str] = "drops"
    schemas: ClassVar[tuple[Schema, ...]] = (
        SWEEP,
        INFORMATION,
        STABILITY,
        SWEEP_OOD_MEAN,
        INFORMATION_OOD_MEAN,
    )
    needs: ClassVar[tuple[str, ...]] = ("sweep",)
    names: Mapping[str, str]
    groups: Mapping[str, tuple[str, ...]]
    n_resamples: int
    seed: int

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        found = ablations_in(work.needed("sweep"), self.names)
        options: dict[str, Any] = {"n_resamples": self.n_resamples, "seed": self.seed}
        stable = [drop_stability(each, **options) for each in found.values()]
        tables = self._tables(found, options) | {"stability": joined(stable)}
        if OOD_MEAN in work.job.needs:
            again = ablations_in(work.needed(OOD_MEAN), self.names)
            own = self._tables(again, options)
            injected = pd.read_parquet(work.needed(OOD_MEAN) / INJECTED_FILE)
            means = {
                subset: injected[members].mean()
                for subset, members in again["ood"].groups(known_groups(again["ood"], self.groups))
            }
            places = zip(own["information"]["set"], own["information"]["subset"], strict=True)
            own["information"][INJECTED.name] = [means[subset][name] for name, subset in places]
            tables |= {f"{name}_{OOD_MEAN}": table for name, table in own.items()}
        work.write_tables(tables)

    def _tables(
        self, swept: Mapping[str, Ablations], options: Mapping[str, Any]
    ) -> dict[str, pd.DataFrame]:
        """The tables ``sweep`` and ``information``."""
        found = swept.values()
        costs = [ablation_table(each, **options) for each in found]
        told = [information_table(e, known_groups(e, self.groups), **options) for e in found]
        return {"sweep": joined(costs), "information": joined(told)}


@dataclass(frozen=True)
class Roles(MainStep):
    """What every component is needed for, and which roles found on a half hold on the other."""

    kind: ClassVar[str] = "roles"
    schemas: ClassVar[tuple[Schema, ...]] = (ROLES_TABLE,)
    needs: ClassVar[tuple[str, ...]] = ("drops", "sweep")
    judged: RoleSettings
    names: Mapping[str, str]
    seed: int

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        table = work.table("drops", "information").query("subset == @ALL")
        inside, outside = (table[table["role"] == role] for role in TEST_ROLES)
        own, folders = None, {"sweep": work.needed("sweep")}
        if OOD_MEAN in work.job.needs:
            own = work.table("drops", INFORMATION_OOD_MEAN.name).query("subset == @ALL")
            folders[OOD_MEAN] = work.needed(OOD_MEAN)
        roles = component_roles(inside, outside, self.judged, ood_mean=own)
        answers = swept_answers(folders, self.names)
        roles = confirm_roles(roles, answers, self.judged, seed=self.seed)
        work.write_tables({"roles": roles})


def known_groups(
    ablations: Ablations | Readers, groups: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Groups of which every subset is there; of the others ``group_accuracy`` says so."""
    there = {*ablations.full.subset_names, ALL}
    return {
        name: members
        for name, members in (groups if ablations.role == "ood" else {}).items()
        if there.issuperset(members) and name not in there
    }


SWEPT = {role: f"sweep-{role}.safetensors" for role in TEST_ROLES}
"""Files of a sweep's answers."""
INJECTED_FILE = "injected.parquet"


def _by_name(ablations: Ablations) -> dict[str, Evaluation]:
    full = ablations.full
    named = {FULL: full}
    for each, answers in ablations.without.items():
        assert answers.logits is not None, "studies have data with labels, whose classes are few"
        named[str(each)] = replace(full, logits=torch.from_numpy(answers.logits))
    return named


def swept_answers(folders: Mapping[str, Path], names: Mapping[str, str]) -> dict[str, Ablations]:
    """The answers of a sweep, and of that with the mean of the out-of-domain texts, if any.

    Args:
        folders: of the results of both.
        names: of the test data, by role.
    """
    answers = ablations_in(folders["sweep"], names)
    if OOD_MEAN in folders:
        answers[OOD_MEAN] = ablations_in(folders[OOD_MEAN], names)["ood"]
    return answers


def ablations_in(folder: Path, names: Mapping[str, str]) -> dict[str, Ablations]:
    """The answers of a sweep, by role.

    Args:
        folder: of the sweep's results.
        names: of the test data, by role.
    """
    found = {}
    for role, file in SWEPT.items():
        named = load_answers(folder / file)
        if not named:  # swept on the other role alone
            continue
        full = named.pop(FULL)
        without = {ComponentSet.of([name]): answers for name, answers in named.items()}
        found[role] = Ablations.of(full, without, names[role], role)
    return found


def sweep_tables(
    inputs: Inputs,
    means: MeanActivations | None,
    kinds: Mapping[ComponentSet, str],
    *,
    fill: FillName = "mean",
    engine: Engine = "auto",
    precision: Precision = "float32",
    batch_size: int = 64,
    groups: Mapping[str, tuple[str, ...]] | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
    state: Path | None = None,
) -> tuple[dict[str, pd.DataFrame], list[Ablations]]:
    """Ablate sets on both kinds of data.

    The options are those of `mechcore.ablate`; ``kinds`` are the sets, with what to call each in
    the column ``kind``, ``groups`` are out-of-domain subsets by the name of their group, and
    ``state`` is the folder for the state files of an interruptible run.

    Returns:
        The tables ``ablation``, ``interactions``, ``interaction_stability`` and ``information``,
        this one unless the classes are a whole vocabulary, and, where all subsets of two or more
        components are among the sets, ``dividends`` and ``shapley``; and the answers themselves.

    Raises:
        InputError: there is no set, or a component is out of range.
    """
    if not kinds:
        raise InputError("ablation: no set; name at least one component (--components)")
    found = [
        ablate_on(
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
    tables = effect_tables(found, kinds, [], n_resamples, seed)
    options: dict[str, Any] = {"n_resamples": n_resamples, "seed": seed}
    if all(without.logits is not None for each in found for without in each.without.values()):
        told = [information_table(e, known_groups(e, groups or {}), **options) for e in found]
        tables["information"] = joined(told)
    alone = [s.components[0] for s in kinds if len(s) == 1]
    if 2 <= len(alone) <= MOST_EXACT and set(sets.subsets(alone)) <= set(kinds):
        tables["dividends"] = joined([dividends(each, **options) for each in found])
        tables["shapley"] = joined([shapley(each, **options) for each in found])
    return tables, found


def ablate_on(
    inputs: Inputs,
    means: MeanActivations | None,
    chosen: Sequence[Cut],
    role: str,
    fill: FillName,
    batch_size: int,
    **options: Any,
) -> Ablations:
    """`mechcore.ablate`, of components or paths, on the test data of a role."""
    return ablate(
        inputs.model,
        chosen,
        inputs.data[role],
        means,
        role=role,  # type: ignore[arg-type]
        fill=fill,
        class_names=inputs.config.class_names,
        batch_size=batch_size,
        **options,
    )


def effect_tables(
    found: Sequence[Ablations],
    kinds: Mapping[ComponentSet, str],
    others: Sequence[ComponentSet],
    n_resamples: int,
    seed: int,
) -> dict[str, pd.DataFrame]:
    """The tables ``ablation``, with the mean over ``others`` as one row, and ``interactions``."""
    where = ", of its layers" if any(kind == "single" for kind in kinds.values()) else ""
    average = (f"heads outside the core{where} (mean of {len(others)})", others)
    options: dict[str, Any] = {"n_resamples": n_resamples, "seed": seed}
    effects = [ablation_table(a, kinds, average=average, **options) for a in found]
    together = [interactions(a, **options) for a in found]
    stable = [interaction_stability(a, **options) for a in found]
    tables = {"ablation": effects, "interactions": together, "interaction_stability": stable}
    return {name: joined(each) for name, each in tables.items()}


def joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One table; empty ones have no types of their own to pass on."""
    return pd.concat([t for t in tables if not t.empty] or tables[:1], ignore_index=True)
