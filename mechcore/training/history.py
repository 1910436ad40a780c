"""The history of a training run: its evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.errors import InputError

HISTORY_FILE = "history.json"


def read_records(out: Path) -> list[dict[str, Any]]:
    """The evaluations as they were recorded, in order; none where there is no history yet."""
    path = out / HISTORY_FILE
    if not path.is_file():
        return []
    try:
        return list(json.loads(path.read_text(encoding="utf-8"))["evaluations"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: is no history of a training run ({error!r}); expected an object with "
            "evaluations: restore it, or train again into another folder"
        ) from error


def read_history(out: str | Path) -> pd.DataFrame:
    """The evaluations of a run.

    Returns:
        One row per evaluation, data set and subset: ``step``, ``loss`` (mean training
        cross-entropy in nats since the evaluation before), ``dataset``, ``subset`` (``"all"`` for
        the whole data set), ``accuracy`` (share from 0 to 1).

    Raises:
        InputError: ``out`` holds no history, or a damaged one.
    """
    path = Path(out) / HISTORY_FILE
    if not path.is_file():
        raise InputError(f"{path}: not found; expected the history of a training run")
    rows = [
        (record["step"], record["loss"], dataset, subset, accuracy)
        for record in read_records(Path(out))
        for dataset, values in record["accuracy"].items()
        for subset, accuracy in values.items()
    ]
    return pd.DataFrame(rows, columns=["step", "loss", "dataset", "subset", "accuracy"])
