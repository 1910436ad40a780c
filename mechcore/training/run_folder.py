"""The folder of a training run: what it was trained on, its checkpoints, and its state."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import accelerate
import torch
import transformers
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError, shown
from mechcore.files import alone, appearing, check_can_write, tensors_digest, write_json
from mechcore.models.checkpoint_files import without_bars
from mechcore.progress import say
from mechcore.training.objectives import Objective
from mechcore.training.settings import TrainSettings

SETTINGS_FILE = "training.json"
STATE_FOLDER = "state"
FINAL = "final"
_LOCK = ".training.lock"
_COMPLETE = "complete.json"
"""Written last into a state, with the sizes of its files."""


def checkpoint_path(out: Path, step: int) -> Path:
    """Directory of the checkpoint of one step."""
    return out / f"step-{step:04d}"


# -- what was trained -----------------------------------------------------------------------------


def facts_of(
    model: PreTrainedModel,
    objective: Objective,
    examples: EncodedExamples,
    evaluations: Mapping[str, EncodedExamples],
    settings: TrainSettings,
) -> dict[str, Any]:
    """Everything that decides the result of a run, as JSON values."""
    facts = {
        "settings": settings.facts(),
        "objective": {
            "classes": objective.classes,
            "prompt": objective.prompt,
            "answers": objective.answers,
            "max_length": objective.max_length,
            **({"whole": True} if objective.whole else {}),
        },
        "model": {"class": type(model).__name__, "initial_weights": weights_digest(model)},
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


def versions() -> dict[str, str]:
    """Versions of what a training result depends on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "accelerate": accelerate.__version__,
    }


def weights_digest(model: nn.Module) -> str:
    """SHA-256 of all weights and buffers, hexadecimal."""
    return tensors_digest(model.state_dict())


def held(out: Path) -> AbstractContextManager[None]:
    """Hold a lock on the folder of a run, so that no other process trains into it meanwhile.

    Raises:
        InputError: another one does.
    """
    return alone(
        out / _LOCK,
        f"{out}: another process is training into it; wait until it ends, or choose another folder",
    )


def begin(out: Path, facts: Mapping[str, Any], device: torch.device) -> None:
    """Make the folder of a run, or make sure that it is the folder of this one.

    Raises:
        InputError: it holds something else, or a run of other facts, or cannot be written.
    """
    path = out / SETTINGS_FILE
    if not path.is_file():
        if out.is_file() or (out.is_dir() and {path.name for path in out.iterdir()} - {_LOCK}):
            raise InputError(
                f"{out}: is not empty, and no training run ({SETTINGS_FILE} is missing); expected "
                "a new folder, or that of the same run to go on"
            )
        check_can_write(out)
        made_with = {"versions": versions(), "device": device.type}
        write_json(path, {**facts, "made_with": made_with})
        return
    try:
        before = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path}: is damaged ({error}); remove {out} to train anew, or choose another folder"
        ) from error
    if different := _differences(before, facts):
        raise InputError(
            f"{out}: holds another training run; different are {'; '.join(different)}. Go on with "
            "the same, choose another folder, or remove this one"
        )
    made_with = before.get("made_with", {})
    if changed := _differences(made_with, {"versions": versions(), "device": device.type}):
        say(f"{out}: goes on with {'; '.join(changed)}: last bits may differ")


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> list[str]:
    """What differs between nested JSON objects, as ``name (before -> now)``."""
    found = []
    for name, value in now.items():
        old, where = before.get(name), f"{path}{name}"
        if isinstance(old, dict) and isinstance(value, dict):
            gone = {key: None for key in old if key not in value}
            found += _differences(old, {**value, **gone}, f"{where}.")
        elif old != value:
            given = ["given" if isinstance(each, dict) else shown(each) for each in (old, value)]
            found.append(f"{where} ({' -> '.join(given)})")
    return found


# -- checkpoints ----------------------------------------------------------------------------------


def publish(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Save a checkpoint that appears under its name only when it is complete.

    Half-precision weights are marked to be loaded in float32: they are stored small, not meant to
    be computed with.
    """
    with without_bars(), appearing(path) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        write_json(folder / "config.json", {**config, "dtype": "float32"})


def remove_after(out: Path, step: int) -> None:
    """Remove the weights of steps after one, which are made again, and half-written ones."""
    for path in (out / STATE_FOLDER).glob("best-*"):
        if int(path.name.removeprefix("best-")) > step:
            shutil.rmtree(path)
    for path in out.iterdir():
        number = path.name.removeprefix("step-")
        later = number != path.name and number.isdigit() and int(number) > step
        half = path.name.startswith(".") and (".step-" in path.name or path.name.endswith(FINAL))
        if path.is_dir() and (later or half or path.name == FINAL):
            shutil.rmtree(path)


# -- state ----------------------------------------------------------------------------------------


def state_path(out: Path, step: int) -> Path:
    """Where the Trainer saves its state after a step."""
    return out / STATE_FOLDER / f"checkpoint-{step}"


def best_path(out: Path, step: int) -> Path:
    """Where the weights of the best evaluation are kept until training ends."""
    return out / STATE_FOLDER / f"best-{step}"


def finish_with(out: Path, best: int) -> None:
    """Make the weights of the best evaluation the last checkpoint."""
    with appearing(out / FINAL) as folder:
        shutil.copytree(best_path(out, best), folder, dirs_exist_ok=True)


def complete_state(out: Path, step: int, model: nn.Module, best: int | None = None) -> None:
    """Mark the state of a step as complete, and remove the others.

    The weights of the ``best`` step so far, where there is one, are part of the state.
    """
    path = state_path(out, step)
    kept = [path] if best is None else [path, best_path(out, best)]
    files = {}
    for file in [file for folder in kept for file in sorted(folder.iterdir())]:
        with file.open("r+b") as handle:
            os.fsync(handle.fileno())
        files[Path(os.path.relpath(file, path)).as_posix()] = file.stat().st_size
    write_json(path / _COMPLETE, {"files": files, "weights": weights_digest(model)})
    for other in path.parent.iterdir():
        if other not in kept:
            shutil.rmtree(other)


def newest_state(out: Path) -> int:
    """The step of the newest complete state; 0 if there is none."""
    folders = (out / STATE_FOLDER).glob("checkpoint-*")
    for step in sorted((int(path.name.rpartition("-")[2]) for path in folders), reverse=True):
        if _is_complete(state_path(out, step)):
            return step
        say(f"{state_path(out, step)}: is incomplete and passed over")
    return 0


def state_weights(out: Path, step: int) -> str:
    """Digest of the weights of a complete state."""
    content = json.loads((state_path(out, step) / _COMPLETE).read_text(encoding="utf-8"))
    return str(content["weights"])


def _is_complete(path: Path) -> bool:
    try:
        files = json.loads((path / _COMPLETE).read_text(encoding="utf-8"))["files"]
        return all((path / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False
