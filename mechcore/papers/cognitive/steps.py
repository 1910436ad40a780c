"""What the steps of a study have in common: its base, and what an analysis begins with."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
from transformers import PreTrainedTokenizerBase

from mechcore.models import load_model
from mechcore.models.tokenizers import load_tokenizer
from mechcore.papers.bases import Checkpoint, checkpoint_of
from mechcore.papers.cognitive.trials import Task, Trials
from mechcore.study.step import Hasher, Job, Step, Work
from mechcore.worlds.embedded import tiny_base_dir

MODEL = "model"
"""What the job that trained its model is to an analysis."""


@dataclass(frozen=True)
class Base(Checkpoint):
    """The pretrained base; the tiny one comes with mechcore and has new weights of its own."""

    tiny: bool = False

    @classmethod
    def of(cls, source: str | None) -> Base:
        """A checkpoint directory or hub id; None for the tiny one."""
        return cls(source or str(tiny_base_dir()), tiny=source is None)

    def content(self, hash_file: Hasher) -> Any:
        """See `Checkpoint.content`; and whether it is the tiny one."""
        return {"files": super().content(hash_file), "tiny": self.tiny}


@dataclass(frozen=True)
class Analysis(Step):
    """What is asked of the base, or of the model that the job needs, on so many test trials."""

    passes: ClassVar[float]
    """Passes of one trial through the model that it costs for each trial, roughly."""

    task: Task
    n_analysis: int

    def cost(self, job: Job) -> float:
        """See `Step.cost`."""
        return self.passes * self.n_analysis

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        source = checkpoint_of(work, MODEL)
        model, tokenizer = load_model(source, device=work.device), load_tokenizer(source)
        work.write_tables(self.tables(model, tokenizer, self.task.held_out(self.n_analysis)))

    @abstractmethod
    def tables(
        self, model: Any, tokenizer: PreTrainedTokenizerBase, trials: Trials
    ) -> dict[str, pd.DataFrame]:
        """What it finds, by the names of its tables."""
