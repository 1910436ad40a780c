"""When a training with a patience has ended, and which of its evaluations is the best."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mechcore.data.examples import ALL
from mechcore.errors import InputError
from mechcore.training.settings import TrainSettings

_DIGITS = 9
"""Differences of accuracies are rounded to them: 0.51 - 0.5 is above 0.01 in floating point."""


@dataclass(frozen=True)
class Standing:
    """Where a training stands after its latest evaluation.

    Attributes:
        best: step of the best evaluation.
        accuracy: its accuracy, a share from 0 to 1.
        waited: evaluations since then.
    """

    best: int
    accuracy: float
    waited: int


def watching(settings: TrainSettings, evaluations: Collection[str]) -> TrainSettings:
    """The settings with the name of the evaluation data set to watch, if any is watched.

    Raises:
        InputError: there is none of this name, or none at all.
    """
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
    found: Standing | None = None
    for record in records:
        accuracy = record["accuracy"][settings.watch][ALL]
        if found is None or round(accuracy - found.accuracy, _DIGITS) > settings.min_delta:
            found = Standing(record["step"], accuracy, 0)
        else:
            found = replace(found, waited=found.waited + 1)
    return found


def has_ended(records: Sequence[Mapping[str, Any]], settings: TrainSettings, total: int) -> bool:
    """Whether no step comes after these evaluations, of ``total`` steps at most."""
    if records and records[-1]["step"] == total:
        return True
    now = standing(records, settings)
    return now is not None and settings.patience is not None and now.waited >= settings.patience
