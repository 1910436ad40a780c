"""Effective size over the checkpoints of a training run, by pruning each of them."""

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
        Column("in_grid", "flag", "whether ``grid`` has the checkpoint", optional=True),
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
    """The checkpoints of a training run, by their step if all can be told, else by name.

    Those whose step can be told come first, in its order.

    Args:
        paths: checkpoint directories, or folders of them (``step-0500`` or ``checkpoint-500``,
            and ``final``, perhaps the folder itself); none stands for the embedded encoder's.
        model: everything else about the model.

    Raises:
        InputError: a path holds no checkpoint, or two have the same name.
    """
    if not paths and model.embedded != "encoder":
        raise InputError(
            f"checkpoints: the embedded {model.embedded} has no series of them; name others with "
            "--checkpoints, or leave out --embedded"
        )
    if not paths:
        return {step: replace(model, checkpoint=path.name) for step, path in encoder_checkpoints()}
    by_name: dict[str, tuple[int | str, Path]] = {}
    for step, path in [pair for place in paths for pair in _checkpoints(Path(place)).items()]:
        name = str(step)
        if name in by_name:
            raise InputError(f"checkpoints: {path} and {by_name[name][1]} are both {name}")
        by_name[name] = (step, path)
    steps = sorted(pair for pair in by_name.values() if isinstance(pair[0], int))
    named = [pair for pair in by_name.values() if isinstance(pair[0], str)]
    order = [*steps, *named]
    return {str(step) if named else step: replace(model, source=str(path)) for step, path in order}


def _checkpoints(path: Path) -> dict[int | str, Path]:
    """Checkpoints in a folder by their step or name, or the folder itself if it has none in it.

    ``final`` is left out where it is a copy of another one, by its step. So is a model on top of
    others, the final one as the Trainer of transformers leaves it, by its weights.
    """
    inside: dict[int | str, Path] = {}
    for folder in sorted(file.parent for file in path.glob("*/config.json")):
        step = _step(folder)
        if folder.name != FINAL or step not in inside:
            inside[step] = folder
    if not (path / "config.json").is_file():
        if not inside:
            raise InputError(
                f"checkpoints: {path} is no checkpoint and has none in it; expected config.json in "
                "it or in its folders"
            )
        return inside
    numbered: dict[int | str, Path] = {
        step: inside[step] for step in inside if isinstance(step, int)
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
        return best_step(path.parent) or last  # whose weights they are
    return path.name


def accuracies_by_checkpoint(
    tables: Mapping[Any, pd.DataFrame],
    groups: Mapping[str, Sequence[str]],
    subnetworks: Mapping[Any, pd.DataFrame] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, list[str]]]:
    """Tables ``accuracy`` of all checkpoints as effective sizes are worked out from them.

    Args:
        tables: by checkpoint.
        groups: see `mechcore.steps.tables.subset_groups`; one of which a subset has no example is
            left out, with a warning.
        subnetworks: tables of that name by checkpoint, for what masks keep.

    Returns:
        The tables ``full`` and ``grid`` of `effective_size`, and its groups: ``ID``, ``OOD`` and
        ``mixed`` (both), each with the subsets of its data, as ``split:subset``, and those given.
    """
    fulls, grids = [], []
    for name, table in tables.items():
        subsets = proper_subsets(table)
        accuracy = subsets.assign(
            subset=subsets["split"] + ":" + subsets["subset"],
            target_sparsity=subsets["target_sparsity"],
        )
        accuracy.insert(0, "checkpoint", name)
        if subnetworks is not None:
            pruned = subnetworks[name].set_index("subnetwork")["sparsity"]
            accuracy[KEPT] = 1 - accuracy["subnetwork"].map(pruned)
        is_full = accuracy["seed"].isna()
        fulls.append(accuracy[is_full])
        grids.append(accuracy[~is_full])
    full, grid = pd.concat(fulls, ignore_index=True), pd.concat(grids, ignore_index=True)
    chosen = {
        name: [f"{split}:{subset}" for subset in subsets]
        for name, (split, subsets) in subset_groups(subsets, groups).items()
    }
    chosen["mixed"] = chosen["ID"] + chosen["OOD"]
    there = set(full["subset"])
    for name, members in [*chosen.items()]:
        if missing := [subset for subset in members if subset not in there]:
            del chosen[name]
            warn(
                f"effective size: left out of group {name!r}, as there is no example of "
                f"{', '.join(missing)}"
            )
    return (
        full[["checkpoint", "subset", "accuracy"]],
        grid[[c for c in GRID_TABLE.names if c in grid]].astype({"seed": int}),
        chosen,
    )


def size_tables(
    full: pd.DataFrame, grid: pd.DataFrame, groups: Mapping[str, Sequence[str]], tolerance: float
) -> dict[str, pd.DataFrame]:
    """The tables ``full``, ``grid``, ``effective_size`` (per seed) and ``mean_effective_size``.

    The last also has full_accuracy, the full model's accuracy on the group, and the first in_grid,
    whether ``grid`` has subnetworks of the checkpoint; the others are in no table of sizes.
    """
    sizes = effective_size(full, grid, groups=groups, tolerance=tolerance)
    full = full.assign(in_grid=full["checkpoint"].isin(grid["checkpoint"]))
    means = mean_effective_size(sizes)
    accuracy = sizes.groupby(["group", "checkpoint"], sort=False, as_index=False)["full_accuracy"]
    means = means.merge(accuracy.first(), on=["group", "checkpoint"])
    return {"full": full, "grid": grid, EFFECTIVE_SIZE.name: sizes, "mean_effective_size": means}
