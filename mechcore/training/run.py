"""A training run, from its first step or from where it was interrupted."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pandas as pd
import torch
from torch import nn
from transformers import PreTrainedModel

from mechcore import progress as display
from mechcore.data.examples import Examples
from mechcore.errors import InputError, warn
from mechcore.files import appearing
from mechcore.models.checkpoint_files import without_bars
from mechcore.session import plain_session
from mechcore.training.loop import (
    Loop,
    Recorder,
    arguments_for,
    device_of,
    own_randomness,
    unprepared,
)
from mechcore.training.objectives import Objective
from mechcore.training.run_folder import (
    FINAL,
    STATE_FOLDER,
    begin,
    best_path,
    best_step,
    facts_of,
    has_ended,
    newest_state,
    read_history,
    read_records,
    remove_after,
    watching,
)
from mechcore.training.settings import TrainSettings


@plain_session()
def train(
    model: PreTrainedModel,
    objective: Objective,
    examples: Examples,
    evaluations: Mapping[str, Examples],
    out: str | Path,
    settings: TrainSettings,
    progress: bool = True,
    device: str | torch.device | None = None,
) -> pd.DataFrame:
    """Train ``model`` in place with `transformers.Trainer`, and write the run's folder ``out``.

    When called again with the same arguments, an interrupted run resumes after its last checkpoint;
    a finished run is not repeated, and ``model`` gets its weights. With ``settings.patience``
    training ends early, and ``model`` and ``final`` get the weights of the best evaluation, see
    `best_step`. Training is on one device, by default the model's.

    ``model`` has float32 weights and the head that ``objective`` (from `classification` or
    `answering`) reads. ``evaluations`` are data sets to measure accuracy on, by the name used in
    the history, which is returned, see `read_history`.

    Raises:
        InputError: ``out`` holds another run or other files, there are fewer examples than a
            batch, an input is too long, labels and classes do not match, there are no data to
            watch, or the device does not support the settings.
        MechcoreError: the loss is no longer finite.
    """
    out, place = Path(out), device_of(device or model.device)
    settings = watching(settings, evaluations)
    total = settings.total_steps(len(examples))
    _check_weights(model)
    arguments = arguments_for(settings, total, out / STATE_FOLDER, place)
    encoded = objective.encode(examples)
    objective.targets(examples)
    measured = {name: objective.encode(data) for name, data in evaluations.items()}
    for data in evaluations.values():
        objective.correct(data)
    facts = facts_of(model, objective, encoded, measured, settings)
    begin(out, facts, place)
    if has_ended(read_records(out), settings, total) and (out / FINAL).is_dir():
        shutil.rmtree(out / STATE_FOLDER, ignore_errors=True)
        display.say(f"{out}: already finished")
        _take_weights(model, out / FINAL, place)
        return read_history(out)
    if place.type == "cuda" and torch.cuda.device_count() > 1:
        warn(
            f"training: {torch.cuda.device_count()} GPUs are visible, but only {arguments.device} "
            "is used"
        )
    shown = display.shown() if progress and not display.is_shown() else nullcontext()
    with shown:
        resumed = newest_state(out)
        remove_after(out, resumed)
        if resumed:
            display.say(f"{out}: resuming from step {resumed}")
        with (
            own_randomness(place),
            unprepared(model),
            without_bars(),
            display.bar("training", total) as advance,
        ):
            advance(resumed)
            loop = Loop(model, objective, encoded, settings, total, arguments)
            loop.add_callback(Recorder(loop, measured, out, resumed, lambda: advance(1)))
            state = out / STATE_FOLDER / f"checkpoint-{resumed}"
            loop.train(str(state) if resumed else None)
            advance(total - loop.state.global_step)
    if (best := best_step(out)) is not None:
        with appearing(out / FINAL) as folder:
            shutil.copytree(best_path(out, best), folder, dirs_exist_ok=True)
        _take_weights(model, out / FINAL, place)
    shutil.rmtree(out / STATE_FOLDER)
    return read_history(out)


def _check_weights(model: PreTrainedModel) -> None:
    if len(places := {p.device for p in model.parameters()}) > 1:
        raise InputError(
            f"model: found weights on {' and '.join(sorted(map(str, places)))}; mechcore trains on "
            "one device: load it without a device_map"
        )
    others = {p.dtype for p in model.parameters() if p.is_floating_point()} - {torch.float32}
    if others:
        raise InputError(
            f"model: found weights of {others.pop()}; expected float32: call "
            "model.float(), and choose the precision of computations with the setting precision"
        )


def _take_weights(model: PreTrainedModel, path: Path, device: torch.device) -> None:
    with without_bars():
        trained = type(model).from_pretrained(path, dtype=torch.float32)
    model.load_state_dict(trained.state_dict())
    nn.Module.to(model, device)
