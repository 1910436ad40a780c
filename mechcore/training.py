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
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import pandas as pd
import torch
import transformers
from jaxtyping import Float, Int
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mechcore.errors import InputError, MechcoreError
from mechcore.tasks.examples import Examples

HISTORY_FILE = "history.json"
ALL = "all"
_EVALUATION_BATCH = 256


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
        max_length: tokens after which an input is cut; None refuses inputs that the model cannot
            take whole.
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
class Encoded:
    """Tokenised examples, padded on the right.

    Attributes:
        ids: token ids ``[example, longest]``.
        segments: segment ids of the same shape, or None where the model has none.
        lengths: tokens of each example ``[example]``.
        targets: index of the right logit of each example ``[example]``.
    """

    ids: Int[Tensor, "example longest"]
    segments: Int[Tensor, "example longest"] | None
    lengths: Int[Tensor, " example"]
    targets: Int[Tensor, " example"]

    def __len__(self) -> int:
        return len(self.targets)

    def batch(
        self, index: Int[Tensor, " batch"], device: torch.device
    ) -> tuple[dict[str, Tensor], Int[Tensor, " batch"]]:
        """Model inputs, no wider than the longest example of the batch, and targets."""
        lengths = self.lengths[index]
        width = int(lengths.max())
        inputs = {
            "input_ids": self.ids[index, :width],
            "attention_mask": (torch.arange(width) < lengths[:, None]).long(),
        }
        if self.segments is not None:
            inputs["token_type_ids"] = self.segments[index, :width]
        return {k: v.to(device) for k, v in inputs.items()}, self.targets[index].to(device)


class Objective(Protocol):
    """What is learned: how examples become inputs and where the logits of the answer are."""

    def encode(self, examples: Examples, max_length: int | None) -> Encoded:
        """Tokenised examples with their targets."""

    def logits(
        self, model: PreTrainedModel, inputs: dict[str, Tensor]
    ) -> Float[Tensor, "batch choice"]:
        """Logits that the cross-entropy is taken over."""

    def candidates(self) -> Int[Tensor, " candidate"]:
        """Indices of the logits that compete when accuracy is measured."""


def _targets(examples: Examples, index: Mapping[str, int]) -> Int[Tensor, " example"]:
    unknown = [name for name in examples.label_names if name not in index]
    if unknown:
        raise InputError(
            f"examples {examples.name!r}: label(s) {', '.join(map(repr, unknown))} unknown to the "
            f"model; it has {', '.join(map(repr, index))}; rename the labels or the classes"
        )
    return torch.tensor([index[label] for label in examples.frame["label"]])


def _pad(rows: list[list[int]], value: int) -> Int[Tensor, "example longest"]:
    return torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row) for row in rows], batch_first=True, padding_value=value
    )


def _pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Id to pad with; masked out of attention, so any id does where the tokenizer has none."""
    return int(tokenizer.pad_token_id) if tokenizer.pad_token_id is not None else 0


@dataclass(frozen=True)
class Classification:
    """The label of one or two segments, from a sequence classifier.

    Attributes:
        tokenizer: writes the segments as the model expects them.
        label2id: class index of each label name.
    """

    tokenizer: PreTrainedTokenizerBase
    label2id: Mapping[str, int]

    def encode(self, examples: Examples, max_length: int | None) -> Encoded:
        """Segments as the tokenizer joins them; the target is the class index."""
        first, second = list(examples.frame["text_a"]), list(examples.frame["text_b"])
        tokens = self.tokenizer(
            first,
            second if examples.two_segments else None,
            truncation=max_length is not None,
            max_length=max_length,
        )
        segments = tokens.get("token_type_ids")
        return Encoded(
            ids=_pad(tokens["input_ids"], _pad_id(self.tokenizer)),
            segments=None if segments is None else _pad(segments, 0),
            lengths=torch.tensor([len(row) for row in tokens["input_ids"]]),
            targets=_targets(examples, self.label2id),
        )

    def logits(
        self, model: PreTrainedModel, inputs: dict[str, Tensor]
    ) -> Float[Tensor, "batch label"]:
        """Class logits."""
        logits: Tensor = model(**inputs).logits
        return logits

    def candidates(self) -> Int[Tensor, " label"]:
        """All classes."""
        return torch.tensor(sorted(self.label2id.values()))


@dataclass(frozen=True)
class Answering:
    """The answer word after a prompt, from a causal language model.

    Attributes:
        tokenizer: must turn each answer into one token.
        prompt: format string with ``{a}`` and ``{b}`` for the two segments; special tokens are
            written out in it.
        answers: answer word of each label name.
    """

    tokenizer: PreTrainedTokenizerBase
    prompt: str
    answers: Mapping[str, str]

    def answer_ids(self) -> dict[str, int]:
        """Token id of each label's answer.

        Raises:
            InputError: an answer is not exactly one known token.
        """
        ids: dict[str, int] = {}
        for label, answer in self.answers.items():
            tokens = self.tokenizer(answer, add_special_tokens=False)["input_ids"]
            if len(tokens) != 1 or tokens[0] == self.tokenizer.unk_token_id:
                raise InputError(
                    f"answer {answer!r} of label {label!r}: found "
                    f"{self.tokenizer.convert_ids_to_tokens(tokens)}; expected one token of the "
                    "vocabulary; choose another answer word"
                )
            ids[label] = tokens[0]
        return ids

    def encode(self, examples: Examples, max_length: int | None) -> Encoded:
        """Formatted prompts; the target is the token id of the answer."""
        frame = examples.frame
        prompts = [
            self.prompt.format(a=a, b=b)
            for a, b in zip(frame["text_a"], frame["text_b"], strict=True)
        ]
        rows = self.tokenizer(
            prompts,
            add_special_tokens=False,
            truncation=max_length is not None,
            max_length=max_length,
        )["input_ids"]
        return Encoded(
            ids=_pad(rows, _pad_id(self.tokenizer)),
            segments=None,
            lengths=torch.tensor([len(row) for row in rows]),
            targets=_targets(examples, self.answer_ids()),
        )

    def logits(
        self, model: PreTrainedModel, inputs: dict[str, Tensor]
    ) -> Float[Tensor, "batch vocabulary"]:
        """Next-token logits after the last token of each prompt."""
        logits: Tensor = model(**inputs).logits
        last = inputs["attention_mask"].sum(dim=1) - 1
        return logits[torch.arange(len(last), device=logits.device), last]

    def candidates(self) -> Int[Tensor, " answer"]:
        """Token ids of the answers."""
        return torch.tensor(sorted(self.answer_ids().values()))


@torch.no_grad()
def accuracies(
    model: PreTrainedModel, objective: Objective, examples: Examples, max_length: int | None = None
) -> dict[str, float]:
    """Share of right answers over all examples (key ``"all"``) and in each subset.

    The model is evaluated in evaluation mode on the device it is on, and left in that mode.
    """
    encoded = objective.encode(examples, max_length)
    candidates = objective.candidates().to(model.device)
    model.eval()
    right = torch.zeros(len(encoded), dtype=torch.bool)
    for index in encoded.lengths.argsort().split(_EVALUATION_BATCH):
        inputs, targets = encoded.batch(index, model.device)
        best = objective.logits(model, inputs)[:, candidates].argmax(dim=1)
        right[index] = (candidates[best] == targets).cpu()
    by_subset = pd.Series(right.numpy()).groupby(examples.frame["subset"], sort=False).mean()
    return {ALL: float(right.float().mean()), **{str(k): float(v) for k, v in by_subset.items()}}


def _batches(n: int, size: int, seed: int) -> Iterator[Int[Tensor, " batch"]]:
    """Batches without end; each pass in a new order, its incomplete last batch left out."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(n, generator=generator)[: n - n % size].split(size)


def _check_lengths(model: PreTrainedModel, encoded: Encoded, name: str) -> None:
    limit = getattr(model.config, "max_position_embeddings", None)
    longest = int(encoded.lengths.max())
    if limit is not None and longest > limit:
        raise InputError(
            f"examples {name!r}: the longest has {longest} tokens; the model takes {limit}; set "
            "max_length to cut longer inputs, or leave them out"
        )


def _write_json(path: Path, content: Any) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Save a checkpoint that appears under its name only when it is complete.

    Half-precision weights are marked to be loaded in float32: they are stored small, not meant to
    be computed with.
    """
    partial = path.with_name(path.name + ".partial")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    config = json.loads((partial / "config.json").read_text(encoding="utf-8"))
    for key in {"dtype", "torch_dtype"} & config.keys():
        config[key] = "float32"
    _write_json(partial / "config.json", config)
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


def read_history(out: Path) -> pd.DataFrame:
    """The evaluations of a run.

    Returns:
        One row per evaluation, data set and subset: ``step``, ``loss`` (mean training
        cross-entropy in nats since the evaluation before), ``dataset``, ``subset`` (``"all"`` for
        the whole data set), ``accuracy`` (share from 0 to 1).

    Raises:
        InputError: ``out`` holds no history.
    """
    path = out / HISTORY_FILE
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
    tokenizer: PreTrainedTokenizerBase,
    objective: Objective,
    examples: Examples,
    evaluations: Mapping[str, Examples],
    out: Path,
    options: TrainingOptions,
    progress: bool = True,
) -> pd.DataFrame:
    """Train ``model`` in place, on the device it is on, and write the run directory ``out``.

    An interrupted run leaves its complete checkpoints and the history up to the last evaluation.

    Args:
        model: a Hugging Face model with the head that ``objective`` reads.
        tokenizer: saved beside the weights of every checkpoint.
        objective: ``Classification`` or ``Answering``.
        examples: the training examples.
        evaluations: data sets to measure accuracy on, by the name used in the history.
        out: directory to create; one that already holds a run is refused.
        options: see ``TrainingOptions``.
        progress: whether to show a progress bar.

    Returns:
        The history, as ``read_history`` gives it.

    Raises:
        InputError: ``out`` holds a run, there are fewer examples than a batch, an input is longer
            than the model takes, or a label is unknown to the objective.
        MechcoreError: the loss is no longer finite.
    """
    if (out / HISTORY_FILE).exists():
        raise InputError(f"{out}: already holds a training run; choose another directory")
    if len(examples) < options.batch_size:
        raise InputError(
            f"examples {examples.name!r}: {len(examples)} for batches of {options.batch_size}; "
            "give more examples or lower batch_size"
        )
    encoded = objective.encode(examples, options.max_length)
    _check_lengths(model, encoded, examples.name)
    for data in evaluations.values():
        _check_lengths(model, objective.encode(data, options.max_length), data.name)
    out.mkdir(parents=True, exist_ok=True)

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
    )
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, options.warmup_steps, options.steps
    )
    batches = _batches(len(encoded), options.batch_size, options.seed)
    records: list[dict[str, Any]] = []
    loss_sum, loss_steps, started = 0.0, 0, time.monotonic()

    def evaluate(step: int) -> None:
        final = step == options.steps
        dtype = torch.float32 if final else getattr(torch, options.checkpoint_dtype)
        stored = copy.deepcopy(model).to(dtype)
        if final:
            _save(stored, tokenizer, out / "final")
        elif step % options.checkpoint_every == 0:
            _save(stored, tokenizer, checkpoint_path(out, step))
        stored = stored.float()
        accuracy = {
            name: accuracies(stored, objective, data, options.max_length)
            for name, data in evaluations.items()
        }
        seconds = round(time.monotonic() - started, 1)
        loss = loss_sum / loss_steps
        records.append({"step": step, "seconds": seconds, "loss": loss, "accuracy": accuracy})
        history = {"options": asdict(options), "versions": versions(), "evaluations": records}
        _write_json(out / HISTORY_FILE, history)

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
            inputs, targets = encoded.batch(next(batches), model.device)
            loss = torch.nn.functional.cross_entropy(objective.logits(model, inputs), targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), options.max_grad_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            loss_sum, loss_steps = loss_sum + loss.item(), loss_steps + 1
            if not math.isfinite(loss_sum):
                raise MechcoreError(
                    f"training step {step}: the loss is {loss.item()}; lower learning_rate "
                    f"({options.learning_rate}) or lengthen the warm-up"
                )
            if step % options.evaluate_every == 0 or step == options.steps:
                evaluate(step)
                latest = ", ".join(
                    f"{name} {value[ALL]:.3f}" for name, value in records[-1]["accuracy"].items()
                )
                bar.update(task, description=f"loss {loss_sum / loss_steps:.3f}, {latest}")
                loss_sum, loss_steps = 0.0, 0
            bar.advance(task)
    return read_history(out)


def train_classifier(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Examples,
    evaluations: Mapping[str, Examples],
    out: Path,
    options: TrainingOptions,
    progress: bool = True,
) -> pd.DataFrame:
    """Train a sequence classifier; its ``config.label2id`` must name the labels of the examples.

    Arguments, result and errors are those of ``train``.
    """
    objective = Classification(tokenizer, dict(model.config.label2id))
    return train(model, tokenizer, objective, examples, evaluations, out, options, progress)


def train_answering(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Examples,
    evaluations: Mapping[str, Examples],
    out: Path,
    options: TrainingOptions,
    prompt: str,
    answers: Mapping[str, str],
    progress: bool = True,
) -> pd.DataFrame:
    """Train a causal language model to answer ``prompt`` with the answer of the label.

    ``prompt`` and ``answers`` are those of ``Answering``; the rest is as in ``train``.
    """
    objective = Answering(tokenizer, prompt, dict(answers))
    return train(model, tokenizer, objective, examples, evaluations, out, options, progress)
