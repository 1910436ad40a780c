"""Plans the jobs of the main study from its settings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from mechcore.ablation.settings import RoleSettings
from mechcore.analyses import ANALYSES, question_names
from mechcore.analyses.accuracy import Accuracy
from mechcore.analyses.data import Describe
from mechcore.analyses.effective_size import EffectiveSize
from mechcore.analyses.training import Train
from mechcore.data.task import SPLITS
from mechcore.errors import InputError, MechcoreWarning
from mechcore.main_study.config import EMBEDDED, TRAINED, StudyConfig
from mechcore.pruning import METHODS
from mechcore.pruning.methods import Ranking
from mechcore.pruning.settings import PruneSettings
from mechcore.settings import OF_STUDY
from mechcore.steps.answers import MASKED, Answers
from mechcore.steps.base import MainStep
from mechcore.steps.bench import MODEL, TRAINING, DataInput, ModelInput
from mechcore.steps.config import TEST_SPLITS, ModelConfig
from mechcore.steps.inputs import (
    check_sources,
    classes_of,
    data_name,
    groups_of,
    read_split,
    sources_of,
)
from mechcore.steps.masks import AcceptMasks, FindMasks, Means
from mechcore.steps.sizes import checkpoint_series
from mechcore.study.step import Hasher, Input, Job, hash_file, in_order
from mechcore.subnetworks.halves import HALVES
from mechcore.training import TrainSettings
from mechcore.training.run_folder import FINAL, checkpoint_path


@dataclass(frozen=True)
class Part:
    """One variant of a study, or all of it, with jobs by the name under which others need them."""

    name: str
    config: StudyConfig
    jobs: Mapping[str, Job]
    masks: Sequence[Job]

    @property
    def results(self) -> list[Job]:
        """The jobs whose files are results of the study."""
        own = (job for job in self.jobs.values() if not getattr(job.step, "for_others", False))
        return [*own, *self.masks]


@dataclass(frozen=True)
class Plan:
    """All jobs of a study, each listed once and after the jobs it needs."""

    parts: Sequence[Part]
    jobs: Sequence[Job]


def make_plan(config: StudyConfig, hash_file: Hasher = hash_file) -> Plan:
    """Plan the jobs; raises `InputError` if a file is missing or settings contradict each other."""
    once = cache(hash_file)
    parts = [Planner(name, own, once).part() for name, own in config.each_variant().items()]
    return Plan(parts, in_order([job for part in parts for job in part.results]))


def _series(checkpoints: Sequence[str], model: ModelConfig) -> dict[Any, ModelConfig]:
    return checkpoint_series(() if checkpoints == (EMBEDDED,) else checkpoints, model)


def _asked(config: StudyConfig) -> list[str]:
    if others := [name for name in config.only if name not in question_names()]:
        ANALYSES[others[0]]  # raises with suggestions if it is unknown
        expected = f"expected some of {', '.join(question_names())}"
        raise InputError(f"only: {others[0]} cannot be run on its own; {expected}")
    names = [*(config.only or question_names())]
    for name in names:  # grows on the way
        analysis = getattr(config.analyses, name, None) or ANALYSES[name]()
        needs = [*analysis.wants(), *analysis.may_read()]
        names += [need for need in needs if need in ANALYSES and need not in names]
    return names


def _with_its_model(config: StudyConfig) -> StudyConfig:
    """The study with its last checkpoint as its model if it names none."""
    sizes = EffectiveSize.kind in config.only and config.model.source is None
    if sizes and not config.checkpoints:
        return replace(config, checkpoints=(EMBEDDED,))
    of_others = config.checkpoints not in ((), (EMBEDDED,), (TRAINED,))
    data = config.data
    with_data = data.task is not None or any(getattr(data, split) for split in SPLITS)
    if config.model.source is not None or not of_others or not (sizes or with_data):
        return config
    return replace(config, model=[*_series(config.checkpoints, config.model).values()][-1])


class Planner:
    """Makes the jobs of one variant.

    Attributes:
        fill: what replaces an ablated output.
        splits: the available splits, of ``"train"``, ``"id"`` and ``"ood"``.
        known: the jobs planned so far, by the name under which others need them.
        several: the same by the name of a group of jobs.
    """

    def __init__(self, name: str, config: StudyConfig, hash_file: Hasher) -> None:
        config = _with_its_model(config)
        self.name, self.config, self.hash_file = name, config, hash_file
        check_sources(config.model, config.data, ())
        self.fill = config.analyses.fill
        self.asked = _asked(config)
        own = config.model.source is not None
        self.splits = [split for split in SPLITS if not own or sources_of(split, config.data)]
        self.known: dict[str, Job] = {}
        self.several: dict[str, dict[str, Job]] = {}
        self._data = config.data
        self._names = {split: data_name(split, config.model, config.data) for split in SPLITS}
        self._groups = groups_of(config.model, config.data)
        answers = any(ANALYSES[name].answers for name in self.asked)
        self._model = ModelInput(config.model, answers)
        self._series: dict[Any, ModelInput] = {}
        self._half: int | None = None
        self._method = config.method
        self._matched: Mapping[str, Job] = {}
        self._of = ""

    def part(self) -> Part:
        """The jobs of the whole study."""
        config = self.config
        if config.training is not None:
            self.known[TRAINING] = self._train(config.training)
        if config.target_sparsities:
            self._find_subnetworks()
        self._check_fill()
        for name in question_names():
            self._analyse(name)
        known, masks = self._wanted()
        jobs = in_order([*known.values(), *masks])
        splits = [split for split in SPLITS if any(split in job.inputs for job in jobs)]
        check_sources(config.model, config.data, splits)
        describe = Describe(self._names, config.analyses.sweep is not None)
        known = {"describe": self.job(describe, splits=splits), **known}
        return Part(self.name, config, known, masks)

    def _wanted(self) -> tuple[Mapping[str, Job], list[Job]]:
        config, masks = self.config, [*self.several.get("masks", {}).values()]
        if not config.only:
            return self.known, masks
        if lacking := [name for name in config.only if name not in self.known]:
            raise InputError(
                f"only: {lacking[0]} has no job in this study; expected target sparsities, or, for "
                "effective_size, checkpoints (--checkpoints)"
            )
        keys = {job.key for job in in_order([self.known[name] for name in config.only])}
        known = {what: job for what, job in self.known.items() if job.key in keys}
        return known, [job for job in masks if job.key in keys]

    def _check_fill(self) -> None:
        wanted = self.config.analyses
        on = self.config.only or [n for n in ANALYSES if getattr(wanted, n, None) is not None]
        without = [name for name in on if not ANALYSES[name].works_with(self.fill)]
        if without and self.config.target_sparsities:
            raise InputError(
                f"analyses: {' and '.join(without)} cannot use the fill {self.fill!r}; "
                f"choose another fill, or leave them out (--without {','.join(without)})"
            )

    def _analyse(self, name: str) -> None:
        kind, config = ANALYSES[name], self.config
        analysis = getattr(config.analyses, name, None)
        if analysis is None and not kind.always and name not in config.only:
            return
        analysis = analysis or kind()
        there = {*self.known, *self.several}
        wanted = [*analysis.wants(), *(() if config.only else analysis.beside)]
        may_lack = {*ANALYSES, "means", "masks", "answers"}  # these three without sparsities
        off = [n for n in wanted if n not in there and n in may_lack]
        if off and (kind.asked or name in config.only):
            raise InputError(
                f"analyses: {name} needs {off[0]}, which this study leaves out; include both or "
                "neither"
            )
        if not off:
            for what, job in analysis.jobs(self):
                self.known[what] = job

    def _about(self, **changed: Any) -> Planner:
        other = copy(self)
        vars(other).update(known=dict(self.known), several=dict(self.several), **changed)
        return other

    def job(
        self,
        step: MainStep,
        *,
        needs: Mapping[str, Job] | None = None,
        splits: Sequence[str] | None = None,
        label: str = "",
    ) -> Job:
        """A job for a step with the study's values; ``needs`` are added, others replace its own."""
        label = label or step.label or step.kind
        every = {**self.known, **(needs or {})}
        wanted: dict[str, Job] = {}
        for need in step.wants():
            if need not in {*self.several, *every}:
                why = f"which is not among this study's jobs: {', '.join(every)}"
                raise InputError(f"{label}: needs {need!r}, {why}")
            wanted |= self.several[need] if need in self.several else {need: every[need]}
        beside = [name for name in step.beside if name in self.asked]
        wanted |= {need: every[need] for need in (*step.may_read(), *beside) if need in every}
        wanted |= needs or {}
        data = step.splits if splits is None else splits
        inputs: dict[str, Input] = {
            split: DataInput(split, self.config.model, self._data, self._half) for split in data
        }
        if inputs:
            inputs = {MODEL: self._model, **inputs}
            if self._model.trained:
                wanted[TRAINING] = self.known[TRAINING]
        label = f"{self.name}: {label}" if self.name else label
        filled, hash_file = self._filled(step), self.hash_file
        return Job.of(filled, label + self._of, needs=wanted, inputs=inputs, hash_file=hash_file)

    def _filled(self, step: MainStep) -> MainStep:
        config = self.config
        of_study = {
            "seed": config.data.seed,
            "fill": self.fill,
            "batch_size": config.batch_size,
            "n_resamples": config.n_resamples,
            "names": {split: self._names[split] for split in TEST_SPLITS},
            "groups": self._groups,
            "least": (config.analyses.roles or RoleSettings()).least,
        }
        own = [f.name for f in fields(step) if OF_STUDY in f.metadata]  # type: ignore[arg-type]
        left_open = {name: of_study[name] for name in own if getattr(step, name) is None}
        return replace(step, **left_open)  # type: ignore[type-var]

    def means(self, split: str) -> Job:
        """Mean activations on the data of a split."""
        of = "" if split == "train" else f" of {split} texts"
        return self.job(Means(), splits=(split,), label=f"means{of}")

    def _train(self, settings: TrainSettings) -> Job:
        """Plan training on all training data; later jobs use the trained model."""
        base, data = self.config.model, replace(self._data, max_train=None)
        check_sources(base, data, SPLITS)
        with warnings.catch_warnings():  # they are shown when the examples are used
            warnings.simplefilter("ignore", MechcoreWarning)
            n = len(read_split("train", base, data, labelled=True)[0])
        steps = {step: checkpoint_path(Path(), step).name for step in settings.checkpoint_steps(n)}
        steps[settings.total_steps(n)] = FINAL
        classes = () if base.class_names is not None else classes_of(base, data)
        step = Train(settings, max(steps), self._names, tuple(classes))
        job = self._about(_data=data).job(step)
        # The trained model names its own classes.
        model = replace(base, class_names=None, revision=None, allow_pickle=False)
        self._series = {step: ModelInput(model, trained=name) for step, name in steps.items()}
        self._model = self._series[max(steps)]
        return job

    def _find_subnetworks(self) -> None:
        """Plan means, masks, and the answers of the model and its subnetworks."""
        masks = self._find_masks()
        means, answers = self.known["means"], dict[str, Job]()
        needs: dict[str, dict[str, Job]] = {"full model": {}}
        needs |= {name: {"means": means, MASKED: job} for name, job in masks.items()}
        for name, needed in needs.items():
            for split in TEST_SPLITS:
                what, step = f"{split}, {name}", Answers(split, self.config.batch_size)
                label = f"answers {what}"
                answers[what] = self.job(step, splits=(split,), needs=needed, label=label)
        self.several |= {"masks": masks, "answers": {**masks, **answers}}

    def _find_masks(self) -> dict[str, Job]:
        """Plan masks, by sparsity and seeds; a ranking gives all sparsities at once."""
        method, schedule, finder = self._method, self.config.prune, METHODS[self._method]
        seeds, targets = sorted(self.config.seeds), tuple(sorted(self.config.target_sparsities))
        ranking = isinstance(finder, Ranking)
        chance = not isinstance(finder, Ranking) or finder.seed == "masks"
        n = self.config.seeds_per_job if chance else len(seeds)
        self.known["means"] = self.means("train")
        masks = {}
        for target in targets:
            for chunk in (tuple(seeds[i : i + n]) for i in range(0, len(seeds), n)):
                name, at_once = _of_masks([target], chunk), targets if ranking else (target,)
                needs = {"means": self.known["means"]}
                if self._matched:
                    needs["trained"] = self._matched[name]
                find = FindMasks(method, at_once, chunk, schedule, self.config.data.seed)
                label = f"prune {_of_masks(at_once, chunk)}"
                trained = self.job(find, splits=("train",), needs=needs, label=label)
                accept = AcceptMasks(method, target, chunk, schedule)
                masks[name] = self.job(accept, needs={"trained": trained}, label=f"masks {name}")
        return masks

    def masks_of_halves(self) -> dict[str, Job]:
        """Subnetworks of each half of the training data, see `mechcore.steps.masks.half_of`."""
        masks: dict[str, Job] = {}
        for half, data in enumerate(HALVES, start=1):
            of_half = self._about(_half=half, _of=f", {data}")._find_masks()
            masks |= {f"{data}: {name}": job for name, job in of_half.items()}
        return masks

    def by_methods(self, methods: Sequence[str]) -> dict[str, Job]:
        """Subnetworks by each of several methods, and what they and the full model answer."""
        answers, trained = dict[str, Job](), dict[str, Job]()
        for name in methods:
            METHODS[name]  # raises with suggestions if it is unknown
        for method in sorted(methods, key=METHODS.names().index):
            matched = trained if method == "layer-matched" else {}
            own = self._about(_method=method, _matched=matched, _of=f", {method}")
            own._find_subnetworks()
            trained = own.several["masks"] if method == "l0" else trained
            answers |= {f"{method}: {name}": job for name, job in own.several["answers"].items()}
        return answers

    def at_checkpoints(
        self,
        target_sparsities: Sequence[float],
        seeds: Sequence[int] | None,
        prune: PruneSettings | None,
    ) -> dict[Any, Job]:
        """Accuracies of each checkpoint and its subnetworks; None takes the study's setting."""
        config, accuracies, models = self.config, {}, self._series
        if config.checkpoints != (TRAINED,):
            named = _series(config.checkpoints, config.model) if config.checkpoints else {}
            models = {step: ModelInput(model) for step, model in named.items()}
        runs: dict[str, Any] = {"target_sparsities": tuple(target_sparsities)}
        runs |= {"seeds": config.seeds if seeds is None else tuple(seeds)}
        config = replace(config, **runs, prune=prune or config.prune)
        for step, model in models.items():
            own = self._about(config=config, _model=model, _of=f", checkpoint {step}")
            own._find_subnetworks()
            accuracies[step] = own.job(Accuracy())
        return accuracies


def _of_masks(target_sparsities: Sequence[float], seeds: Sequence[int]) -> str:
    return f"sparsity {' '.join(map(repr, target_sparsities))}, seed {' '.join(map(str, seeds))}"
