"""The main study as the engine does it: what is planned, checked before, and written after."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mechcore.analyses.base import Analysis
from mechcore.analyses.training import Train
from mechcore.components import ModelShape
from mechcore.main_study.config import StudyConfig
from mechcore.main_study.config_file import located, read_content
from mechcore.main_study.plan import Part, Plan, make_plan
from mechcore.settings import changed
from mechcore.steps.base import FACTS_FILE, MISSING_FILE
from mechcore.steps.bench import CHECKPOINTS, bench_of, trained_path
from mechcore.steps.fitting import fitting_of
from mechcore.steps.inputs import resolved
from mechcore.steps.masks import FindMasks
from mechcore.study.engine import Results, Study
from mechcore.study.executors import Local
from mechcore.study.kinds import StudyKind
from mechcore.study.step import Job, in_order, plain
from mechcore.study.store import Store

_NOTES = (FACTS_FILE, MISSING_FILE, CHECKPOINTS)
"""Files that are for other jobs, or too large to copy."""


class MainStudy(Study):
    """The main study, planned."""

    def __init__(self, config: StudyConfig, store: Store) -> None:
        self.store = store
        self.plan: Plan = make_plan(config, store.hash_file)
        self.folders = [part.name for part in self.plan.parts]

    def jobs(self) -> Sequence[Job]:
        """See `mechcore.study.engine.Study`."""
        return self.plan.jobs

    def check(self, pending: Sequence[Job], device: str) -> None:
        """Open each model that pending jobs are about, or all that its training reads."""
        keys = {job.key for job in pending}
        bench = bench_of(self.store, device)
        for part in self.plan.parts:
            training, described = part.jobs.get("training"), part.jobs["describe"]
            if training is not None and training.key in keys:
                assert isinstance(training.step, Train)
                fitting_of(training, training.step.training, device)
            elif any(job.contents.get("model") == described.contents["model"] for job in pending):
                inputs = bench.inputs(described)
                for step in (job.step for job in in_order(part.results) if job.key in keys):
                    if isinstance(step, FindMasks):
                        step.check_targets(ModelShape.of(inputs.model))
                for step in (job.step for job in part.jobs.values() if job.key in keys):
                    if isinstance(step, Analysis):
                        step.check_inputs(inputs)

    def results(self) -> Mapping[str, Results]:
        """See `mechcore.study.engine.Study`."""
        return {
            part.name: Results(
                files=self._files(part),
                facts=self._facts(part),
                set_by=dict.fromkeys(self._own_settings(part), "variants"),
            )
            for part in self.plan.parts
        }

    def _own_settings(self, part: Part) -> list[str]:
        """Names of the settings in which a variant differs from the rest of its file."""
        differ = changed(self.plan.config, part.config)
        return [name for name in differ if name.split(".")[0] not in ("variants", "resources")]

    def _files(self, part: Part) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for job in part.results:
            folder = self.store.whole(job.key)
            names = self.store.manifest(job.key).files
            found |= {n: folder / n for n in names if Path(n).parts[0] not in _NOTES}
        return found

    def _facts(self, part: Part) -> dict[str, Any]:
        described = part.jobs["describe"]
        text = (self.store.whole(described.key) / FACTS_FILE).read_text(encoding="utf-8")
        facts = json.loads(text)
        base = resolved(part.config.model).source
        origin: dict[str, Any] = {"source": base}
        if "training" in part.jobs:  # one that the study trained lies in the store
            origin = {"source": str(trained_path(self.store, described)), "base": base}
        facts["model"] = {**origin, **facts["model"]}
        config = part.config
        return {
            **facts,
            "seeds": list(config.seeds),
            "sparsities": list(config.sparsities),
            "settings": plain(config),
        }


class _Kind(StudyKind[StudyConfig]):
    def read(self, content: Any, name: str) -> StudyConfig:
        return read_content(content, name)


STUDY = _Kind(
    StudyConfig,
    MainStudy,
    located,
    lambda config: Local(cpus=config.resources.cpus, device=config.resources.place),
)
