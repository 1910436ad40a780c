"""Hugging Face's Trainer on one device, with mechcore's loss, order of examples and recorder."""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import ALL
from mechcore.errors import InputError, MechcoreError, NotFiniteError
from mechcore.models.devices import check_device
from mechcore.progress import say
from mechcore.training.objectives import Objective, accuracies
from mechcore.training.run_folder import (
    FINAL,
    best_path,
    checkpoint_path,
    has_ended,
    keep_best,
    publish,
    read_records,
    standing,
    write_records,
)
from mechcore.training.settings import TrainSettings

_MEGABATCH = 50


class BatchOrder(Sampler[int]):
    """The rows of a whole run as one sequence; every pass is without its incomplete last batch."""

    def __init__(
        self, lengths: Sequence[int], batch_size: int, n_batches: int, seed: int, by_length: bool
    ) -> None:
        self.lengths = torch.tensor(lengths)
        self.batch_size, self.n_batches = batch_size, n_batches
        self.seed, self.by_length = seed, by_length

    def __len__(self) -> int:
        return self.n_batches * self.batch_size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        left = len(self)
        while left > 0:
            rows = self._one_pass(generator)[:left]
            left -= len(rows)
            yield from rows.tolist()

    def _one_pass(self, generator: torch.Generator) -> Int[Tensor, " row"]:
        order = torch.randperm(len(self.lengths), generator=generator)
        order = order[: len(order) // self.batch_size * self.batch_size]
        if not self.by_length:
            return order
        parts = order.split(_MEGABATCH * self.batch_size)
        by_length = [
            part[self.lengths[part].argsort(descending=True, stable=True)] for part in parts
        ]
        batches = torch.cat(by_length).view(-1, self.batch_size)
        return batches[torch.randperm(len(batches), generator=generator)].flatten()


class Loop(Trainer):
    """Trains a model in place for ``total`` optimiser steps."""

    def __init__(
        self,
        model: PreTrainedModel,
        objective: Objective,
        encoded: EncodedExamples,
        settings: TrainSettings,
        total: int,
        arguments: TrainingArguments,
    ) -> None:
        self.objective: Objective = objective
        self.encoded, self.settings = encoded, settings
        self.targets = objective.targets(encoded.examples)
        self.total = total
        self.losses: list[float] = []
        arguments.use_cache = getattr(model.config, "use_cache", False)  # stored with checkpoints
        super().__init__(
            model=model, args=arguments, train_dataset=cast(Dataset, range(len(encoded)))
        )
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = False  # so that accumulated batches are averaged

    def get_train_dataloader(self) -> DataLoader:
        """Batches of the whole run, as one epoch."""
        settings = self.settings
        order = BatchOrder(
            [len(ids) for ids in self.encoded.input_ids],
            settings.batch_size,
            self.total * settings.accumulate,
            settings.seed,
            settings.by_length,
        )
        loader = DataLoader(
            cast(Dataset, self.train_dataset),
            batch_size=settings.batch_size,
            sampler=order,
            collate_fn=self._batch,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)

    def _batch(self, rows: Sequence[int]) -> dict[str, Tensor]:
        return {**self.encoded.rows(rows), "target": self.targets[list(rows)]}

    def create_optimizer(self, *_: Any, **__: Any) -> torch.optim.Optimizer:
        """AdamW, with weight decay on every parameter."""
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(
                cast(nn.Module, self.model).parameters(),
                lr=self.settings.learning_rate,
                weight_decay=self.settings.weight_decay,
            )
        return self.optimizer

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save weights under their names in the model, not under those of old checkpoints."""
        model = cast(PreTrainedModel, self.model)
        folder = cast(str, output_dir or self.args.output_dir)
        model.save_pretrained(folder, save_original_format=False)

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted, since the Trainer would traverse all modules at every step."""
        del inputs
        return 0

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        """Mean cross-entropy of one batch; raises an error if it is not finite."""
        loss = self.objective.loss(model, inputs, inputs["target"])
        self.losses.append(loss.item())
        if not math.isfinite(self.losses[-1]):
            raise MechcoreError(
                f"training step {self.state.global_step + 1}: the loss is {self.losses[-1]}; lower "
                f"learning_rate ({self.settings.learning_rate}) or lengthen the warm-up"
            )
        return loss


def device_of(device: str | torch.device) -> torch.device:
    """The device of a name; raises `InputError` if this machine has none."""
    try:
        named = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"device {device}: expected cpu, cuda or mps") from error
    check_device(named)
    return named


def arguments_for(
    settings: TrainSettings, total: int, folder: Path, device: torch.device
) -> TrainingArguments:
    """The Trainer's own settings: one device, no logs, only the requested checkpoints."""
    check_precision(settings.precision, device)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=total,
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup_steps,
        seed=settings.seed,
        bf16=settings.precision == "bfloat16",
        fp16=settings.precision == "float16",
        use_cpu=device.type == "cpu",
        save_strategy="no",
        save_total_limit=1,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=device.type == "cuda",
    )
    if arguments.world_size > 1:
        raise InputError(
            f"training: started as one of {arguments.world_size} processes, but mechcore trains on "
            "one device: start it directly, without torchrun or accelerate launch"
        )
    chosen = arguments.device
    if chosen.type != device.type or (device.index or 0) != (chosen.index or 0):
        raise InputError(
            f"device {device}: training runs on {chosen} of the visible devices; choose another "
            "with the environment variable CUDA_VISIBLE_DEVICES"
        )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # otherwise the Trainer would use all GPUs
    return arguments


def check_precision(precision: str, device: torch.device) -> None:
    """Check that the device can train in a precision."""
    if precision == "float16" and device.type != "cuda":
        raise InputError(
            f"training: precision is 'float16', which needs a CUDA GPU; found {device}: "
            "choose 'bfloat16' or 'float32'"
        )
    bfloat16 = device.type == "cpu" or (device.type == "cuda" and torch.cuda.is_bf16_supported())
    if precision == "bfloat16" and not bfloat16:
        raise InputError(
            f"training: precision is 'bfloat16', which {device} does not support; choose 'float16' "
            "or 'float32'"
        )


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Restore after the block all random states that the Trainer seeds."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global one
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def unprepared(model: nn.Module) -> Iterator[None]:
    """Remove after the block what Trainer and Accelerate leave on a model."""
    names = ("forward", "_original_forward", "_is_accelerate_prepared")
    before = {name: vars(model)[name] for name in names if name in vars(model)}
    try:
        yield
    finally:
        for name in names:
            vars(model).pop(name, None)
        vars(model).update(before)


class Recorder(TrainerCallback):
    """Evaluates, writes checkpoints and history, and ends training; ``resumed`` is 0 if new."""

    def __init__(
        self,
        loop: Loop,
        measured: Mapping[str, EncodedExamples],
        out: Path,
        resumed: int,
        advance: Callable[[], None],
    ) -> None:
        self.loop, self.measured, self.out, self.resumed = loop, measured, out, resumed
        self.advance = advance
        self.records = [record for record in read_records(out) if record["step"] <= resumed]
        self.started = time.monotonic() - (self.records[-1]["seconds"] if self.records else 0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluate, and request a saved state or the end of training, when due."""
        settings, step, last = self.loop.settings, state.global_step, self.loop.total
        ended = False
        if step % settings.evaluate_every == 0 or step == last:
            self._evaluate(step)
            ended = has_ended(self.records, settings, last)
        control.should_save = step % settings.checkpoint_every == 0 and not ended
        control.should_training_stop = control.should_training_stop or ended
        self.advance()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep only the best weights: an interrupted run resumes from here."""
        keep_best(self.out, self._best())

    def _best(self) -> int | None:
        now = standing(self.records, self.loop.settings)
        return now[0] if now else None

    def _evaluate(self, step: int) -> None:
        losses, self.loop.losses = self.loop.losses, []
        record: dict[str, Any] = {"step": step, "loss": sum(losses) / len(losses)}
        self.records.append(record)
        self._measure(record)
        write_records(self.out, self.records, self._best())
        shown = ", ".join(f"{name} {v[ALL]:.3f}" for name, v in record["accuracy"].items())
        accuracy = f", accuracy {shown}" if shown else ""
        say(f"step {step}: loss {record['loss']:.3f}{accuracy}")
        if (best := self._best()) and has_ended(self.records, self.loop.settings, self.loop.total):
            say(f"training ends with the weights of step {best}, the best evaluation")

    def _measure(self, record: dict[str, Any]) -> None:
        """Add the accuracies of the weights as stored, and store requested checkpoints."""
        step = record["step"]
        path, dtype = self._stored_as(step)
        model, objective = cast(PreTrainedModel, self.loop.model), self.loop.objective
        with _without_autocast(model):
            stored: Any = model if dtype == torch.float32 else copy.deepcopy(model)
            stored = stored.to(dtype)
            if path is not None:
                publish(stored, objective.tokenizer, path)
            stored = stored.float()
            try:
                record["accuracy"] = {
                    name: accuracies(stored, objective, data)
                    for name, data in self.measured.items()
                }
            except NotFiniteError as error:
                raise MechcoreError(
                    f"training: after step {step}, with the weights in {str(dtype)[6:]}, {error}. "
                    f"Use a learning rate lower than {self.loop.settings.learning_rate:g}, or "
                    "checkpoint_dtype float32"
                ) from error
            record["seconds"] = round(time.monotonic() - self.started, 1)
            if self._best() == step:
                publish(stored.to(dtype), objective.tokenizer, best_path(self.out, step))
        model.train()

    def _stored_as(self, step: int) -> tuple[Path | None, torch.dtype]:
        """The path of a step's checkpoint, if there is one, and its precision."""
        settings = self.loop.settings
        if settings.patience is None and step == self.loop.total:
            return self.out / FINAL, torch.float32
        kept = step % settings.checkpoint_every == 0
        path = checkpoint_path(self.out, step) if kept else None
        return path, getattr(torch, settings.checkpoint_dtype)


@contextmanager
def _without_autocast(model: nn.Module) -> Iterator[None]:
    """Disable, inside the block, the autocast that Accelerate puts around ``forward``."""
    wrapped = vars(model).pop("forward", None)
    try:
        yield
    finally:
        if wrapped is not None:
            vars(model)["forward"] = wrapped
