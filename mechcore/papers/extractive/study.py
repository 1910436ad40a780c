"""A whole study of extractive structures: its jobs and its results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from mechcore.errors import InputError
from mechcore.papers.bases import BASE, CHECKPOINT, Checkpoint, gathered, located, model_facts
from mechcore.papers.extractive.evidence import TASKS
from mechcore.papers.extractive.experiments.base import Base, TrainBase
from mechcore.papers.extractive.experiments.freezing import Freezing
from mechcore.papers.extractive.experiments.grafting import Grafting
from mechcore.papers.extractive.experiments.ordering import Ordering
from mechcore.papers.extractive.experiments.recall import CHOSEN, Ocr
from mechcore.papers.extractive.experiments.score_maps import Localization, Scores
from mechcore.papers.extractive.settings import BY_TASK, ExtractiveSettings, TuneSettings
from mechcore.papers.extractive.verdicts import verdicts
from mechcore.study.engine import Results, Study
from mechcore.study.kinds import StudyKind
from mechcore.study.run import run_here
from mechcore.study.step import Input, Job, Step
from mechcore.study.store import Store
from mechcore.worlds.small_gpt2 import SMALL_LAYERS

KIND = "extractive"

_ORDER = (BASE, "ocr", "freezing", "ordering", "localization", "grafting", "scores")
"""Kinds of jobs: bases and long trainings first."""


class ExtractiveStudy(Study):
    """A study, planned; scores and freezing are known once OCR has chosen how they are trained."""

    def __init__(self, settings: ExtractiveSettings, store: Store) -> None:
        self.settings, self.store = settings, store
        base, steps = settings.base, settings.base_steps
        self._inputs: dict[str, Input] = {} if base is None else {BASE: Checkpoint(base)}
        self._contents = {k: given.content(store.hash_file) for k, given in self._inputs.items()}
        self._bases: dict[int, Job] = {}
        if base is None:
            self._bases = {seed: self._job(TrainBase(seed, steps), seed) for seed in settings.seeds}
        self._known = [job for seed in settings.seeds for job in self._independent(seed)]
        self._following: dict[str, list[Job]] = {}

    def jobs(self) -> Sequence[Job]:
        """See `mechcore.study.engine.Study`."""
        known = [*self._bases.values(), *self._known]
        for job in self._known:
            if isinstance(job.step, Ocr):
                if job.key not in self._following and self.store.has(job.key):
                    text = (self.store.whole(job.key) / CHOSEN).read_text(encoding="utf-8")
                    chosen = TuneSettings(**json.loads(text))
                    self._following[job.key] = self._after(job.step, chosen)
                known += self._following.get(job.key, [])
        return sorted(known, key=lambda job: _ORDER.index(job.step.kind))

    @property
    def cost(self) -> float:
        """See `mechcore.study.engine.Study`; what OCR did not choose yet is taken for its last."""
        jobs = list(self.jobs())
        for job in self._known:
            if isinstance(job.step, Ocr) and job.key not in self._following:
                jobs += self._after(job.step, job.step.grid[-1])
        return sum(job.step.cost(job) for job in jobs)

    def check(self, pending: Sequence[Job], device: str) -> None:
        """Load the base and read all facts with it, before hours of training."""
        settings = self.settings
        if not pending:
            return
        if settings.base is None:
            _check_cuts(settings, SMALL_LAYERS)
            return
        base = self._base(settings.base, device)
        _check_cuts(settings, base.model.cfg.n_layers)
        for seed in settings.seeds:
            if set(settings.experiments) & set(BY_TASK):
                base.tasks(seed)
            if set(settings.experiments) - set(BY_TASK):
                base.ordering(seed)

    def results(self) -> Mapping[str, Results]:
        """See `mechcore.study.engine.Study`."""
        tables = gathered(self.store, ((job, {}) for job in self.jobs()))
        tables["extractive_verdicts"] = verdicts(tables)
        source = named = self.settings.base
        if source is None:
            base = self._bases[self.settings.seeds[0]]
            source = str(self.store.whole(base.key) / CHECKPOINT)
            named = "tiny decoders, one for each seed, pretrained on a made-up world"
        model = model_facts(self._base(source).model, str(named))
        return {"": Results(tables, facts={"seeds": list(self.settings.seeds), "model": model})}

    def _base(self, source: str, device: str = "cpu") -> Base:
        settings = self.settings
        backend, precision = settings.backend, settings.precision
        return Base.load(source, backend, precision, device, tiny=settings.base is None)

    def _independent(self, seed: int) -> list[Job]:
        """The experiments of a seed that need no other's result."""
        settings, how = self.settings, (self.settings.backend, self.settings.precision)
        grid, grafted = tuple(settings.grid(seed)), replace(settings.grafting, seed=seed)
        steps: list[tuple[Step, str]] = [
            *((Ocr(*how, task, grid, settings.n_resamples), f" {task}") for task in TASKS),
            *(
                (Ordering(*how, tuning), " with replay" if tuning.replay else "")
                for tuning in settings.orderings(seed)
            ),
            (Localization(*how, grafted, settings.compat), ""),
            (Grafting(*how, grafted), ""),
        ]
        return [self._job(s, seed, what) for s, what in steps if s.kind in settings.experiments]

    def _after(self, ocr: Ocr, tuning: TuneSettings) -> list[Job]:
        settings, how = self.settings, (ocr.backend, ocr.precision, tuning, ocr.task)
        freezing = Freezing(*how, settings.cuts)
        scores = Scores(*how, settings.counterfactuals, settings.compat)
        given = [step for step in (freezing, scores) if step.kind in settings.experiments]
        return [self._job(step, tuning.seed, f" {ocr.task}") for step in given]

    def _job(self, step: Step, seed: int, what: str = "") -> Job:
        needs = {BASE: self._bases[seed]} if seed in self._bases else {}
        return Job(step, f"{step.kind}{what} seed={seed}", needs, self._inputs, self._contents)


def _check_cuts(settings: ExtractiveSettings, n_layers: int) -> None:
    if max(settings.cuts or (0,)) >= n_layers:
        raise InputError(
            f"extractive study: cuts is {list(settings.cuts or ())}; the base has {n_layers} "
            f"layers: expected 1 to {n_layers - 1}"
        )
    if n_layers < 2 and "freezing" in settings.experiments:
        raise InputError(
            "extractive study: the base has a single layer, but freezing needs early and late "
            "ones; leave freezing out of experiments"
        )


STUDY = StudyKind(ExtractiveSettings, ExtractiveStudy, located)


run = partial(run_here, KIND)
