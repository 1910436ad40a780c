"""Evaluations, checkpoints and history while the Trainer works."""

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

from mechcore.errors import MechcoreError
from mechcore.files import write_json
from mechcore.progress import say
from mechcore.tasks.encoding import EncodedExamples
from mechcore.tasks.examples import ALL
from mechcore.training.history import HISTORY_FILE, read_records
from mechcore.training.loop import Loop
from mechcore.training.objectives import accuracies
from mechcore.training.run_folder import (
    FINAL,
    STATE_FOLDER,
    checkpoint_path,
    complete_state,
    publish,
    state_weights,
    weights_digest,
)


class Recorder(TrainerCallback):
    """Evaluates, writes checkpoints and the history, and has the Trainer save its state.

    Args:
        loop: the Trainer.
        measured: data sets to measure accuracy on, by name.
        out: the run's folder.
        resumed: the step to go on after; 0 for a new run.
        advance: called after every step.
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

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make sure that the Trainer has restored all weights; it only warns where it has not.

        Raises:
            MechcoreError: it has not.
        """
        model = cast(PreTrainedModel, self.loop.model)
        if self.resumed and weights_digest(model) != state_weights(self.out, self.resumed):
            raise MechcoreError(
                f"{self.out / STATE_FOLDER}: the state of step {self.resumed} does not fit this "
                "model; remove the folder to begin anew"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluate, and ask for a state, when it is time."""
        settings, step, last = self.loop.settings, state.global_step, self.loop.total
        if step % settings.evaluate_every == 0 or step == last:
            self._evaluate(step)
        control.should_save = step % settings.checkpoint_every == 0 and step < last
        self.advance()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark a state as complete."""
        complete_state(self.out, state.global_step, cast(nn.Module, self.loop.model))

    def _evaluate(self, step: int) -> None:
        settings, final = self.loop.settings, step == self.loop.total
        path = None
        if final or step % settings.checkpoint_every == 0:
            path = self.out / FINAL if final else checkpoint_path(self.out, step)
        dtype = torch.float32 if final else getattr(torch, settings.checkpoint_dtype)
        losses, self.loop.losses = self.loop.losses, []
        record = {
            "step": step,
            "loss": sum(losses) / len(losses),
            "accuracy": self._accuracies(dtype, path),
            "seconds": round(time.monotonic() - self.started, 1),
        }
        self.records.append(record)
        write_json(self.out / HISTORY_FILE, {"evaluations": self.records})
        accuracy: Any = record["accuracy"]
        shown = ", ".join(f"{name} {values[ALL]:.3f}" for name, values in accuracy.items())
        say(f"step {step}: loss {record['loss']:.3f}" + (f", accuracy {shown}" if shown else ""))

    def _accuracies(self, dtype: torch.dtype, path: Path | None) -> dict[str, dict[str, float]]:
        """Accuracies of the weights as stored, which are also stored if there is a path."""
        model, objective = cast(PreTrainedModel, self.loop.model), self.loop.objective
        with _without_autocast(model):
            stored: Any = model if dtype == torch.float32 else copy.deepcopy(model)
            stored = stored.to(dtype)
            if path is not None:
                publish(stored, objective.tokenizer, path)
            stored = stored.float()
            found = {name: accuracies(stored, objective, d) for name, d in self.measured.items()}
        model.train()
        return found


@contextmanager
def _without_autocast(model: nn.Module) -> Iterator[None]:
    """Leave out, inside the block, the autocast that Accelerate puts around ``forward``."""
    wrapped = vars(model).pop("forward", None)
    try:
        yield
    finally:
        if wrapped is not None:
            vars(model)["forward"] = wrapped
