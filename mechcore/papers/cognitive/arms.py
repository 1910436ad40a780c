"""One training run of an arm, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import nn
from transformers import GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerBase

from mechcore.evaluation.intervals import share_interval
from mechcore.files import copy_linked, write_json
from mechcore.models.finite import check_finite
from mechcore.models.hooks import evaluating
from mechcore.papers.bases import BASE, CHECKPOINT, WITH_GRADIENT
from mechcore.papers.cognitive.steps import Base
from mechcore.papers.cognitive.text import ANSWERS, PROMPT, tiny_tokenizer
from mechcore.papers.cognitive.trials import HELD_OUT_SEED, Task, Trials
from mechcore.study.step import Job, Step, Work
from mechcore.tables import Column
from mechcore.training import TrainSettings, answering, best_step, new_model, train
from mechcore.training.objectives import Objective
from mechcore.training.run_folder import FINAL
from mechcore.worlds.small_gpt2 import small_gpt2

if TYPE_CHECKING:
    from mechcore.papers.cognitive.settings import Arm, CognitiveSettings

ARM = Column(
    "arm",
    "text",
    "``base`` (pretrained), ``fine_tuned`` or ``scratch``",
    names={"base": "pretrained", "fine_tuned": "fine-tuned", "scratch": "from scratch"},
)

RESULT = "result.json"
_BATCH = 256
_DEV = "dev"


@dataclass(frozen=True)
class Run:
    """One model: an arm, trained on ``n`` trials at a learning rate; the base has neither."""

    arm: Arm
    n: int = 0
    seed: int = 0
    learning_rate: float | None = None

    @property
    def name(self) -> str:
        """For people."""
        if self.learning_rate is None:
            return self.arm
        return f"{self.arm} n={self.n} seed={self.seed} rate={self.learning_rate}"


def tiny_base_model(seed: int) -> GPT2LMHeadModel:
    """An untrained tiny base: 4 layers of 4 heads, width 64, 0.2 M parameters."""
    tokenizer = tiny_tokenizer()
    return small_gpt2(tokenizer, seed, width=64, n_heads=4, end=tokenizer.eos_token_id)


def make_model(
    base: Base, run: Run, device: str = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The untrained model of an arm, and its tokenizer."""
    scratch = run.arm == "scratch"
    model, tokenizer = new_model(
        base.source, prompt=PROMPT, from_scratch=scratch, seed=run.seed, device=device
    )
    if scratch and base.tiny:
        nn.Module.to(model := tiny_base_model(run.seed), device)
    return model, tokenizer


@dataclass(frozen=True)
class MakeModel(Step):
    """Train a model if it is to be trained, and measure it; interrupted, it goes on.

    The best step is chosen on ``n_dev`` trials, accuracy is measured on ``n_test``.
    """

    kind: ClassVar[str] = "model"
    model: Run
    training: TrainSettings | None
    task: Task
    n_dev: int
    n_test: int

    @classmethod
    def of(cls, settings: CognitiveSettings, model: Run) -> MakeModel:
        """The step that makes a model of a study."""
        training = None
        if model.learning_rate is not None:
            arm = settings.training(model.arm)
            training = arm.settings(model.n, model.seed, model.learning_rate)
        return cls(model, training, settings.task, settings.n_dev, settings.n_test)

    def cost(self, job: Job) -> float:
        """See `Step.cost`."""
        passes = float(self._n_chosen_on + self.n_test)
        if self.training is not None:
            steps = self.training.total_steps(self.model.n)
            passes += WITH_GRADIENT * steps * self.training.batch_size
            passes += steps // self.training.evaluate_every * self.n_dev
        return passes

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        base = work.job.inputs[BASE]
        assert isinstance(base, Base)
        self.make(base, work.partial, work.folder, work.device)

    def make(self, base: Base, place: Path, folder: Path, device: str = "cpu") -> None:
        """Make the model; interrupted, its training in ``place`` goes on.

        The result goes into ``folder``: ``result.json`` and, if trained, ``checkpoint/``.
        """
        model, tokenizer = make_model(base, self.model, device)
        objective = answering(model, tokenizer, PROMPT, ANSWERS)
        result: dict[str, Any] = asdict(self.model)
        if self.training is not None:
            examples = self.task.trials(self.model.n, self.model.seed).examples()
            dev = {_DEV: self._dev(self.n_dev).examples(_DEV)}
            history = train(model, objective, examples, dev, place, self.training, progress=False)
            result |= {"steps": best_step(place), "last_step": int(history["step"].max())}
            copy_linked(place / FINAL, folder / CHECKPOINT)
        answers = right_answers(model, objective, self._dev(self._n_chosen_on))
        result["dev_accuracy"] = float(answers["restricted"].mean())
        answers = right_answers(model, objective, self.task.held_out(self.n_test))
        result |= accuracies_with_intervals(answers)
        write_json(folder / RESULT, result)

    @property
    def _n_chosen_on(self) -> int:
        """Development trials that learning rates are chosen on."""
        return max(self.n_dev, self.n_test)

    def _dev(self, n: int) -> Trials:
        return self.task.trials(n, HELD_OUT_SEED, "dev")


def right_answers(model: PreTrainedModel, objective: Objective, trials: Trials) -> pd.DataFrame:
    """One row per trial: restricted and unrestricted (rightly answered), congruent."""
    encoded = objective.encode(trials.examples())
    targets = objective.targets(encoded.examples)
    columns = list(objective.columns)
    right = np.zeros((2, len(trials)), dtype=bool)
    with torch.no_grad(), evaluating(model):
        for batch in encoded.batches(_BATCH):
            logits, index = objective.logits(model, batch).cpu(), batch["index"]
            check_finite(logits[:, columns], index)
            check_finite(logits, index, never=True)
            answered = torch.tensor(columns)[logits[:, columns].argmax(dim=1)]
            hits = torch.stack([answered, logits.argmax(dim=1)]) == targets[index]
            right[:, index.numpy()] = hits.numpy()
    congruent = trials.frame["congruent"].to_numpy()
    return pd.DataFrame({"restricted": right[0], "unrestricted": right[1], "congruent": congruent})


def accuracies_with_intervals(answers: pd.DataFrame) -> dict[str, float]:
    """Accuracies with 95 % Wilson intervals over trials, as columns of the curve."""
    right = answers["restricted"].to_numpy(dtype=bool)
    congruent = answers["congruent"].to_numpy()
    whole, hard = share_interval(right), share_interval(right[~congruent])
    return {
        "n_test": len(answers),
        "accuracy": whole.mean,
        "low": whole.low,
        "high": whole.high,
        **hard.columns("incongruent"),
        "congruent": float(right[congruent].mean()),
        "unrestricted": float(answers["unrestricted"].mean()),
    }


def read_result(folder: Path) -> Mapping[str, Any]:
    """What `MakeModel` found."""
    return dict(json.loads((folder / RESULT).read_text(encoding="utf-8")))
