"""Training of Hugging Face models with checkpoints and a history of accuracies.

One loop serves both kinds of model: a classifier learns the label of its examples, a causal
language model learns to continue a prompt with the answer of the label (the loss is on the answer
token alone). Checkpoints are ordinary Hugging Face directories.

A run directory holds ``step-0200/``, ``step-0400/``, ..., ``final/`` and ``history.json``.
"""

from __future__ import annotations

import copy
import json
import math
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import pandas as pd
import torch
import transformers
from jaxtyping import Bool, Float, Int
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mechcore.errors import InputError, MechcoreError
from mechcore.files import write_json
from mechcore.models.loading import without_bars
from mechcore.tasks.encoding import EncodedExamples, answer_ids, encode
from mechcore.tasks.examples import ALL, Examples
from mechcore.tasks.labels import LabelMap

HISTORY_FILE = "history.json"
_EVALUATION_BATCH = 256
_MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class TrainingOptions:
    """How to train.

    Attributes:
        steps: optimiser steps.
        learning_rate: peak rate of AdamW, reached after ``warmup_steps``, then falling linearly
            to zero at the last step.
        batch_size: examples per step; the examples are reshuffled whenever they run out.
        warmup_steps: steps over which the rate rises linearly from zero.
        weight_decay: of AdamW, on every parameter.
        evaluate_every: steps between evaluations; the last step is always evaluated.
        checkpoint_every: steps between checkpoints, a multiple of ``evaluate_every``.
        checkpoint_dtype: precision in which the checkpoints before the last are stored (the last
            is float32). What the history records is the accuracy of the weights as stored.
        max_length: tokens after which an input is cut, with a warning; None for as many as the
            model takes.
        max_grad_norm: gradients are scaled down to this norm.
        seed: seed of the order of the examples.

    Raises:
        InputError: a value is out of its range.
    """

    steps: int
    learning_rate: float
    batch_size: int = 64
    warmup_steps: int = 0
    weight_decay: float = 0.01
    evaluate_every: int = 200
    checkpoint_every: int = 200
    checkpoint_dtype: Literal["float32", "float16"] = "float32"
    max_length: int | None = None
    max_grad_norm: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"training options: {name} is {getattr(self, name)}; expected at least 1"
                )
        if self.learning_rate <= 0:
            raise InputError(
                f"training options: learning_rate is {self.learning_rate}; expected more than 0"
            )
        if not 0 <= self.warmup_steps < self.steps:
            raise InputError(
                f"training options: warmup_steps is {self.warmup_steps}; expected 0 to steps - 1 "
                f"({self.steps - 1})"
            )
        if self.checkpoint_every % self.evaluate_every:
            raise InputError(
                f"training options: checkpoint_every is {self.checkpoint_every}; expected a "
                f"multiple of evaluate_every ({self.evaluate_every}), so that each checkpoint has "
                "its accuracies in the history"
            )
        if self.checkpoint_dtype not in ("float32", "float16"):
            raise InputError(
                f"training options: checkpoint_dtype is {self.checkpoint_dtype!r}; expected "
                "'float32' or 'float16'"
            )


@dataclass(frozen=True)
class Objective:
    """What a model learns: the class of its input, or the answer after a prompt.

    Attributes:
        tokenizer: writes the texts as the model expects them, or the prompt.
        max_length: longest input in tokens.
        classes: what can be answered, in the order of ``columns``.
        columns: index of each class among the model's logits: the class index, or the token id of
            its answer.
        prompt: for language models, the text with ``{a}`` and ``{b}``, else None.
        answers: for language models, the answer word of each class, else None.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    classes: tuple[str, ...]
    columns: tuple[int, ...]
    prompt: str | None = None
    answers: Mapping[str, str] | None = None

    def encode(self, examples: Examples) -> EncodedExamples:
        """Examples as the model reads them."""
        return encode(
            examples,
            self.tokenizer,
            max_length=self.max_length,
            prompt=self.prompt,
            answers=self.answers,
        )

    def logits(
        self, model: PreTrainedModel, batch: Mapping[str, Tensor]
    ) -> Float[Tensor, "batch choice"]:
        """Logits over which the loss is taken: classes, or the next token after the prompt."""
        inputs = {name: batch[name].to(model.device) for name in _MODEL_INPUTS if name in batch}
        logits: Tensor = model(**inputs).logits
        if self.prompt is None:
            return logits
        last = inputs["attention_mask"].sum(dim=1) - 1
        return logits[torch.arange(len(last), device=logits.device), last]

    def correct(self, examples: Examples) -> Bool[Tensor, "example class"]:
        """Which classes are right for each example.

        Raises:
            InputError: a label of the examples matches no class.
        """
        return LabelMap.between(examples.label_names, self.classes).matrix(examples.frame["label"])

    def targets(self, examples: Examples) -> Int[Tensor, " example"]:
        """Logit index of the right class of each example.

        Raises:
            InputError: a label matches no class, or several.
        """
        correct = self.correct(examples)
        vague = correct.sum(dim=1) != 1
        if vague.any():
            label = examples.frame["label"].iloc[int(vague.int().argmax())]
            raise InputError(
                f"examples {examples.name!r}: label {label!r} stands for several of the classes "
                f"{', '.join(self.classes)}; training needs one class for each example"
            )
        return torch.tensor(self.columns)[correct.int().argmax(dim=1)]


def classification(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
) -> Objective:
    """The objective of a sequence classifier, with the classes of its ``config.id2label``."""
    names = dict(cast(Mapping[int, str], model.config.id2label))
    return Objective(
        tokenizer,
        _length(model, tokenizer, max_length),
        tuple(names[index] for index in sorted(names)),
        tuple(sorted(names)),
    )


def answering(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    answers: Mapping[str, str],
    max_length: int | None = None,
) -> Objective:
    """The objective of a causal language model that answers a prompt.

    Raises:
        InputError: the answers are not different single tokens that the tokenizer knows.
    """
    columns = answer_ids(answers, tokenizer, prompt).values()
    length = _length(model, tokenizer, max_length)
    return Objective(tokenizer, length, tuple(answers), tuple(columns), prompt, dict(answers))


def _length(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None
) -> int:
    # RoBERTa counts two positions that no token can have; only its tokenizer knows.
    limit = min(int(model.config.max_position_embeddings), int(tokenizer.model_max_length))
    if max_length is not None and not 1 <= max_length <= limit:
        raise InputError(
            f"max_length {max_length}: expected 1 to {limit}, the positions that the model has"
        )
    return max_length or limit


@torch.no_grad()
def _right(
    model: PreTrainedModel, objective: Objective, encoded: EncodedExamples
) -> Bool[Tensor, " example"]:
    correct = objective.correct(encoded.examples)
    right = torch.zeros(len(encoded), dtype=torch.bool)
    for batch in encoded.batches(_EVALUATION_BATCH):
        logits = objective.logits(model, batch)[:, list(objective.columns)]
        index = batch["index"]
        right[index] = correct[index, logits.argmax(dim=1).cpu()]
    return right


def accuracies(
    model: PreTrainedModel, objective: Objective, encoded: EncodedExamples
) -> dict[str, float]:
    """Share of right answers over all examples (key ``"all"``) and in each subset.

    The model is put into evaluation mode and runs on the device it is on.
    """
    model.eval()
    right = pd.Series(_right(model, objective, encoded).numpy())
    by_subset = right.groupby(encoded.examples.frame["subset"], sort=False).mean()
    return {ALL: float(right.mean()), **{str(k): float(v) for k, v in by_subset.items()}}


def _batches(n: int, size: int, seed: int) -> Iterator[Sequence[int]]:
    """Batches without end; each pass in a new order, its incomplete last batch left out."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(n, generator=generator).tolist()
        yield from (order[start : start + size] for start in range(0, n - size + 1, size))


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Save a checkpoint that appears under its name only when it is complete.

    Half-precision weights are marked to be loaded in float32: they are stored small, not meant to
    be computed with.
    """
    partial = path.with_name(path.name + ".partial")
    with without_bars():
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
    config = json.loads((partial / "config.json").read_text(encoding="utf-8"))
    write_json(partial / "config.json", {**config, "dtype": "float32"})
    os.replace(partial, path)


def checkpoint_path(out: Path, step: int) -> Path:
    """Directory of the checkpoint of one step."""
    return out / f"step-{step:04d}"


def versions() -> dict[str, str]:
    """Versions of what a training result depends on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def read_history(out: str | Path) -> pd.DataFrame:
    """The evaluations of a run.

    Returns:
        One row per evaluation, data set and subset: ``step``, ``loss`` (mean training
        cross-entropy in nats since the evaluation before), ``dataset``, ``subset`` (``"all"`` for
        the whole data set), ``accuracy`` (share from 0 to 1).

    Raises:
        InputError: ``out`` holds no history.
    """
    path = Path(out) / HISTORY_FILE
    if not path.is_file():
        raise InputError(f"{path}: not found; expected the history of a training run")
    history = json.loads(path.read_text(encoding="utf-8"))
    rows = [
        (record["step"], record["loss"], dataset, subset, accuracy)
        for record in history["evaluations"]
        for dataset, values in record["accuracy"].items()
        for subset, accuracy in values.items()
    ]
    return pd.DataFrame(rows, columns=["step", "loss", "dataset", "subset", "accuracy"])


def train(
    model: PreTrainedModel,
    objective: Objective,
    examples: Examples,
    evaluations: Mapping[str, Examples],
    out: str | Path,
    options: TrainingOptions,
    progress: bool = True,
) -> pd.DataFrame:
    """Train ``model`` in place, on the device it is on, and write the run directory ``out``.

    An interrupted run leaves its complete checkpoints and the history up to the last evaluation.

    Args:
        model: a Hugging Face model with the head that ``objective`` reads.
        objective: from ``classification`` or ``answering``; its tokenizer is saved with the model.
        examples: the training examples.
        evaluations: data sets to measure accuracy on, by the name used in the history.
        out: directory to create; one that already holds a run is refused.
        options: see ``TrainingOptions``.
        progress: whether to show a progress bar.

    Returns:
        The history, as ``read_history`` gives it.

    Raises:
        InputError: ``out`` holds a run, there are fewer examples than a batch, or labels and
            classes do not match.
        MechcoreError: the loss is no longer finite.
    """
    out = Path(out)
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out}: is not empty; expected a new directory for the training run")
    if len(examples) < options.batch_size:
        raise InputError(
            f"examples {examples.name!r}: {len(examples)} for batches of {options.batch_size}; "
            "give more examples or lower batch_size"
        )
    encoded, targets = objective.encode(examples), objective.targets(examples)
    measured = {name: objective.encode(data) for name, data in evaluations.items()}
    for data in evaluations.values():
        objective.correct(data)
    out.mkdir(parents=True, exist_ok=True)

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
    )
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, options.warmup_steps, options.steps
    )
    batches = _batches(len(encoded), options.batch_size, options.seed)
    records: list[dict[str, Any]] = []
    losses: list[float] = []
    started = time.monotonic()

    def evaluate(step: int) -> None:
        final = step == options.steps
        stored = copy.deepcopy(model)
        if not final:
            stored = stored.to(getattr(torch, options.checkpoint_dtype))
        if final or step % options.checkpoint_every == 0:
            path = out / "final" if final else checkpoint_path(out, step)
            _save(stored, objective.tokenizer, path)
        stored = stored.float()
        records.append(
            {
                "step": step,
                "seconds": round(time.monotonic() - started, 1),
                "loss": sum(losses) / len(losses),
                "accuracy": {
                    name: accuracies(stored, objective, data) for name, data in measured.items()
                },
            }
        )
        losses.clear()
        history = {"options": asdict(options), "versions": versions(), "evaluations": records}
        write_json(out / HISTORY_FILE, history)

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not progress) as bar:
        task = bar.add_task("training", total=options.steps)
        model.train()
        for step in range(1, options.steps + 1):
            index = next(batches)
            logits = objective.logits(model, encoded.rows(index))
            loss = torch.nn.functional.cross_entropy(logits, targets[index].to(logits.device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), options.max_grad_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                raise MechcoreError(
                    f"training step {step}: the loss is {losses[-1]}; lower learning_rate "
                    f"({options.learning_rate}) or lengthen the warm-up"
                )
            if step % options.evaluate_every == 0 or step == options.steps:
                evaluate(step)
                latest = (f"{name} {v[ALL]:.3f}" for name, v in records[-1]["accuracy"].items())
                bar.update(task, description=", ".join(latest) or "training")
            bar.advance(task)
    return read_history(out)


def train_classifier(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Examples,
    evaluations: Mapping[str, Examples],
    out: str | Path,
    options: TrainingOptions,
    progress: bool = True,
) -> pd.DataFrame:
    """Train a sequence classifier; its ``config.id2label`` must name the labels of the examples.

    Arguments, result and errors are those of ``train``.
    """
    objective = classification(model, tokenizer, options.max_length)
    return train(model, objective, examples, evaluations, out, options, progress)


def train_answering(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Examples,
    evaluations: Mapping[str, Examples],
    out: str | Path,
    options: TrainingOptions,
    *,
    prompt: str,
    answers: Mapping[str, str],
    progress: bool = True,
) -> pd.DataFrame:
    """Train a causal language model to answer ``prompt`` with the answer of the label.

    ``prompt`` has the places ``{a}`` and ``{b}``; ``answers`` gives the one-token answer of each
    label. The other arguments, the result and the errors are those of ``train``.
    """
    objective = answering(model, tokenizer, prompt, answers, options.max_length)
    return train(model, objective, examples, evaluations, out, options, progress)
