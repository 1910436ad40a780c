"""The history of a training run: its evaluations, and which of them is the best."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.errors import InputError
from mechcore.files import write_json

HISTORY_FILE = "history.json"


def write_records(out: Path, records: Sequence[dict[str, Any]], best: int | None) -> None:
    """Write the evaluations, and the step of the best one where training has a patience."""
    named = {} if best is None else {"best": best}
    write_json(out / HISTORY_FILE, {"evaluations": list(records), **named})


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
    """The step of the best evaluation of a run with a patience, the best so far while it goes on.

    ``final`` has its weights.

    Returns:
        The step; None for a run without a patience, whose ``final`` is that of its last step.

    Raises:
        InputError: ``out`` holds no history, or a damaged one.
    """
    return _read(Path(out))[1]
