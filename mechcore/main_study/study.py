"""The main study as the engine runs it: reading, planning, checks and result files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mechcore.analyses.base import Analysis
from mechcore.analyses.roles import Roles
from mechcore.analyses.training import Train
from mechcore.components import ModelShape
from mechcore.data.task import SPLITS
from mechcore.errors import InputError
from mechcore.main_study.config import EMBEDDED, TRAINED, StudyConfig
from mechcore.main_study.plan import Part, Plan, make_plan
from mechcore.report.run_folder import read_run
from mechcore.settings import entries
from mechcore.steps.base import FACTS_FILE, MISSING_FILE
from mechcore.steps.bench import CHECKPOINTS, bench_of, trained_path
from mechcore.steps.fitting import training_of
from mechcore.steps.inputs import resolved
from mechcore.steps.masks import FindMasks
from mechcore.study.engine import Results, Study
from mechcore.study.executors import Local
from mechcore.study.kinds import StudyKind
from mechcore.study.step import Job, in_order, plain
from mechcore.study.store import Store
from mechcore.yaml_file import YAML, located_folder, located_path, validated


class MainStudy(Study):
    """The main study, planned."""

    def __init__(self, config: StudyConfig, store: Store) -> None:
        self.store = store
        self.plan: Plan = make_plan(config, store.hash_file)
        self.folders = [part.name for part in self.plan.parts]
        for path in {part.config.beside for part in self.plan.parts} - {""}:
            read_run(path).required(Roles.kind)
        super().__init__(self.plan.jobs)

    def check(self, pending: Sequence[Job], device: str) -> None:
        """Open each model that pending jobs use, or everything that its training reads."""
        keys = {job.key for job in pending}
        bench = bench_of(self.store, device)
        for part in self.plan.parts:
            training, described = part.jobs.get("training"), part.jobs["describe"]
            if training is not None and training.key in keys:
                assert isinstance(training.step, Train)
                training_of(training, training.step.training, device)
            elif any(job.contents.get("model") == described.contents["model"] for job in pending):
                inputs, own = bench.inputs(described), {job.key for job in part.jobs.values()}
                for job in (job for job in in_order(part.results) if job.key in keys):
                    if isinstance(job.step, FindMasks):
                        job.step.check_targets(ModelShape.of(inputs.model))
                    if isinstance(job.step, Analysis) and job.key in own:
                        job.step.check_inputs(inputs)

    def results(self) -> Mapping[str, Results]:
        """See `mechcore.study.engine.Study`."""
        return {
            part.name: Results(files=self._files(part), facts=self._facts(part))
            for part in self.plan.parts
        }

    def _files(self, part: Part) -> dict[str, Path]:
        files: dict[str, Path] = {}
        notes = (FACTS_FILE, MISSING_FILE, CHECKPOINTS)  # only for other jobs, or too large
        for job in part.results:
            folder = self.store.whole(job.key)
            names = self.store.manifest(job.key).files
            files |= {n: folder / n for n in names if Path(n).parts[0] not in notes}
        return files

    def _facts(self, part: Part) -> dict[str, Any]:
        config, described = part.config, part.jobs["describe"]
        text = (self.store.whole(described.key) / FACTS_FILE).read_text(encoding="utf-8")
        facts, origin = json.loads(text), {"source": resolved(config.model).source}
        if "training" in part.jobs:  # a model that the study trained is in the store
            trained = str(trained_path(self.store, described))
            origin = {"source": trained, "base": origin["source"]}
        facts["model"] = {**origin, **facts["model"]}
        return {
            **facts,
            "seeds": list(config.seeds),
            "target_sparsities": list(config.target_sparsities),
            "settings": plain(config),
        }


def read_content(content: Any, name: str) -> StudyConfig:
    """See `StudyKind.read`; variants inherit what they do not name."""
    variants = content.get("variants") if isinstance(content, dict) else None
    if isinstance(variants, dict):
        common = {key: value for key, value in content.items() if key != "variants"}
        content = {**common, "variants": {**variants}}
        for variant, own in variants.items():
            if not isinstance(own, dict):  # reported below
                continue
            if "resources" in own and own["resources"] != common.get("resources"):
                raise InputError(
                    f"{name}: variants: {variant!r} has its own resources, which must be the same "
                    "for all jobs of a study; move them out of variants"
                )
            content["variants"][variant] = _changed(StudyConfig, common, own)
    return validated(StudyConfig, content, name)


def _changed(kind: type, before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Plain settings of a class with changes: groups setting by setting, anything else whole."""
    known = entries(kind)
    merged = dict(before)
    for key, value in changes.items():
        group = known[key].group if key in known else None
        old = before.get(key)
        if isinstance(old, str) and hasattr(group, "presets"):
            old = {"preset": old}
        if group is not None and isinstance(old, dict) and isinstance(value, dict):
            # Another preset starts afresh, so changes to the previous one are dropped.
            begin = {} if "preset" in value else old
            value = _changed(group, begin, value)
        merged[key] = value
    return merged


def located(config: StudyConfig, folder: Path) -> StudyConfig:
    """The same study with relative paths made absolute, relative to ``folder``."""

    def placed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(source.located(folder) for source in value)
        return located_path(value, folder) if isinstance(value, str) else value

    source, data = config.model.source, config.data
    files = {name: placed(getattr(data, name)) for name in ("folder", *SPLITS)}
    if data.task is not None and Path(data.task).suffix in YAML:
        files["task"] = placed(data.task)
    known, named = (EMBEDDED, TRAINED), config.checkpoints
    return replace(
        config,
        model=replace(config.model, source=source and located_folder(source, folder)),
        beside=config.beside and located_path(config.beside, folder),
        variants={name: located(own, folder) for name, own in config.variants.items()},
        checkpoints=tuple(path if path in known else placed(path) for path in named),
        data=replace(data, **files),
    )


class _Kind(StudyKind[StudyConfig]):
    def read(self, content: Any, name: str) -> StudyConfig:
        return read_content(content, name)


STUDY = _Kind(
    StudyConfig,
    MainStudy,
    located,
    lambda config: Local(cpus=config.resources.cpus, device=config.resources.place),
)
