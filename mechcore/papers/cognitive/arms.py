"""One training run of an arm, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mechcore.evaluation.evaluate import bootstrap_mean
from mechcore.evaluation.readout import check_finite
from mechcore.files import copy_linked, write_json
from mechcore.models.measuring import evaluating
from mechcore.papers.cognitive.pretraining import tiny_base_model
from mechcore.papers.cognitive.settings import Arm, CognitiveSettings
from mechcore.papers.cognitive.trials import ANSWERS, PROMPT, Trials, generate
from mechcore.training import answering, best_step, new_model, train
from mechcore.training.objectives import Objective
from mechcore.training.run_folder import FINAL
from mechcore.worlds.embedded import tiny_base_dir

CHECKPOINT = "checkpoint"
RESULT = "result.json"
DEV_SEED = TEST_SEED = 0
_BATCH = 256
_DEV = "dev"


@dataclass(frozen=True)
class Run:
    """One model: an arm, trained on ``n`` trials of a seed at a learning rate; the base has none.

    Attributes:
        arm: which.
        n: number of training trials; 0 for the base.
        seed: of the trials, their order and new weights; 0 for the base.
        learning_rate: peak rate; None for the base.
    """

    arm: Arm
    n: int = 0
    seed: int = 0
    learning_rate: float | None = None

    @property
    def name(self) -> str:
        """For people."""
        if self.learning_rate is None:
            return self.arm
        return f"{self.arm} n={self.n} seed={self.seed} rate={self.learning_rate:g}"


def base_source(settings: CognitiveSettings) -> str:
    """Checkpoint of the pretrained base."""
    return settings.base or str(tiny_base_dir())


def held_out_trials(settings: CognitiveSettings, n: int | None = None) -> Trials:
    """The trials that results are on, ``n_test`` of them or fewer."""
    return generate(n or settings.n_test, TEST_SEED, split="test", **settings.task)


def make_model(
    settings: CognitiveSettings, run: Run, device: str = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The untrained model of an arm, and its tokenizer.

    New weights are as the base's own were before its pretraining: for the tiny base those of
    `tiny_base_model`, for others those of the architecture in transformers.

    Raises:
        InputError: the base cannot be used.
    """
    scratch = run.arm == "scratch"
    model, tokenizer = new_model(
        base_source(settings), prompt=PROMPT, from_scratch=scratch, seed=run.seed, device=device
    )
    if scratch and settings.base is None:
        nn.Module.to(model := tiny_base_model(run.seed), device)
    return model, tokenizer


def make(
    settings: CognitiveSettings, run: Run, place: Path, folder: Path, device: str = "cpu"
) -> None:
    """Train a model if it is to be trained, and measure it.

    Args:
        settings: the study.
        run: which model.
        place: folder of the training run; interrupted, it goes on from there.
        folder: where the result goes: ``result.json`` and, if trained, ``checkpoint/``.
        device: where to train and measure.

    Raises:
        InputError: the base cannot be used, or cannot read or answer the trials.
        MechcoreError: the loss is no longer finite.
    """
    model, tokenizer = make_model(settings, run, device)
    objective = answering(model, tokenizer, PROMPT, ANSWERS)
    result: dict[str, Any] = asdict(run)
    dev = generate(settings.n_dev, DEV_SEED, split="dev", **settings.task)
    if run.learning_rate is not None:
        training = settings.training(run.arm).settings(run.n, run.seed, run.learning_rate)
        examples = generate(run.n, run.seed, **settings.task).examples()
        history = train(
            model, objective, examples, {_DEV: dev.examples(_DEV)}, place, training, progress=False
        )
        result |= {"steps": best_step(place), "last_step": int(history["step"].max())}
        copy_linked(place / FINAL, folder / CHECKPOINT)
    chosen_on = generate(
        max(settings.n_dev, settings.n_test), DEV_SEED, split="dev", **settings.task
    )
    answers = right_answers(model, objective, chosen_on)
    result["dev_accuracy"] = float(answers["restricted"].mean())
    test = held_out_trials(settings)
    answers = right_answers(model, objective, test)
    result |= accuracies_with_intervals(answers, settings.n_resamples)
    write_json(folder / RESULT, result)


def right_answers(model: PreTrainedModel, objective: Objective, trials: Trials) -> pd.DataFrame:
    """Whether the model answers each trial rightly.

    Returns:
        One row per trial: restricted (the right answer is the likelier of the two), unrestricted
        (it is the likeliest of all tokens), congruent.
    """
    encoded = objective.encode(trials.examples())
    targets = objective.targets(encoded.examples)
    columns = list(objective.columns)
    found = np.zeros((2, len(trials)), dtype=bool)
    with torch.no_grad(), evaluating(model):
        for batch in encoded.batches(_BATCH):
            logits, index = objective.logits(model, batch).cpu(), batch["index"]
            check_finite(logits[:, columns], index)
            check_finite(logits, index, never=True)
            answered = torch.tensor(columns)[logits[:, columns].argmax(dim=1)]
            right = torch.stack([answered, logits.argmax(dim=1)]) == targets[index]
            found[:, index.numpy()] = right.numpy()
    congruent = trials.frame["congruent"].to_numpy()
    return pd.DataFrame({"restricted": found[0], "unrestricted": found[1], "congruent": congruent})


def accuracies_with_intervals(answers: pd.DataFrame, n_resamples: int) -> dict[str, float]:
    """Accuracies with 95 % bootstrap intervals over trials, as columns of the curve."""
    right = answers["restricted"].to_numpy(dtype=float)
    congruent = answers["congruent"].to_numpy()
    found: dict[str, float] = {"n_test": len(answers)}
    for name, rows, ends in (
        ("accuracy", slice(None), ("low", "high")),
        ("incongruent", ~congruent, ("incongruent_low", "incongruent_high")),
    ):
        interval = bootstrap_mean(right[rows], n_resamples=n_resamples)
        found |= {name: interval.mean, ends[0]: interval.low, ends[1]: interval.high}
    found["congruent"] = float(right[congruent].mean())
    found["unrestricted"] = float(answers["unrestricted"].mean())
    return found


def read_result(folder: Path) -> Mapping[str, Any]:
    """What `make` found."""
    return dict(json.loads((folder / RESULT).read_text(encoding="utf-8")))
