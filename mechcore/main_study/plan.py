"""From the settings of the main study to its jobs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mechcore.data.task import ROLES
from mechcore.errors import InputError, MechcoreWarning
from mechcore.main_study.config import EMBEDDED, TRAINED, StudyConfig
from mechcore.pruning.rankings import RANKINGS
from mechcore.pruning.settings import READING, PruneSettings
from mechcore.registry import Registry
from mechcore.steps.ablation import Drops, Roles, Sweep, SweepOodMean
from mechcore.steps.analyses import (
    Accuracy,
    Answers,
    Core,
    Heads,
    Pictures,
    Search,
    Sizes,
    Smallest,
)
from mechcore.steps.analyses_config import Analyses, SizesConfig
from mechcore.steps.base import MainStep
from mechcore.steps.bench import MODEL, TRAINING
from mechcore.steps.config import TEST_ROLES, ModelConfig
from mechcore.steps.core_ablation import AblateCore
from mechcore.steps.flips import Flips
from mechcore.steps.halves import Halves
from mechcore.steps.inputs import check_sources, classes_of, data_name, groups_of, read_role
from mechcore.steps.masks import (
    AcceptMasks,
    Describe,
    FindMasks,
    Means,
    Train,
)
from mechcore.steps.paths import Dose, Paths
from mechcore.steps.sizes import checkpoint_series
from mechcore.steps.sources import CheckpointInput, DataInput, ModelInput, TrainedInput
from mechcore.study.fingerprints import Hasher, hash_file
from mechcore.study.step import Input, Job, in_order
from mechcore.subnetworks.halves import HALVES, WHOLE
from mechcore.training import TrainSettings
from mechcore.training.run_folder import FINAL, checkpoint_path
from mechcore.yaml_file import described

STEPS: Registry[type[MainStep]] = Registry("step", "mechcore.steps")
"""Steps that packages add to the main study; its settings name them under ``analyses: more``."""


@dataclass(frozen=True)
class Part:
    """One variant of a study; of no name if it is the only one.

    Jobs are by what they are to its results: ``means``, ``accuracy``, ``core`` and so on.
    """

    name: str
    config: StudyConfig
    jobs: Mapping[str, Job]
    masks: Sequence[Job]

    @property
    def results(self) -> list[Job]:
        """The jobs whose files are results of the study."""
        return [*self.jobs.values(), *self.masks]


@dataclass(frozen=True)
class Plan:
    """All jobs of a study, each once and after those that it needs."""

    config: StudyConfig
    parts: Sequence[Part]
    jobs: Sequence[Job]


def _of_masks(targets: Sequence[float], seeds: Sequence[int]) -> str:
    """What jobs on masks have in their names."""
    return f"sparsity {' '.join(map(repr, targets))}, seed {' '.join(map(str, seeds))}"


def make_plan(config: StudyConfig, hash_file: Hasher = hash_file) -> Plan:
    """Work out the jobs; of files only the content is read, of each once.

    Raises:
        InputError: a file or checkpoint is missing, or settings contradict each other.
    """
    once = cache(hash_file)
    parts = [_Planner(name, each, once).part() for name, each in config.each_variant().items()]
    return Plan(config, parts, in_order([job for part in parts for job in part.results]))


@dataclass(frozen=True)
class _Model:
    """A model that jobs are about, and the job that trains it, if any."""

    model: ModelInput
    training: Job | None = None

    @property
    def needs(self) -> dict[str, Job]:
        return {} if self.training is None else {TRAINING: self.training}


class _Planner:
    """Makes the jobs of one variant."""

    def __init__(self, name: str, config: StudyConfig, hash_file: Hasher) -> None:
        self.name, self.config, self.hash_file = name, config, hash_file
        check_sources(config.model, config.data, ROLES)
        self._data = config.data
        self._names = {role: data_name(role, config.model, config.data) for role in ROLES}
        self._test_names = {role: self._names[role] for role in TEST_ROLES}
        self._groups = groups_of(config.model, config.data)
        self._model = _Model(CheckpointInput(config.model))
        self._series: dict[Any, _Model] = {}
        self._half: int | None = None

    def part(self) -> Part:
        """The jobs of the whole study."""
        config, found = self.config, {}
        masks: list[Job] = []
        if config.training is not None:
            found["training"] = self._train(config.training)
        found["describe"] = self._job(
            Describe(self._names, config.analyses.sweep is not None), "inputs", ROLES
        )
        if config.sparsities:
            pruned, masks = self._subnetworks(config.sparsities, config.seeds, config.prune)
            found |= pruned
            smallest = Smallest(config.analyses.loss, config.n_resamples, config.data.seed)
            needs = found["accuracy"].needs
            found["smallest"] = self._pure(smallest, "smallest subnetwork", needs)
            needs = {f"{job.step.target!r} {job.step.seeds}": job for job in masks}  # type: ignore[attr-defined]
            found["core"] = self._pure(Core(), "core", needs)
            if config.analyses.halves:
                found["halves"] = self._halves(masks)
            found |= self._analyses(found)
        sizes = config.analyses.effective_size
        if config.checkpoints and sizes is not None:
            found["sizes"] = self._sizes(sizes)
        return Part(self.name, config, found, masks)

    def _about(self, **changed: Any) -> _Planner:
        """Makes the jobs of the same study on another model, or other data."""
        other = copy(self)
        vars(other).update(changed)
        return other

    def _job(
        self,
        step: MainStep,
        name: str,
        roles: Sequence[str] = (),
        needs: Mapping[str, Job] | None = None,
    ) -> Job:
        """A job about the model."""
        data: dict[str, Input] = {
            role: DataInput(role, self.config.model, self._data, self._half) for role in roles
        }
        return self._pure(
            step, name, {**(needs or {}), **self._model.needs}, {MODEL: self._model.model, **data}
        )

    def _pure(
        self,
        step: MainStep,
        name: str,
        needs: Mapping[str, Job],
        inputs: Mapping[str, Input] | None = None,
    ) -> Job:
        """A job; one without inputs works on results alone."""
        name = f"{self.name}: {name}" if self.name else name
        return Job.of(step, name, needs=needs, inputs=inputs, hash_file=self.hash_file)

    def _train(self, settings: TrainSettings) -> Job:
        """The training, on all training data; from now on jobs are about what comes of it."""
        base, data = self.config.model, replace(self._data, max_train=None)
        with warnings.catch_warnings():  # they come when the examples are used
            warnings.simplefilter("ignore", MechcoreWarning)
            n = len(read_role("train", base, data, labelled=True)[0])
        steps = {step: checkpoint_path(Path(), step).name for step in settings.checkpoint_steps(n)}
        steps[settings.total_steps(n)] = FINAL
        classes = () if base.class_names is not None else classes_of(base, data)
        step = Train(settings, max(steps), self._names, tuple(classes))
        job = self._about(_data=data)._job(step, "training", ROLES)
        # Its classes have names of their own from now on.
        model = replace(base, class_names=None, revision=None, allow_pickle=False)
        self._series = {
            step: _Model(TrainedInput(model, name), job) for step, name in steps.items()
        }
        self._model = self._series[max(steps)]
        return job

    def _subnetworks(
        self,
        sparsities: Sequence[float],
        seeds: Sequence[int],
        schedule: PruneSettings,
        of: str = "",
    ) -> tuple[dict[str, Job], list[Job]]:
        """Means and accuracies, and masks; ``of`` is what the jobs' names end with."""
        means, found = self._pruned(sparsities, seeds, schedule, of)
        needs = {f"full {role}": self._answers("full model", role, of, {}) for role in TEST_ROLES}
        for name, masks in found.items():
            needs[f"masks {name}"] = masks
            for role in TEST_ROLES:
                needs[f"answers {role} {name}"] = self._answers(
                    name, role, of, {"means": means, "subnetworks": masks}
                )
        step = Accuracy(self._test_names, self._groups)
        accuracy = self._pure(step, f"accuracies{of}", needs)
        return {"means": means, "accuracy": accuracy}, [*found.values()]

    def _pruned(
        self, sparsities: Sequence[float], seeds: Sequence[int], schedule: PruneSettings, of: str
    ) -> tuple[Job, dict[str, Job]]:
        """Means, and masks by the names of their sparsity and seeds.

        A ranking has masks of all sparsities at once, and where it has no chance one for all seeds.
        """
        ranking = RANKINGS.get(self.config.method)
        chance = ranking is None or ranking.seed == "masks"
        n = self.config.seeds_per_job if chance else len(seeds)
        means = self._job(Means(), f"means{of}", ("train",))
        found = {}
        for target in sorted(sparsities):
            for chunk in (sorted(seeds)[i : i + n] for i in range(0, len(seeds), n)):
                name = _of_masks([target], chunk)
                targets = [target] if ranking is None else sorted(sparsities)
                trained = self._trained(targets, chunk, schedule, means, of)
                found[name] = self._masks(name, target, chunk, schedule, trained, of)
        return means, found

    def _halves(self, masks: Sequence[Job]) -> Job:
        """Subnetworks of each half of the training data, beside those of all of it."""
        config = self.config
        needs = {f"{WHOLE}: {job.name}": job for job in masks}
        for half, data in enumerate(HALVES, start=1):
            own, of = self._about(_half=half), f", {data}"
            _, found = own._pruned(config.sparsities, config.seeds, config.prune, of)
            needs |= {f"{data}: {name}": job for name, job in found.items()}
        return self._pure(Halves(), "cores of halves of the training data", needs)

    def _trained(
        self,
        targets: Sequence[float],
        seeds: Sequence[int],
        schedule: PruneSettings,
        means: Job,
        of: str,
    ) -> Job:
        """Masks wherever they end; a ranking gives those of all targets at once."""
        config = self.config
        train = FindMasks(config.method, tuple(targets), tuple(seeds), schedule, config.data.seed)
        name = _of_masks(targets, seeds)
        return self._job(train, f"prune {name}{of}", ("train",), {"means": means})

    def _masks(
        self,
        name: str,
        target: float,
        seeds: Sequence[int],
        schedule: PruneSettings,
        trained: Job,
        of: str,
    ) -> Job:
        reading = {each: getattr(schedule, each) for each in (*READING, "steps", "lr_lambda")}
        step = AcceptMasks(self.config.method, target, tuple(seeds), **reading)
        return self._pure(step, f"masks {name}{of}", {"trained": trained})

    def _answers(self, name: str, role: str, of: str, needs: Mapping[str, Job]) -> Job:
        step = Answers(role, self.config.batch_size)
        return self._job(step, f"answers {role}, {name}{of}", (role,), needs)

    def _analyses(self, found: Mapping[str, Job]) -> dict[str, Job]:
        config, wanted = self.config, self.config.analyses
        _check_fill(wanted)
        known = dict(found)
        seed, names, n_resamples = config.data.seed, self._test_names, config.n_resamples
        ablating: Any = {"seed": seed, "fill": wanted.fill, "batch_size": config.batch_size}

        def add(
            what: str,
            step: MainStep,
            name: str,
            roles: Sequence[str] | None = None,
            more: Sequence[str] = (),
        ) -> None:
            needs = {need: self._known(known, need, name) for need in (*step.needs, *more)}
            known[what] = self._job(step, name, step.roles if roles is None else roles, needs)

        if wanted.heads is not None:
            sample = {"max_examples": wanted.heads.max_examples, "seed": config.data.seed}
            add("heads", Heads(**sample), "head categories")
            add("pictures", Pictures(**sample), "pictures of attention")
        if wanted.sweep is not None:
            name = f"ablation of {wanted.sweep} one by one"
            add("sweep", Sweep(components=wanted.sweep, **ablating), name)
            swept = {"sweep": known["sweep"]}
            if wanted.both_means:
                own = self._job(Means(), "means of out-of-domain texts", ("ood",))
                again = SweepOodMean(components=wanted.sweep, **ablating)
                means = {"means": own, "train means": known["means"]}
                name += ", out-of-domain mean"
                swept[again.kind] = self._job(again, name, again.roles, means)
            drops = Drops(names, self._groups, n_resamples, seed)
            known["drops"] = self._pure(drops, "drops, one by one", swept)
            roles, judging = Roles(wanted.roles, names, seed), {**swept, "drops": known["drops"]}
            known["roles"] = self._pure(roles, "roles of components", judging)
            add("flips", Flips(names), "answers that flip")
        if wanted.ablation is not None:
            core = AblateCore(
                **ablating, names=names, n_resamples=n_resamples, **vars(wanted.ablation)
            )
            more = ("sweep",) if "sweep" in known else ()
            add("ablate", core, "ablation of the core", more=more)
        if wanted.paths is not None:
            paths = Paths(
                **ablating,
                names=names,
                groups=self._groups,
                n_resamples=n_resamples,
                n_controls=wanted.paths.controls,
                max_examples=wanted.paths.max_examples,
                least=wanted.roles.least,
            )
            there = sorted(known.keys() & {"roles", "sweep"})
            add("paths", paths, "readers of the core", more=there)
            if "roles" in known and wanted.paths.dose:
                sizes = (n_resamples, wanted.paths.max_examples, wanted.paths.dose)
                add("dose", Dose(seed, config.batch_size, wanted.fill, *sizes), "doses")
        if wanted.search is not None:
            search = Search(**ablating, n_resamples=n_resamples, how=wanted.search)
            add("search", search, "search for superadditive sets", (wanted.search.role,))
        for name, settings in wanted.more.items():
            add(name, _added(name, settings), name)
        without = {*found, "heads", "sweep"}  # others have the tables of the last two
        return {what: job for what, job in known.items() if what not in without}

    def _known(self, known: Mapping[str, Job], need: str, name: str) -> Job:
        if need not in known:
            made = ", ".join(known)
            raise InputError(
                f"{name}: needs {need!r}, which is not among this study's jobs: {made}"
            )
        return known[need]

    def _sizes(self, sizes: SizesConfig) -> Job:
        """Effective sizes, from all checkpoints; jobs on the model itself occur again."""
        accuracies, series = {}, self._checkpoints()
        seeds = self.config.seeds if sizes.seeds is None else sizes.seeds
        schedule = self.config.prune if sizes.prune is None else sizes.prune
        for step, model in series.items():
            own, of = self._about(_model=model), f", checkpoint {step}"
            found, _ = own._subnetworks(sizes.sparsities, seeds, schedule, of)
            accuracies[str(step)] = found["accuracy"]
        step = Sizes(sizes.tolerance, self._groups, tuple(series))
        return self._pure(step, "effective size", accuracies)

    def _checkpoints(self) -> Mapping[Any, _Model]:
        given = self.config.checkpoints
        if given == (TRAINED,):
            return self._series
        paths = () if given == (EMBEDDED,) else given
        series: dict[Any, ModelConfig] = checkpoint_series(paths, self.config.model)
        return {step: _Model(CheckpointInput(model)) for step, model in series.items()}


def _check_fill(wanted: Analyses) -> None:
    """Make sure that all analyses can run with the fill."""
    if wanted.fill not in ("mean", "zero") and wanted.search is not None:
        raise InputError(
            f"analyses: fill is {wanted.fill!r}, which a search for superadditive sets cannot "
            "predict with; expected mean or zero: leave search out"
        )
    if wanted.fill == "counterfactual" and wanted.paths is not None:
        raise InputError(
            "analyses: fill is 'counterfactual', with which paths cannot be cut: say paths: null "
            "(--no-paths), or take another fill"
        )


def _added(name: str, settings: Mapping[str, Any]) -> MainStep:
    """A step that a package added, with its settings checked."""
    step = STEPS[name]
    try:
        return TypeAdapter(step).validate_python(dict(settings))
    except ValidationError as error:
        raise InputError(f"analyses: more: {name}: {described(error, step)}") from error
