"""A whole study of the cognitive task: arms, analyses, verdicts, one folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import pandas as pd

from mechcore.errors import InputError
from mechcore.models import load_model
from mechcore.papers.bases import BASE, gathered, located, model_facts
from mechcore.papers.cognitive.ablation import AblateHeads
from mechcore.papers.cognitive.arms import MakeModel, Run, make_model, read_result
from mechcore.papers.cognitive.compare import (
    GAP,
    best_rate,
    compared,
    curve_table,
    samples_table,
    training_table,
)
from mechcore.papers.cognitive.decoding import Decode, check_trials
from mechcore.papers.cognitive.settings import Arm, CognitiveSettings
from mechcore.papers.cognitive.steps import MODEL, Analysis, Base
from mechcore.papers.cognitive.text import ANSWERS, PROMPT
from mechcore.papers.cognitive.trials import encode_trials
from mechcore.papers.cognitive.units import FollowUnits
from mechcore.papers.cognitive.verdicts import verdicts
from mechcore.study.engine import Results, Study
from mechcore.study.kinds import StudyKind
from mechcore.study.run import run_here
from mechcore.study.step import Job, Step, plain
from mechcore.study.store import Store
from mechcore.training import answering

KIND = "cognitive"

_BASE = Run("base")


class CognitiveStudy(Study):
    """A study, planned; which models are trained and analysed depends on those before them."""

    def __init__(self, settings: CognitiveSettings, store: Store) -> None:
        self.settings, self.store = settings, store
        self.base = Base.of(settings.base)
        # Once, so that a base that changes meanwhile stops the study.
        self._content = plain(self.base.content(store.hash_file))
        shared = (settings.task, settings.n_analysis)
        self.analyses: tuple[Analysis, ...] = (
            AblateHeads(*shared, settings.n_resamples, settings.sweep_precision),
            Decode(*shared, settings.decoded_layers, settings.shuffles),
            FollowUnits(*shared, settings.permutations, settings.alpha, settings.projection),
        )
        self._jobs: dict[tuple[str, Run], Job] = {}
        self._results: dict[Run, Mapping[str, Any]] = {}
        self._compared: list[Run] | None = None

    def jobs(self) -> Sequence[Job]:
        """See `mechcore.study.engine.Study`; the longest first."""
        models = [self.model(run) for run in self._runs()]
        return models + [self.analysis(a, run) for run in self._analysed() for a in self.analyses]

    @property
    def cost(self) -> float:
        """See `mechcore.study.engine.Study`."""
        jobs = [self.analysis(step, _BASE) for step in self.analyses] * self.settings.n_compared
        jobs += [self.model(_BASE)] * ("base" in self.settings.arms)
        for arm, n in self._trained():
            first, *others = self._grid(arm, n)  # those of other rates and seeds cost the same
            jobs += [self.model(first)] * (len(others) + len(self.settings.seeds))
        return sum(job.step.cost(job) for job in jobs)

    def check(self, pending: Sequence[Job], device: str) -> None:
        """Load the base and read trials with it, before hours of training."""
        if not pending:
            return
        settings = self.settings
        if settings.projection == "umap" and find_spec("umap") is None:
            raise InputError(
                "cognitive study: projection is 'umap', and umap-learn is not installed; install "
                "mechcore[umap], or use 'pca'"
            )
        n_layers = load_model(self.base.source).cfg.n_layers
        if max(settings.decoded_layers or (0,)) >= n_layers:
            raise InputError(
                f"cognitive study: decoded_layers is {list(settings.decoded_layers or ())}; the "
                f"base has {n_layers} layers: expected 0 to {n_layers - 1}"
            )
        model, tokenizer = make_model(self.base, Run("fine_tuned", seed=settings.seeds[0]), device)
        objective = answering(model, tokenizer, PROMPT, ANSWERS)
        encode_trials(settings.task.held_out(8), tokenizer, max_length=objective.max_length)
        check_trials(settings.task.held_out(settings.n_analysis))

    def results(self) -> Mapping[str, Results]:
        """See `mechcore.study.engine.Study`."""
        source = "the tiny base that comes with mechcore" if self.base.tiny else self.base.source
        model = model_facts(load_model(self.base.source), source)
        facts = {"model": model, "seeds": list(self.settings.seeds)}
        return {"": Results(tables=self.tables(), facts=facts)}

    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables of the finished study, by name."""
        runs, chosen = self._runs(), self.chosen()
        curve = curve_table(self._known(chosen))
        models = compared(curve)
        tables = {
            "cognitive_training": training_table(self._known(runs), chosen),
            "cognitive_curve": curve,
            "cognitive_samples": samples_table(curve, self.settings.threshold),
            "cognitive_models": models,
        }
        tables |= gathered(
            self.store,
            (
                (self.analysis(step, run), {"arm": run.arm, "seed": run.seed})
                for run in map(_run_of, models.to_dict("records"))
                for step in self.analyses
            ),
        )
        return tables | {"cognitive_verdicts": verdicts(tables, threshold_gap=GAP)}

    # -- models -----------------------------------------------------------------------------------

    def model(self, run: Run) -> Job:
        """The job that makes a model."""
        return self._job(MakeModel.of(self.settings, run), run)

    def analysis(self, step: Analysis, run: Run) -> Job:
        """The job of an analysis of a model."""
        return self._job(step, run, None if run == _BASE else self.model(run))

    def _job(self, step: Step, run: Run, model: Job | None = None) -> Job:
        if (step.kind, run) not in self._jobs:
            name = f"{step.kind} {run.name}"
            self._jobs[step.kind, run] = (
                Job(step, name, {}, {BASE: self.base}, {BASE: self._content})
                if model is None
                else Job(step, name, {MODEL: model}, {}, {})
            )
        return self._jobs[step.kind, run]

    def result(self, run: Run) -> Mapping[str, Any] | None:
        """What is known of a model; None if it is not made."""
        key = self.model(run).key
        if run not in self._results and self.store.has(key):
            self._results[run] = read_result(self.store.whole(key))
        return self._results.get(run)

    def chosen(self) -> list[Run]:
        """The base, and the runs at the best rates, as far as they are known."""
        chosen = [_BASE] if "base" in self.settings.arms else []
        for arm, n in self._trained():
            grid = self._grid(arm, n)
            known = self._known(grid)
            if len(known) == len(grid):
                rate = best_rate(known)
                chosen += [Run(arm, n, seed, rate) for seed in self.settings.seeds]
        return chosen

    def _known(self, runs: Sequence[Run]) -> list[Mapping[str, Any]]:
        return [result for run in runs if (result := self.result(run)) is not None]

    def _runs(self) -> list[Run]:
        grid = [run for arm, n in self._trained() for run in self._grid(arm, n)]
        return list(dict.fromkeys([*grid, *self.chosen()]))

    def _trained(self) -> list[tuple[Arm, int]]:
        """The trained arms at every number of trials, the largest first."""
        return [(arm, n) for n in reversed(self.settings.sizes) for arm in self.settings.trained]

    def _grid(self, arm: Arm, n: int) -> list[Run]:
        first = self.settings.seeds[0]
        return [Run(arm, n, first, rate) for rate in self.settings.training(arm).learning_rates]

    def _analysed(self) -> list[Run]:
        """The models that analyses compare; before all are made, the base."""
        if self._compared is None:
            known = self._known(self.chosen())
            if len(known) < self.settings.n_chosen:
                return [_BASE] if "base" in self.settings.arms else []
            self._compared = [_run_of(r) for r in compared(curve_table(known)).to_dict("records")]
        return self._compared


def _run_of(row: Mapping[Any, Any]) -> Run:
    if row["n"] == 0:
        return _BASE
    return Run(row["arm"], int(row["n"]), int(row["seed"]), float(row["learning_rate"]))


STUDY = StudyKind(CognitiveSettings, CognitiveStudy, located)

run = partial(run_here, KIND)
