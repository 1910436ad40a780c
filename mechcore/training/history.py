"""The history of a training run: its evaluations, which of them is the best, and when it ends."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.data.examples import ALL
from mechcore.errors import InputError
from mechcore.files import write_json
from mechcore.training.settings import TrainSettings

HISTORY_FILE = "history.json"

_DIGITS = 9
"""Differences of accuracies are rounded to them: 0.51 - 0.5 is above 0.01 in floating point."""


def write_records(out: Path, records: Sequence[dict[str, Any]], best: int | None) -> None:
    """Write the evaluations, and the step of the best one where training has a patience."""
    of_best = {} if best is None else {"best": best}
    write_json(out / HISTORY_FILE, {"evaluations": list(records), **of_best})


def read_records(out: Path) -> list[dict[str, Any]]:
    """The evaluations as they were recorded, in order; none where there is no history yet."""
    return _read(out)[0] if (out / HISTORY_FILE).is_file() else []


def _read(out: Path) -> tuple[list[dict[str, Any]], int | None]:
    path = out / HISTORY_FILE
    if not path.is_file():
        raise InputError(f"{path}: not found; expected the history of a training run")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        records, best = list(content["evaluations"]), content.get("best")
        if best is not None and best not in [record["step"] for record in records]:
            raise ValueError(f"step {best!r}, the best, was not evaluated")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: is no history of a training run ({error!r}); expected an object with "
            "evaluations: restore it, or train again into another folder"
        ) from error
    return records, best


def read_history(out: str | Path) -> pd.DataFrame:
    """The evaluations of a run.

    Returns:
        One row per evaluation, data set and subset: ``step``, ``loss`` (mean training
        cross-entropy in nats since the evaluation before), ``dataset``, ``subset`` (``"all"`` for
        the whole data set), ``accuracy`` (share from 0 to 1).

    Raises:
        InputError: ``out`` holds no history, or a damaged one.
    """
    rows = [
        (record["step"], record["loss"], dataset, subset, accuracy)
        for record in _read(Path(out))[0]
        for dataset, values in record["accuracy"].items()
        for subset, accuracy in values.items()
    ]
    return pd.DataFrame(rows, columns=["step", "loss", "dataset", "subset", "accuracy"])


def best_step(out: str | Path) -> int | None:
    """The step of the best evaluation so far, which ``final`` is of; None without a patience.

    Raises:
        InputError: ``out`` holds no history, or a damaged one.
    """
    return _read(Path(out))[1]


@dataclass(frozen=True)
class Standing:
    """The best step so far, its accuracy (a share), and how many evaluations came since."""

    best: int
    accuracy: float
    waited: int


def watching(settings: TrainSettings, evaluations: Collection[str]) -> TrainSettings:
    """The settings with the name of the evaluation data set to watch, if any is watched."""
    if settings.patience is None:
        return settings
    if not evaluations:
        raise InputError(
            f"training: patience is {settings.patience}, and there are no evaluation data to "
            "watch; expected at least one data set (evaluations in Python, --id or --ood on the "
            "command line), or no patience"
        )
    name = next(iter(evaluations)) if settings.watch is None else settings.watch
    if name not in evaluations:
        raise InputError(
            f"training: watch is {name!r}; expected the name of an evaluation data set: "
            f"{', '.join(evaluations)}"
        )
    return replace(settings, watch=name)


def standing(records: Sequence[Mapping[str, Any]], settings: TrainSettings) -> Standing | None:
    """Where a training stands after these evaluations; None without a patience, or before any."""
    if settings.patience is None:
        return None
    now: Standing | None = None
    for record in records:
        accuracy = record["accuracy"][settings.watch][ALL]
        if now is None or round(accuracy - now.accuracy, _DIGITS) > settings.min_delta:
            now = Standing(record["step"], accuracy, 0)
        else:
            now = replace(now, waited=now.waited + 1)
    return now


def has_ended(records: Sequence[Mapping[str, Any]], settings: TrainSettings, total: int) -> bool:
    """Whether no step comes after these evaluations, of ``total`` steps at most."""
    if records and records[-1]["step"] == total:
        return True
    now = standing(records, settings)
    return now is not None and settings.patience is not None and now.waited >= settings.patience
