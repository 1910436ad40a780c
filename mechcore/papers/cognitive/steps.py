"""What the steps of a study have in common: its base, and what an analysis of a model begins with.

Each step stands beside the functions that do its work, `MakeModel` in
`mechcore.papers.cognitive.arms` and each analysis in its own module, so that an edit of an analysis
does no training again.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
from transformers import PreTrainedTokenizerBase

from mechcore.models import load_model
from mechcore.models.loading import load_tokenizer
from mechcore.papers.cognitive.trials import Task, Trials
from mechcore.study.fingerprints import Hasher, checkpoint_content
from mechcore.study.step import Job, Step, Work
from mechcore.worlds.embedded import tiny_base_dir

BASE, MODEL = "base", "model"
"""What the base is to a job, and the job that trained its model."""

CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Base:
    """The pretrained base.

    Attributes:
        source: checkpoint directory or hub id; None for the tiny one that comes with mechcore.
    """

    source: str | None = None

    @property
    def checkpoint(self) -> str:
        """Checkpoint directory or hub id."""
        return self.source or str(tiny_base_dir())

    def content(self, hash_file: Hasher) -> Any:
        """Digests of its files, and whether it is the tiny one, whose new weights are its own.

        Raises:
            InputError: there is no such base.
        """
        files = checkpoint_content(self.checkpoint, None, hash_file)
        return {"files": files, "tiny": self.source is None}


def base_of(work: Work) -> Base:
    """The base that a job begins with."""
    base = work.job.inputs[BASE]
    assert isinstance(base, Base)
    return base


@dataclass(frozen=True)
class Analysis(Step):
    """What is asked of a model: of the base, or of the one that the job needs.

    Attributes:
        task: what its trials are.
        n_analysis: test trials that it reads.
    """

    passes: ClassVar[float]
    """Passes of one trial through the model that it costs for each trial, roughly."""

    task: Task
    n_analysis: int

    def cost(self, job: Job) -> float:
        """See `Step.cost`."""
        return self.passes * self.n_analysis

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        trained = MODEL in work.job.needs
        source = str(work.needed(MODEL) / CHECKPOINT) if trained else base_of(work).checkpoint
        model, tokenizer = load_model(source, device=work.device), load_tokenizer(source)
        work.write_tables(self.tables(model, tokenizer, self.task.held_out(self.n_analysis)))

    @abstractmethod
    def tables(
        self, model: Any, tokenizer: PreTrainedTokenizerBase, trials: Trials
    ) -> dict[str, pd.DataFrame]:
        """What it finds, by the names of its tables."""
