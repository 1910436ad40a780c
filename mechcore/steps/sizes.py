"""Effective size over the checkpoints of a training run, each of which is pruned."""

from __future__ import annotations

import filecmp
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.errors import InputError, warn
from mechcore.steps.config import ModelConfig
from mechcore.steps.tables import proper_subsets, subset_groups
from mechcore.subnetworks.effective_size import (
    EFFECTIVE_SIZE,
    KEPT,
    effective_size,
    mean_effective_size,
)
from mechcore.tables import CHECKPOINT, SEED, SUBSET, Column, Schema
from mechcore.training import HISTORY_FILE, best_step, read_history
from mechcore.training.run_folder import FINAL
from mechcore.worlds.embedded import encoder_checkpoints

_SUBSET = SUBSET.alike("subset", "``split:subset``")
_ACCURACY = Column("accuracy", "share", "accuracy")
FULL_TABLE = Schema(
    "full",
    "Accuracy of the full model at every checkpoint.",
    (
        CHECKPOINT,
        _SUBSET,
        _ACCURACY,
        Column("in_grid", "flag", "whether ``grid`` has it", optional=True),
    ),
)
GRID_TABLE = Schema(
    "grid",
    "Accuracy of the subnetworks of every checkpoint.",
    (
        CHECKPOINT,
        SEED,
        Column("target_sparsity", "share", "target sparsity"),
        _SUBSET,
        _ACCURACY,
        Column(KEPT, "share", "share of components kept", optional=True),
    ),
)

_WEIGHTS = "*.safetensors"
_NUMBERED = re.compile(r"(?:step|checkpoint)[-_](\d+)")


def checkpoint_series(paths: Sequence[str], model: ModelConfig) -> dict[Any, ModelConfig]:
    """The checkpoints of a training run, by step if all steps are known, else by name.

    ``paths`` are checkpoints, or folders of them; none stand for the embedded encoder's. Raises
    `InputError` if a path holds no checkpoint, or two have the same name.
    """
    if not paths and model.embedded != "encoder":
        raise InputError(
            f"checkpoints: the embedded {model.embedded} has no series of checkpoints; name others "
            "with --checkpoints, or leave out --embedded"
        )
    if not paths:
        return {step: replace(model, checkpoint=path.name) for step, path in encoder_checkpoints()}
    by_name: dict[str, tuple[Any, Path]] = {}
    for pair in [pair for place in paths for pair in _checkpoints(Path(place)).items()]:
        other = by_name.setdefault(str(pair[0]), pair)
        if other is not pair:
            raise InputError(f"checkpoints: {pair[1]} and {other[1]} are both {pair[0]}")
    steps = sorted(pair for pair in by_name.values() if isinstance(pair[0], int))
    named = [pair for pair in by_name.values() if isinstance(pair[0], str)]
    order = [*steps, *named]
    return {str(step) if named else step: replace(model, source=str(path)) for step, path in order}


def _checkpoints(path: Path) -> dict[int | str, Path]:
    """Checkpoints in a folder by step or name, or itself; a final one only if it is no copy."""
    inside: dict[int | str, Path] = {}
    for folder in sorted(file.parent for file in path.glob("*/config.json")):
        step = _step(folder)
        if folder.name != FINAL or step not in inside:
            inside[step] = folder
    if not (path / "config.json").is_file():
        if not inside:
            raise InputError(
                f"checkpoints: {path} is not a checkpoint and contains none; expected config.json "
                "in it or in its folders"
            )
        return inside
    numbered: dict[int | str, Path] = {
        step: folder for step, folder in inside.items() if isinstance(step, int)
    }
    if not numbered:
        return {_step(path): path}
    if not any(_has_same_weights(path, folder) for folder in numbered.values()):
        numbered[FINAL] = path
    return numbered


def _has_same_weights(one: Path, other: Path) -> bool:
    files = {path.name for path in (*one.glob(_WEIGHTS), *other.glob(_WEIGHTS))}
    return bool(files) and not any(filecmp.cmpfiles(one, other, files, shallow=False)[1:])


def _step(path: Path) -> int | str:
    if match := _NUMBERED.fullmatch(path.name):
        return int(match[1])
    if path.name == FINAL and (path.parent / HISTORY_FILE).is_file():
        last = int(read_history(path.parent)["step"].max())
        return best_step(path.parent) or last  # the step that its weights come from
    return path.name


def accuracies_by_checkpoint(
    tables: Mapping[Any, pd.DataFrame],
    groups: Mapping[str, Sequence[str]],
    subnetworks: Mapping[Any, pd.DataFrame] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, list[str]]]:
    """The tables ``full`` and ``grid`` of `effective_size`, and its groups with examples."""
    parts = []
    for name, table in tables.items():
        subsets = proper_subsets(table)
        part = subsets.assign(checkpoint=name, subset=subsets["split"] + ":" + subsets["subset"])
        if subnetworks is not None:
            pruned = subnetworks[name].set_index("subnetwork")["sparsity"]
            part[KEPT] = 1 - part["subnetwork"].map(pruned)
        parts.append(part)
    accuracy = pd.concat(parts, ignore_index=True)
    is_full = accuracy["seed"].isna()
    full = accuracy.loc[is_full, ["checkpoint", "subset", "accuracy"]].reset_index(drop=True)
    grid = accuracy.loc[~is_full, [name for name in GRID_TABLE.names if name in accuracy]]
    members = {
        name: [f"{split}:{subset}" for subset in names]
        for name, (split, names) in subset_groups(subsets, groups).items()
    }
    members["mixed"] = members["ID"] + members["OOD"]
    there = set(full["subset"])
    for name, names in [*members.items()]:
        if missing := [subset for subset in names if subset not in there]:
            del members[name]
            warn(
                f"effective size: group {name!r} is omitted because there are no examples of "
                f"{', '.join(missing)}"
            )
    return full, grid.reset_index(drop=True).astype({"seed": int}), members


def size_tables(
    full: pd.DataFrame, grid: pd.DataFrame, groups: Mapping[str, Sequence[str]], tolerance: float
) -> dict[str, pd.DataFrame]:
    """The tables ``full``, ``grid``, ``effective_size`` (per seed) and ``mean_effective_size``."""
    sizes = effective_size(full, grid, groups=groups, tolerance=tolerance)
    full = full.assign(in_grid=full["checkpoint"].isin(grid["checkpoint"]))
    means = mean_effective_size(sizes)
    accuracy = sizes.groupby(["group", "checkpoint"], sort=False, as_index=False)["full_accuracy"]
    means = means.merge(accuracy.first(), on=["group", "checkpoint"])
    return {"full": full, "grid": grid, EFFECTIVE_SIZE.name: sizes, "mean_effective_size": means}
