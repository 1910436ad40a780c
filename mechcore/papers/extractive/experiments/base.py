"""What the experiments share. Each has its own module, so that editing one redoes no other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from transformers import PreTrainedTokenizerBase

from mechcore.models import Backend, load_model
from mechcore.models.tokenizers import check_vocabulary, load_tokenizer
from mechcore.papers.bases import BASE, CHECKPOINT, WITH_GRADIENT, checkpoint_of
from mechcore.papers.extractive.encoded import (
    EncodedOrdering,
    EncodedTask,
    encode_ordering,
    encode_task,
)
from mechcore.papers.extractive.fact_world import (
    BATCH,
    fact_world_tokenizer,
    tiny_fact_tasks,
    tiny_ordering,
    train_fact_base,
)
from mechcore.papers.extractive.facts import city_ordering, city_tasks
from mechcore.papers.extractive.settings import Precision, TuneSettings
from mechcore.study.step import Job, Step, Work


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
        """Load a base."""
        model = load_model(
            source, backend=backend, device=device, dtype=precision, task="language-model"
        )
        tokenizer = fact_world_tokenizer() if tiny else load_tokenizer(source)
        if not tiny:
            check_vocabulary(source, tokenizer, model)
        return cls(model, tokenizer, tiny)

    def tasks(self, seed: int) -> dict[str, EncodedTask]:
        """The first-hop and the second-hop task of a seed, by name."""
        tasks = (tiny_fact_tasks if self.tiny else city_tasks)(seed)
        return {task.name: encode_task(task, self.tokenizer) for task in tasks}

    def ordering(self, seed: int) -> EncodedOrdering:
        """The ordering task of a seed."""
        task = (tiny_ordering if self.tiny else city_ordering)(seed)
        return encode_ordering(task, self.tokenizer)


@dataclass(frozen=True)
class TrainBase(Step):
    """Pretrain the tiny base of a seed: of the world, the weights and the order of texts."""

    kind: ClassVar[str] = BASE
    seed: int
    steps: int

    def cost(self, job: Job) -> float:
        """See `Step.cost`."""
        return WITH_GRADIENT * self.steps * BATCH

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        train_fact_base(work.folder / CHECKPOINT, self.seed, steps=self.steps, progress=False)


@dataclass(frozen=True)
class Experiment(Step):
    """An experiment on a base, whose weights are as before afterwards."""

    backend: Backend
    precision: Precision

    @abstractmethod
    def tables(self, base: Base, folder: Path) -> Mapping[str, pd.DataFrame]:
        """The tables of the experiment by name; what else is kept goes into ``folder``."""

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        source, tiny = checkpoint_of(work), BASE in work.job.needs
        base = Base.load(source, self.backend, self.precision, work.device, tiny=tiny)
        work.write_tables(self.tables(base, work.folder))


@dataclass(frozen=True)
class Tuned(Experiment):
    """An experiment with one setting for all its trainings, of some ``rows`` rows in each epoch."""

    rows: ClassVar[int]
    tuning: TuneSettings

    def cost(self, job: Job) -> float:
        """See `Step.cost`."""
        return WITH_GRADIENT * self.rows * self.tuning.epochs


@dataclass(frozen=True)
class TunedOnTask(Tuned):
    """Such an experiment on the first-hop or the second-hop task."""

    task: str
