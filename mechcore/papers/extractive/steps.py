"""The steps of a study of extractive structures: pretraining a tiny base, and the experiments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pandas as pd
from transformers import PreTrainedTokenizerBase

from mechcore.files import write_json
from mechcore.models import Backend, load_model
from mechcore.models.loading import load_tokenizer
from mechcore.models.vocabulary import check_vocabulary
from mechcore.papers.bases import Checkpoint
from mechcore.papers.extractive.data import ordering_of, tasks_of
from mechcore.papers.extractive.encoded import (
    EncodedOrdering,
    EncodedTask,
    encode_ordering,
    encode_task,
)
from mechcore.papers.extractive.fact_tables import CITIES
from mechcore.papers.extractive.fact_world import BATCH, fact_world_tokenizer, train_fact_base
from mechcore.papers.extractive.facts import TRAINING_NAMES
from mechcore.papers.extractive.freezing import FREEZING, freezing
from mechcore.papers.extractive.grafting import GRAFTING, grafting
from mechcore.papers.extractive.localization import LOCALIZATION, LOCALIZATION_R2, localization
from mechcore.papers.extractive.ordering import ORDERING, ordering
from mechcore.papers.extractive.recall import GRID, RANKS, recall
from mechcore.papers.extractive.results import SCORES
from mechcore.papers.extractive.score_maps import SUMS, score_maps
from mechcore.papers.extractive.settings import TuneSettings
from mechcore.papers.extractive.tuning import tuned
from mechcore.study.step import Job, Step, Work
from mechcore.tables import Schema

if TYPE_CHECKING:
    from mechcore.papers.extractive.settings import Precision

BASE = "base"
"""What the base is to an experiment: an input of the user's, or a job that pretrains it."""

CHECKPOINT, CHOSEN = "checkpoint", "chosen.json"

_WITH_GRADIENT = 3.0
"""A pass forward and back, in passes forward."""

_FACTS, _NAMES = len(CITIES), TRAINING_NAMES
"""Facts of a task, and of the ordering task."""


@dataclass(frozen=True)
class Base:
    """A base with its tokenizer, which is asked about the tiny world or the paper's cities."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    tiny: bool

    @classmethod
    def load(
        cls, source: str, backend: Backend, precision: Precision, device: str, *, tiny: bool
    ) -> Base:
        """Load a base.

        Raises:
            InputError: it cannot be loaded, or is no language model.
        """
        model = load_model(
            source, backend=backend, device=device, dtype=precision, task="language-model"
        )
        tokenizer = fact_world_tokenizer() if tiny else load_tokenizer(source)
        if not tiny:
            check_vocabulary(source, tokenizer, model)
        return cls(model, tokenizer, tiny)

    def tasks(self, seed: int) -> dict[str, EncodedTask]:
        """The first-hop and the second-hop task of a seed, by name.

        Raises:
            InputError: the tokenizer cannot write one, or does not tell its options apart.
        """
        tasks = tasks_of(seed, tiny=self.tiny)
        return {task.name: encode_task(task, self.tokenizer) for task in tasks}

    def ordering(self, seed: int) -> EncodedOrdering:
        """The ordering task of a seed.

        Raises:
            InputError: the tokenizer cannot write it, or does not tell its options apart.
        """
        return encode_ordering(ordering_of(seed, tiny=self.tiny), self.tokenizer)


@dataclass(frozen=True)
class TrainBase(Step):
    """Pretrain the tiny base of a seed.

    Attributes:
        seed: of the world, the weights and the order of texts.
        steps: optimiser steps.
    """

    kind: ClassVar[str] = BASE
    seed: int
    steps: int

    def cost(self, job: Job) -> float:
        """See `Step.cost`."""
        return _WITH_GRADIENT * self.steps * BATCH

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        train_fact_base(work.folder / CHECKPOINT, self.seed, steps=self.steps, progress=False)


@dataclass(frozen=True)
class Experiment(Step):
    """An experiment on a base, whose weights are as before afterwards.

    Attributes:
        backend: that runs the base.
        precision: of its weights and activations.
    """

    backend: Backend
    precision: Precision

    @abstractmethod
    def tables(self, base: Base, folder: Path) -> Mapping[str, pd.DataFrame]:
        """The tables of the experiment by name; what else is kept goes into ``folder``."""

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        if tiny := BASE in work.job.needs:
            source = str(work.needed(BASE) / CHECKPOINT)
        else:
            checkpoint = work.job.inputs[BASE]
            assert isinstance(checkpoint, Checkpoint)
            source = checkpoint.source
        base = Base.load(source, self.backend, self.precision, work.device, tiny=tiny)
        work.write_tables(self.tables(base, work.folder))


@dataclass(frozen=True)
class Ocr(Experiment):
    """E1: out-of-context reasoning, which chooses how scores and freezing are trained.

    Attributes:
        task: ``"first-hop"`` or ``"second-hop"``.
        grid: settings of the training to choose from, all of one seed.
        n_resamples: of bootstrap intervals.
    """

    kind: ClassVar[str] = "ocr"
    schemas: ClassVar[tuple[Schema, ...]] = (RANKS, GRID)
    task: str
    grid: tuple[TuneSettings, ...]
    n_resamples: int

    def cost(self, job: Job) -> float:
        """See `Step.cost`."""
        return _WITH_GRADIENT * _FACTS * sum(tuning.epochs for tuning in self.grid)

    def tables(self, base: Base, folder: Path) -> Mapping[str, pd.DataFrame]:
        """See `Experiment.tables`."""
        task = base.tasks(self.grid[0].seed)[self.task]
        found = recall(base.model, task, self.grid, n_resamples=self.n_resamples)
        write_json(folder / CHOSEN, asdict(found.chosen))
        return {"extractive_ranks": found.ranks, "extractive_grid": found.grid}


@dataclass(frozen=True)
class Tuned(Experiment):
    """An experiment with one setting for all of its trainings.

    Attributes:
        rows: that are trained in each epoch, about; what else is done is little beside it.
        tuning: how facts are trained, and the seed.
    """

    rows: ClassVar[int]
    tuning: TuneSettings

    def cost(self, job: Job) -> float:
        """See `Step.cost`."""
        return _WITH_GRADIENT * self.rows * self.tuning.epochs


@dataclass(frozen=True)
class Scores(Tuned):
    """E2: extractive scores on the implications of facts.

    Attributes:
        task: ``"first-hop"`` or ``"second-hop"``.
        counterfactuals: prompts that upstream scores are averaged over.
        compat: ``"paper"`` for the published code's informative score.
    """

    kind: ClassVar[str] = "scores"
    schemas: ClassVar[tuple[Schema, ...]] = (SCORES, SUMS)
    rows: ClassVar[int] = 3 * _FACTS
    task: str
    counterfactuals: int
    compat: Literal["paper"] | None

    def tables(self, base: Base, folder: Path) -> Mapping[str, pd.DataFrame]:
        """See `Experiment.tables`."""
        model, task = base.model, base.tasks(self.tuning.seed)[self.task]
        scores, sums = score_maps(
            model,
            task,
            tuned(model, task.facts, self.tuning),
            counterfactuals=self.counterfactuals,
            seed=self.tuning.seed,
            compat=self.compat,
        )
        return {"extractive_scores": scores, "extractive_sums": sums}


@dataclass(frozen=True)
class Freezing(Tuned):
    """E3: early or late layers kept as they were.

    Attributes:
        task: ``"first-hop"`` or ``"second-hop"``.
        cuts: the first late layer of each; None for all.
    """

    kind: ClassVar[str] = "freezing"
    schemas: ClassVar[tuple[Schema, ...]] = (FREEZING,)
    rows: ClassVar[int] = 7 * _FACTS
    task: str
    cuts: tuple[int, ...] | None

    def tables(self, base: Base, folder: Path) -> Mapping[str, pd.DataFrame]:
        """See `Experiment.tables`."""
        task = base.tasks(self.tuning.seed)[self.task]
        return {"extractive_freezing": freezing(base.model, task, self.tuning, cuts=self.cuts)}


@dataclass(frozen=True)
class Ordering(Tuned):
    """E4: facts and implications learned in each order."""

    kind: ClassVar[str] = "ordering"
    schemas: ClassVar[tuple[Schema, ...]] = (ORDERING,)
    rows: ClassVar[int] = 3 * (2 * _NAMES + _FACTS)

    def tables(self, base: Base, folder: Path) -> Mapping[str, pd.DataFrame]:
        """See `Experiment.tables`."""
        task = base.ordering(self.tuning.seed)
        return {"extractive_ordering": ordering(base.model, task, self.tuning)}


@dataclass(frozen=True)
class Grafting(Tuned):
    """E5: what implications teach, put onto a model of other facts."""

    kind: ClassVar[str] = "grafting"
    schemas: ClassVar[tuple[Schema, ...]] = (GRAFTING,)
    rows: ClassVar[int] = 4 * _NAMES

    def tables(self, base: Base, folder: Path) -> Mapping[str, pd.DataFrame]:
        """See `Experiment.tables`."""
        task = base.ordering(self.tuning.seed)
        return {"extractive_grafting": grafting(base.model, task, self.tuning)}


@dataclass(frozen=True)
class Localization(Tuned):
    """E6: where implications are learned, and where new facts are read out.

    Attributes:
        compat: ``"paper"`` for the published code's informative score.
    """

    kind: ClassVar[str] = "localization"
    schemas: ClassVar[tuple[Schema, ...]] = (LOCALIZATION, LOCALIZATION_R2)
    rows: ClassVar[int] = 2 * _NAMES + _FACTS
    compat: Literal["paper"] | None

    def tables(self, base: Base, folder: Path) -> Mapping[str, pd.DataFrame]:
        """See `Experiment.tables`."""
        task = base.ordering(self.tuning.seed)
        scores, squared = localization(base.model, task, self.tuning, compat=self.compat)
        return {"extractive_localization": scores, "extractive_localization_r2": squared}
