"""The main study as the engine does it: what is read, planned, checked before, written after."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mechcore.analyses.base import Analysis
from mechcore.analyses.training import Train
from mechcore.components import ModelShape
from mechcore.data.task import SPLITS
from mechcore.errors import InputError
from mechcore.main_study.config import EMBEDDED, TRAINED, StudyConfig
from mechcore.main_study.plan import Part, Plan, make_plan
from mechcore.settings import entries
from mechcore.steps.base import FACTS_FILE, MISSING_FILE
from mechcore.steps.bench import CHECKPOINTS, bench_of, trained_path
from mechcore.steps.config import DataConfig
from mechcore.steps.fitting import training_of
from mechcore.steps.inputs import resolved
from mechcore.steps.masks import FindMasks
from mechcore.study.engine import Results, Study
from mechcore.study.executors import Local
from mechcore.study.kinds import StudyKind
from mechcore.study.step import Job, in_order, plain
from mechcore.study.store import Store
from mechcore.yaml_file import YAML, located_folder, located_path, validated

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
                training_of(training, training.step.training, device)
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
            part.name: Results(files=self._files(part), facts=self._facts(part))
            for part in self.plan.parts
        }

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
            "target_sparsities": list(config.target_sparsities),
            "settings": plain(config),
        }


def read_content(content: Any, name: str) -> StudyConfig:
    """Settings from plain values; variants take from the study what they do not name.

    Args:
        content: settings by name.
        name: of where they come from, for messages.

    Raises:
        InputError: they are not such settings.
    """
    variants = content.get("variants") if isinstance(content, dict) else None
    if isinstance(variants, dict):
        common = {key: value for key, value in content.items() if key != "variants"}
        whole = {
            each: _with_changes(common, own, f"{name}: variants: {each!r}")
            for each, own in variants.items()
        }
        content = {**common, "variants": whole}
    return validated(StudyConfig, content, name)


def _with_changes(common: Mapping[str, Any], own: Any, what: str) -> Any:
    if not isinstance(own, dict):
        return own
    if "resources" in own and own["resources"] != common.get("resources"):
        raise InputError(
            f"{what} has resources of its own; they are the same for all jobs of a study, so "
            "write them beside variants"
        )
    return _changed(StudyConfig, common, own)


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
            # Another preset is another beginning, so changes to the one before go with it.
            begin = {} if "preset" in value else old
            value = _changed(group, begin, value)
        merged[key] = value
    return merged


def located(config: StudyConfig, folder: Path) -> StudyConfig:
    """The same study with relative paths made absolute, beginning at ``folder``."""
    source = config.model.source
    return replace(
        config,
        model=replace(config.model, source=source and located_folder(source, folder)),
        variants={name: located(each, folder) for name, each in config.variants.items()},
        checkpoints=tuple(
            path if path in (EMBEDDED, TRAINED) else located_path(path, folder)
            for path in config.checkpoints
        ),
        data=_located_data(config.data, folder),
    )


def _located_data(data: DataConfig, folder: Path) -> DataConfig:
    def placed(value: Any) -> Any:
        return located_path(value, folder) if isinstance(value, str) else value

    def sources(value: Any) -> Any:
        if not isinstance(value, tuple):
            return placed(value)
        return tuple(source.located(folder) for source in value)

    task = data.task
    if task is not None and Path(task).suffix in YAML:
        task = placed(task)
    splits = {split: sources(getattr(data, split)) for split in SPLITS}
    return replace(data, task=task, folder=placed(data.folder), **splits)


class _Kind(StudyKind[StudyConfig]):
    def read(self, content: Any, name: str) -> StudyConfig:
        return read_content(content, name)


STUDY = _Kind(
    StudyConfig,
    MainStudy,
    located,
    lambda config: Local(cpus=config.resources.cpus, device=config.resources.place),
)
