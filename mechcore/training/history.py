"""The history of a training run: its evaluations, the best one, and when it ends."""

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
"""Digits to which accuracy differences are rounded: 0.51 - 0.5 > 0.01 in floating point."""


def write_records(out: Path, records: Sequence[dict[str, Any]], best: int | None) -> None:
    """Write the evaluations and, if training has a patience, the step of the best one."""
    of_best = {} if best is None else {"best": best}
    write_json(out / HISTORY_FILE, {"evaluations": list(records), **of_best})


def read_records(out: Path) -> list[dict[str, Any]]:
    """The recorded evaluations, in order; empty if there is no history yet."""
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
            f"{path}: not a history of a training run ({error!r}); expected an object with "
            "evaluations: restore it, or train again into another folder"
        ) from error
    return records, best


def read_history(out: str | Path) -> pd.DataFrame:
    """The evaluations of a run, one row per evaluation, data set and subset.

    Columns: ``step``, ``loss`` (mean training cross-entropy in nats since the previous evaluation),
    ``dataset``, ``subset`` (``"all"`` for the whole data set), ``accuracy`` (share from 0 to 1).

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
    """The step of the best evaluation so far, used for ``final``; None without a patience."""
    return _read(Path(out))[1]


@dataclass(frozen=True)
class Standing:
    """The best step so far, its accuracy (a share), and the number of evaluations since."""

    best: int
    accuracy: float
    waited: int


def watching(settings: TrainSettings, evaluations: Collection[str]) -> TrainSettings:
    """The settings with the name of the evaluation data set to watch, if any is watched."""
    if settings.patience is None:
        return settings
    if not evaluations:
        raise InputError(
            f"training: patience is {settings.patience}, but there are no evaluation data to "
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
    """The state of a training after these evaluations; None without a patience or evaluations."""
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
    """Whether training ends after these evaluations, with at most ``total`` steps."""
    if records and records[-1]["step"] == total:
        return True
    now = standing(records, settings)
    return now is not None and settings.patience is not None and now.waited >= settings.patience
