"""The units of work of a study of the cognitive task, and how each is done.

A unit is kept in a run store under a key of everything that it depends on, as those of other
studies are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.loading import load_tokenizer
from mechcore.papers.cognitive import arms
from mechcore.papers.cognitive.ablation import ablation_tables
from mechcore.papers.cognitive.arms import CHECKPOINT, Run
from mechcore.papers.cognitive.attention import attention_tables
from mechcore.papers.cognitive.decoding import decoding_tables
from mechcore.papers.cognitive.settings import CognitiveSettings
from mechcore.papers.cognitive.trials import encode_trials, generate
from mechcore.papers.cognitive.units import unit_tables
from mechcore.steps.config import plain
from mechcore.study.fingerprints import checkpoint_content, digest_of
from mechcore.study.folder import versions, write_tables
from mechcore.study.pool import keep
from mechcore.study.store import Store

FORMAT = 2
"""Counts up whenever the same recipe gives other results than before."""

TABLES = "tables"
MEAN_TRIALS = 1600
"""Trials that mean activations are taken over."""

_MEAN_SEED = 1_000_004


@dataclass(frozen=True)
class Unit:
    """Something to be done as a whole.

    Attributes:
        kind: ``"model"``, or an analysis of one, a name in `ANALYSES`.
        run: the model.
        recipe: everything that the result depends on.
        model_key: of an analysis, the key of its model's unit.
    """

    kind: str
    run: Run
    recipe: Mapping[str, Any]
    model_key: str | None = None

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.kind} {self.run.name}"

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

    def __init__(self, settings: CognitiveSettings) -> None:
        self.settings = settings
        self._shared = {
            "format": FORMAT,
            "versions": {"mechcore": version("mechcore"), **versions()},
            "task": plain(settings.task),
        }
        self._base = checkpoint_content(arms.base_source(settings), None)

    def model(self, run: Run) -> Unit:
        """The unit that makes a model."""
        settings = self.settings
        training = None
        if run.learning_rate is not None:
            training = settings.training(run.arm).settings(run.n, run.seed, run.learning_rate)
        recipe = self._shared | {
            "kind": "cognitive model",
            "base": self._base,
            "tiny": settings.base is None,
            "run": asdict(run),
            "training": None if training is None else plain(training.facts()),
            "n_dev": settings.n_dev,
            "n_test": settings.n_test,
            "n_resamples": settings.n_resamples,
        }
        return Unit("model", run, recipe)

    def analysis(self, kind: str, run: Run) -> Unit:
        """The unit of an analysis of a model."""
        needed = self.model(run).key
        chosen = {name: getattr(self.settings, name) for name in _READ[kind]}
        recipe = self._shared | {
            "kind": f"cognitive {kind}",
            "model": needed,
            "settings": plain({"n_analysis": self.settings.n_analysis, **chosen}),
            "numerics": _numerics(kind),
        }
        return Unit(kind, run, recipe, needed)


def _numerics(kind: str) -> dict[str, str | None]:
    """Versions of further packages that an analysis depends on; None where there is none."""
    names = {"decoding": ("scikit-learn",), "units": ("scikit-learn", "umap-learn")}
    return {name: _version(name) for name in names.get(kind, ())}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


_READ = {
    "ablation": ("n_resamples", "sweep_precision"),
    "decoding": ("shuffles", "decoded_layers"),
    "units": ("permutations", "alpha", "projection"),
}
"""The settings that each analysis reads."""


def perform(
    unit: Unit, settings: CognitiveSettings, store_path: Path, n_threads: int, device: str
) -> list[str]:
    """Do a unit unless it is done.

    Args:
        unit: what to do.
        settings: the study.
        store_path: folder of the run store.
        n_threads: cores to use.
        device: where models are trained and run.

    Returns:
        Warnings that it gave.
    """
    store = Store(store_path)

    def make(place: Path, folder: Path) -> None:
        if unit.kind == "model":
            arms.make(settings, unit.run, place, folder, device)
        else:
            _analyse(unit, settings, store, folder, device)

    return keep(unit, store, n_threads, f"cognitive {unit.kind}", make)


def _analyse(
    unit: Unit, settings: CognitiveSettings, store: Store, folder: Path, device: str
) -> None:
    assert unit.model_key is not None
    source = arms.base_source(settings)
    if unit.run.learning_rate is not None:
        source = str(store.whole(unit.model_key) / CHECKPOINT)
    tables = ANALYSES[unit.kind](
        load_model(source, device=device), load_tokenizer(source), settings
    )
    write_tables(folder / TABLES, tables)


def _ablation(model: Any, tokenizer: Any, settings: CognitiveSettings) -> dict[str, pd.DataFrame]:
    trials = arms.held_out_trials(settings, settings.n_analysis)
    seen = generate(MEAN_TRIALS, _MEAN_SEED, **settings.task)
    means = MeanActivations.compute(
        model, encode_trials(seen, tokenizer, max_length=model.cfg.n_ctx)
    )
    tables = ablation_tables(
        model,
        tokenizer,
        trials,
        means,
        n_resamples=settings.n_resamples,
        precision=settings.sweep_precision,
    )
    found = tables["cognitive_ablation"]
    return tables | attention_tables(model, tokenizer, trials, found)


def _decoding(model: Any, tokenizer: Any, settings: CognitiveSettings) -> dict[str, pd.DataFrame]:
    trials = arms.held_out_trials(settings, settings.n_analysis)
    layers, shuffles = settings.decoded_layers, settings.shuffles
    return decoding_tables(model, tokenizer, trials, layers=layers, shuffles=shuffles)


def _units(model: Any, tokenizer: Any, settings: CognitiveSettings) -> dict[str, pd.DataFrame]:
    return unit_tables(
        model,
        tokenizer,
        arms.held_out_trials(settings, settings.n_analysis),
        permutations=settings.permutations,
        alpha=settings.alpha,
        method=settings.projection,
    )


Analysis = Callable[[Any, Any, CognitiveSettings], dict[str, pd.DataFrame]]
ANALYSES: Mapping[str, Analysis] = {
    "ablation": _ablation,
    "decoding": _decoding,
    "units": _units,
}
"""What is asked of every model that is compared."""
