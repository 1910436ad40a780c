"""The command that fine-tunes checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mechcore import progress
from mechcore.cli.options import From, Given, grouped
from mechcore.cli.shared import BASE, TASK, TEST_DATA, TRAIN, show
from mechcore.errors import InputError
from mechcore.main_study.config import StudyConfig
from mechcore.steps.config import ModelConfig
from mechcore.training.settings import TrainSettings

_MOST_ROWS = 20


@grouped
def train(
    given: Annotated[
        Given[StudyConfig],
        From(StudyConfig, (*BASE, *TRAIN, *TEST_DATA, *TASK), defaults={"data.max_train": None}),
    ],
    how: Annotated[Given[TrainSettings], From(TrainSettings)],
    device: Annotated[
        str | None,
        typer.Option("--device", help="cpu, cuda or mps; by default cuda if available."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for checkpoints and history.")] = Path(
        "mechcore-training"
    ),
) -> None:
    """Fine-tune a checkpoint on your data, with intermediate checkpoints and a history.

    Rerun to resume after an interruption.
    """
    from mechcore.files import check_can_write

    if "checkpoint_every" in how.values:
        every = {"evaluate_every": how.values["checkpoint_every"]}
        how = replace(how, values={**every, **how.values})
    settings, config = how.settings, given.settings
    model, data = config.model, config.data
    _check_base(model)
    check_can_write(out)
    import torch

    from mechcore.steps.config import TEST_SPLITS
    from mechcore.steps.fitting import training_on
    from mechcore.steps.inputs import check_sources
    from mechcore.training import best_step
    from mechcore.training.loop import device_of

    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    device_of(place)
    splits = [split for split in TEST_SPLITS if data.task or getattr(data, split) is not None]
    check_sources(model, data, ["train", *splits])
    begin = training_on(model, data, settings, place, splits)
    with progress.shown():
        history = begin(out)
    _show_history(history)
    if (best := best_step(out)) is not None:
        print(f"the best evaluation was at step {best}; its weights are in {out / 'final'}")
    print(f"checkpoints and history: {out}")


def _check_base(base: ModelConfig) -> None:
    if base.source is None:
        raise InputError(
            "--model is missing; name the checkpoint to fine-tune, a directory or a hub id such "
            "as google-bert/bert-base-cased"
        )
    if (base.prompt is None) != (base.answers is None):
        raise InputError(
            "--prompt and --answers belong together: the text for a language model and the words "
            "that complete it; give both, or neither to train a classifier"
        )


def _show_history(history: Any) -> None:
    """Print accuracies by step; if there are many, only the last."""
    from mechcore.data.examples import ALL

    overall = history[history["subset"] == ALL]
    if overall.empty:
        return
    table = overall.pivot(index="step", columns="dataset", values="accuracy").reset_index()
    names = {"id": "ID accuracy", "ood": "OOD accuracy"}
    show(table.rename(columns=names).tail(_MOST_ROWS))
    if len(table) > _MOST_ROWS:
        print(f"the last {_MOST_ROWS} of {len(table)} evaluations; all are in history.json")
