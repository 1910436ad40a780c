"""Evaluations, checkpoints and history during training."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel, TrainerCallback

from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import ALL
from mechcore.errors import MechcoreError, NotFiniteError
from mechcore.progress import say
from mechcore.training.history import has_ended, read_records, standing, write_records
from mechcore.training.loop import Loop
from mechcore.training.objectives import accuracies
from mechcore.training.run_folder import FINAL, best_path, checkpoint_path, keep_best, publish


class Recorder(TrainerCallback):
    """Evaluates, writes checkpoints and history, makes the Trainer save its state, and ends it.

    A run resumes after the step ``resumed``, which is 0 for a new one.
    """

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
        return None if now is None else now.best

    def _evaluate(self, step: int) -> None:
        losses, self.loop.losses = self.loop.losses, []
        record: dict[str, Any] = {"step": step, "loss": sum(losses) / len(losses)}
        self.records.append(record)
        self._measure(record)
        write_records(self.out, self.records, self._best())
        self._tell(record)

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

    def _tell(self, record: Mapping[str, Any]) -> None:
        shown = ", ".join(f"{name} {v[ALL]:.3f}" for name, v in record["accuracy"].items())
        accuracy = f", accuracy {shown}" if shown else ""
        say(f"step {record['step']}: loss {record['loss']:.3f}{accuracy}")
        if (best := self._best()) and has_ended(self.records, self.loop.settings, self.loop.total):
            say(f"training ends with the weights of step {best}, the best evaluation")


@contextmanager
def _without_autocast(model: nn.Module) -> Iterator[None]:
    """Disable, inside the block, the autocast that Accelerate puts around ``forward``."""
    wrapped = vars(model).pop("forward", None)
    try:
        yield
    finally:
        if wrapped is not None:
            vars(model)["forward"] = wrapped
