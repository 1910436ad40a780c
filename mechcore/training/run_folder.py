"""The folder of a training run: its inputs, its checkpoints, and its state."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import accelerate
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer import TRAINER_STATE_NAME

from mechcore.data.encoding import EncodedExamples
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
    if different := _differences(before, facts):
        raise InputError(
            f"{out}: found another training run; these differ: {', '.join(different)}. Use the "
            "same settings, choose another folder, or remove this one"
        )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    flat = [{**facts, **facts.get("settings", {}), "settings": None} for facts in (before, now)]
    return [name for name in flat[1] if flat[0].get(name) != flat[1][name]]


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


def state_path(out: Path, step: int) -> Path:
    """The folder in which the Trainer saves its state after a step."""
    return out / STATE_FOLDER / f"checkpoint-{step}"


def best_path(out: Path, step: int) -> Path:
    """The folder of the weights of the best evaluation until training ends."""
    return out / STATE_FOLDER / f"best-{step}"


def keep_best(out: Path, best: int | None) -> None:
    """Remove the weights of earlier best evaluations."""
    for path in (out / STATE_FOLDER).glob("best-*"):
        if best is None or path != best_path(out, best):
            shutil.rmtree(path)


def finish_with(out: Path, best: int) -> None:
    """Make the weights of the best evaluation the last checkpoint."""
    with appearing(out / FINAL) as folder:
        shutil.copytree(best_path(out, best), folder, dirs_exist_ok=True)


def newest_state(out: Path) -> int:
    """The step of the newest state; 0 if there is none. The Trainer writes its own file last."""
    last = (out / STATE_FOLDER).glob(f"checkpoint-*/{TRAINER_STATE_NAME}")
    states = [file.parent.name for file in last if file.stat().st_size]
    return max((int(name.rpartition("-")[2]) for name in states), default=0)
