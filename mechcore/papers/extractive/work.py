"""The units of work of a study of extractive structures, and how each is done.

A unit is kept in a run store under a key of everything that it depends on, as those of other
studies are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.files import write_json
from mechcore.models import load_model
from mechcore.models.loading import load_tokenizer
from mechcore.papers.extractive.data import ordering_of, tasks_of
from mechcore.papers.extractive.encoded import EncodedTask, encode_ordering, encode_task
from mechcore.papers.extractive.fact_world import base_facts, fact_world_tokenizer, train_fact_base
from mechcore.papers.extractive.freezing import freezing
from mechcore.papers.extractive.grafting import grafting
from mechcore.papers.extractive.localization import localization
from mechcore.papers.extractive.ordering import ordering
from mechcore.papers.extractive.recall import recall
from mechcore.papers.extractive.score_maps import score_maps
from mechcore.papers.extractive.settings import BY_TASK, ExtractiveSettings, TuneSettings
from mechcore.papers.extractive.tuning import tuned
from mechcore.steps.config import plain
from mechcore.study.fingerprints import checkpoint_content, digest_of
from mechcore.study.folder import versions, write_tables
from mechcore.study.pool import keep
from mechcore.study.store import Store

FORMAT = 1
"""Counts up whenever the same recipe gives other results than before."""

TABLES, CHECKPOINT, CHOSEN = "tables", "checkpoint", "chosen.json"
BASE = "base"

Tables = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Unit:
    """Something to be done as a whole.

    Attributes:
        kind: ``"base"`` or an experiment.
        seed: of the study.
        recipe: everything that the result depends on.
        tuning: how to fine-tune; several settings for OCR alone, none for the base.
        task: place of the task among those of the seed, for the experiments that have one.
        base_key: key of the unit that makes the base, for a tiny one.
    """

    kind: str
    seed: int
    recipe: Mapping[str, Any]
    tuning: tuple[TuneSettings, ...] = ()
    task: int | None = None
    base_key: str | None = None

    @property
    def name(self) -> str:
        """For people."""
        which = "" if self.task is None else f" {('first', 'second')[self.task]}-hop"
        replay = " with replay" if self.tuning and self.tuning[0].replay else ""
        return f"{self.kind}{which}{replay} seed={self.seed}"

    @cached_property
    def key(self) -> str:
        """Digest of the recipe."""
        return digest_of(self.recipe)


class Units:
    """Makes the units of a study.

    Args:
        settings: the study.

    Raises:
        InputError: there is no such base.
    """

    def __init__(self, settings: ExtractiveSettings) -> None:
        self.settings = settings
        self._shared = {
            "format": FORMAT,
            "versions": {"mechcore": version("mechcore"), **versions()},
        }
        self._content = None if settings.base is None else checkpoint_content(settings.base, None)

    def base(self, seed: int) -> Unit:
        """The unit that pretrains the tiny base of a seed."""
        recipe = self._shared | {
            "kind": "extractive base",
            "seed": seed,
            "world": digest_of(base_facts(seed).frame.to_dict("list")),
            "steps": self.settings.base_steps,
        }
        return Unit(BASE, seed, recipe)

    def experiment(
        self, kind: str, seed: int, tuning: tuple[TuneSettings, ...], task: int | None = None
    ) -> Unit:
        """The unit of an experiment."""
        settings = self.settings
        base_key = self.base(seed).key if settings.base is None else None
        data: Any = ordering_of(settings, seed)
        if task is not None:
            data = tasks_of(settings, seed)[task]
        recipe = self._shared | {
            "kind": f"extractive {kind}",
            "base": base_key or self._content,
            "data": digest_of(plain(asdict(data))),
            "tuning": [asdict(each) for each in tuning],
            "settings": plain({name: getattr(settings, name) for name in _READ[kind]}),
            "precision": settings.precision,
            "backend": settings.backend,
        }
        return Unit(kind, seed, recipe, tuning, task, base_key)


_READ: Mapping[str, tuple[str, ...]] = {
    "ocr": ("n_resamples",),
    "scores": ("counterfactuals", "compat"),
    "freezing": ("cuts",),
    "ordering": (),
    "grafting": (),
    "localization": ("compat",),
}
"""The settings that each experiment reads beside its tuning."""


def perform(
    unit: Unit, settings: ExtractiveSettings, store_path: Path, n_threads: int, device: str
) -> list[str]:
    """Do a unit unless it is done.

    Args:
        unit: what to do.
        settings: the study.
        store_path: folder of the run store.
        n_threads: cores to use.
        device: where models are run and fine-tuned.

    Returns:
        Warnings that it gave.
    """
    store = Store(store_path)

    def make(_: Path, folder: Path) -> None:
        if unit.kind == BASE:
            steps = settings.base_steps
            train_fact_base(folder / CHECKPOINT, unit.seed, steps=steps, progress=False)
        else:
            source = settings.base or str(store.whole(str(unit.base_key)) / CHECKPOINT)
            _experiment(unit, settings, source, folder, device)

    return keep(unit, store, n_threads, f"extractive {unit.kind}", make)


def loaded(settings: ExtractiveSettings, source: str, device: str = "cpu") -> Any:
    """The base as a TransformerLens model.

    Raises:
        InputError: it cannot be loaded, or is no language model.
    """
    return load_model(
        source,
        backend=settings.backend,
        device=device,
        dtype=settings.precision,
        task="language-model",
    )


def chosen_tuning(folder: Path) -> TuneSettings:
    """The setting that a finished unit of OCR chose."""
    return TuneSettings(**json.loads((folder / CHOSEN).read_text(encoding="utf-8")))


def _experiment(
    unit: Unit, settings: ExtractiveSettings, source: str, folder: Path, device: str
) -> None:
    model = loaded(settings, source, device)
    tokenizer = load_tokenizer(settings.base) if settings.base else fact_world_tokenizer()
    if unit.kind in BY_TASK:
        assert unit.task is not None
        task = encode_task(tasks_of(settings, unit.seed)[unit.task], tokenizer)
        tables = _OF_TASKS[unit.kind](model, task, unit, settings, folder)
    else:
        encoded = encode_ordering(ordering_of(settings, unit.seed), tokenizer)
        (tuning,) = unit.tuning
        if unit.kind == "ordering":
            tables = {"extractive_ordering": ordering(model, encoded, tuning)}
        elif unit.kind == "grafting":
            tables = {"extractive_grafting": grafting(model, encoded, tuning)}
        else:
            found = localization(model, encoded, tuning, compat=settings.compat)
            names = ("extractive_localization", "extractive_localization_r2")
            tables = dict(zip(names, found, strict=True))
    write_tables(folder / TABLES, tables)


def _ocr(
    model: Any, task: EncodedTask, unit: Unit, settings: ExtractiveSettings, folder: Path
) -> Tables:
    found = recall(model, task, unit.tuning, n_resamples=settings.n_resamples)
    write_json(folder / CHOSEN, asdict(found.chosen))
    return {"extractive_ranks": found.ranks, "extractive_grid": found.grid}


def _scores(
    model: Any, task: EncodedTask, unit: Unit, settings: ExtractiveSettings, _: Path
) -> Tables:
    (tuning,) = unit.tuning
    scores, sums = score_maps(
        model,
        task,
        tuned(model, task.facts, tuning),
        counterfactuals=settings.counterfactuals,
        seed=unit.seed,
        compat=settings.compat,
    )
    return {"extractive_scores": scores, "extractive_sums": sums}


def _freezing(
    model: Any, task: EncodedTask, unit: Unit, settings: ExtractiveSettings, _: Path
) -> Tables:
    (tuning,) = unit.tuning
    return {"extractive_freezing": freezing(model, task, tuning, cuts=settings.cuts)}


_OfTask = Callable[[Any, EncodedTask, Unit, ExtractiveSettings, Path], Tables]
_OF_TASKS: Mapping[str, _OfTask] = {"ocr": _ocr, "scores": _scores, "freezing": _freezing}
