"""One device for the Trainer, and what it changes outside of its model put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import TrainingArguments

from mechcore.errors import InputError
from mechcore.models.placing import check_device
from mechcore.training.settings import TrainSettings


def device_of(device: str | torch.device) -> torch.device:
    """The device of a name, if this machine has it.

    Raises:
        InputError: it has not, or the name is none of a device.
    """
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"device {device}: expected cpu, cuda or mps") from error
    check_device(found)
    return found


def arguments_for(
    settings: TrainSettings, total: int, folder: Path, device: torch.device
) -> TrainingArguments:
    """The Trainer's own settings: one device, no logs, no checkpoints but those asked for.

    Raises:
        InputError: the machine cannot train on the device, or not in the precision.
    """
    check_precision(settings.precision, device)
    constant = settings.schedule == "constant"
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=total,
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant_with_warmup" if constant else "linear",
        warmup_steps=settings.warmup_steps,
        max_grad_norm=settings.max_grad_norm,
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
            f"training: was started as one of {arguments.world_size} processes; mechcore trains on "
            "one device: start it by itself, without torchrun or accelerate launch"
        )
    chosen = arguments.device
    if chosen.type != device.type or (device.index or 0) != (chosen.index or 0):
        raise InputError(
            f"device {device}: training runs on {chosen} of what this process sees; choose another "
            "one with the environment variable CUDA_VISIBLE_DEVICES"
        )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # or else the Trainer would spread over all GPUs
    return arguments


def check_precision(precision: str, device: torch.device) -> None:
    """Make sure that the device can train in a precision.

    Raises:
        InputError: it cannot.
    """
    if precision == "float16" and device.type != "cuda":
        raise InputError(
            f"training: precision is 'float16', which needs a CUDA GPU; the device is {device}: "
            "choose 'bfloat16' or 'float32'"
        )
    bfloat16 = device.type == "cpu" or (device.type == "cuda" and torch.cuda.is_bf16_supported())
    if precision == "bfloat16" and not bfloat16:
        raise InputError(
            f"training: precision is 'bfloat16', which {device} cannot train in; choose 'float16' "
            "or 'float32'"
        )


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Restore after the block all random numbers that the Trainer seeds."""
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
    """Take away after the block what Trainer and Accelerate leave on a model."""
    names = ("forward", "_original_forward", "_is_accelerate_prepared")
    before = {name: vars(model)[name] for name in names if name in vars(model)}
    try:
        yield
    finally:
        for name in names:
            vars(model).pop(name, None)
        vars(model).update(before)
