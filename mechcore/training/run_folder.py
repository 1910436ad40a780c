"""The folder of a training run: its inputs, checkpoints, state, and history of evaluations."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import accelerate
import pandas as pd
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer import TRAINER_STATE_NAME

from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import ALL
from mechcore.errors import InputError
from mechcore.files import appearing, check_can_write, tensors_digest, write_json
from mechcore.models.checkpoint_files import without_bars
from mechcore.training.objectives import Objective
from mechcore.training.settings import TrainSettings

SETTINGS_FILE = "training.json"
STATE_FOLDER = "state"
FINAL = "final"


def checkpoint_path(out: Path, step: int) -> Path:
    """Directory of the checkpoint of one step."""
    return out / f"step-{step:04d}"


def facts_of(
    model: PreTrainedModel,
    objective: Objective,
    examples: EncodedExamples,
    evaluations: Mapping[str, EncodedExamples],
    settings: TrainSettings,
) -> dict[str, Any]:
    """Everything that determines the result of a run, as JSON values."""
    facts = {
        "settings": asdict(settings),
        "objective": {
            "classes": objective.classes,
            "prompt": objective.prompt,
            "answers": objective.answers,
            "max_length": objective.max_length,
        },
        "model": {
            "class": type(model).__name__,
            "initial_weights": tensors_digest(model.state_dict()),
        },
        "examples": _facts_of_examples(examples),
        "evaluations": {name: _facts_of_examples(data) for name, data in evaluations.items()},
    }
    return dict(json.loads(json.dumps(facts)))


def _facts_of_examples(data: EncodedExamples) -> dict[str, Any]:
    return {
        "name": data.examples.name,
        "n": len(data),
        "n_cut": data.n_cut,
        "fingerprint": data.fingerprint,
    }


def begin(out: Path, facts: Mapping[str, Any], device: torch.device) -> None:
    """Create the folder of a run, or check that it belongs to this run."""
    path = out / SETTINGS_FILE
    if not path.is_file():
        if out.is_file() or (out.is_dir() and any(out.iterdir())):
            raise InputError(
                f"{out}: not empty and not a training run ({SETTINGS_FILE} is missing); expected "
                "a new folder, or that of the same run to resume"
            )
        check_can_write(out)
        versions = {m.__name__: m.__version__ for m in (torch, transformers, accelerate)}
        versions["python"] = platform.python_version()
        made_with = {"versions": versions, "device": device.type}
        write_json(path, {**facts, "made_with": made_with})
        return
    try:
        before = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path}: damaged ({error}); remove {out} to train again, or choose another folder"
        ) from error
    flat = [{**run, **run.get("settings", {}), "settings": None} for run in (before, facts)]
    if different := [name for name in flat[1] if flat[0].get(name) != flat[1][name]]:
        raise InputError(
            f"{out}: found another training run; these differ: {', '.join(different)}. Use the "
            "same settings, choose another folder, or remove this one"
        )


def publish(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Save a checkpoint, which appears when it is complete, and is loaded in float32."""
    with without_bars(), appearing(path) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        write_json(folder / "config.json", {**config, "dtype": "float32"})


def remove_after(out: Path, step: int) -> None:
    """Remove states and weights of later steps, which will be made again, and incomplete ones."""
    for path in [*(out / STATE_FOLDER).glob("*-*"), *out.glob("step-*")]:
        number = path.name.rpartition("-")[2]
        if path.is_dir() and number.isdigit() and int(number) > step:
            shutil.rmtree(path)
    for path in [*out.glob(".*.step-*"), *out.glob(f".*.{FINAL}"), out / FINAL]:
        shutil.rmtree(path, ignore_errors=True)


def best_path(out: Path, step: int) -> Path:
    """The folder of the weights of the best evaluation until training ends."""
    return out / STATE_FOLDER / f"best-{step}"


def keep_best(out: Path, best: int | None) -> None:
    """Remove the weights of earlier best evaluations."""
    for path in (out / STATE_FOLDER).glob("best-*"):
        if best is None or path != best_path(out, best):
            shutil.rmtree(path)


def newest_state(out: Path) -> int:
    """The step of the newest state; 0 if there is none. The Trainer writes its own file last."""
    last = (out / STATE_FOLDER).glob(f"checkpoint-*/{TRAINER_STATE_NAME}")
    states = [file.parent.name for file in last if file.stat().st_size]
    return max((int(name.rpartition("-")[2]) for name in states), default=0)


HISTORY_FILE = "history.json"


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


def standing(
    records: Sequence[Mapping[str, Any]], settings: TrainSettings
) -> tuple[int, int] | None:
    """The best step so far and the evaluations since; None without a patience or evaluations."""
    if settings.patience is None or not records:
        return None
    accuracies = [record["accuracy"][settings.watch][ALL] for record in records]
    best = accuracies.index(max(accuracies))
    return records[best]["step"], len(records) - 1 - best


def has_ended(records: Sequence[Mapping[str, Any]], settings: TrainSettings, total: int) -> bool:
    """Whether training ends after these evaluations, with at most ``total`` steps."""
    if records and records[-1]["step"] == total:
        return True
    now = standing(records, settings)
    return now is not None and now[1] >= (settings.patience or 0)
