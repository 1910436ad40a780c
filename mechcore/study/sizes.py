"""Effective size over the checkpoints of a training run, by pruning each of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.effective_size import effective_size, mean_effective_size
from mechcore.errors import InputError
from mechcore.study.config import ModelConfig
from mechcore.study.steps import proper_subsets
from mechcore.tasks.embedded import encoder_checkpoints
from mechcore.training import HISTORY_FILE, read_history

_NUMBERED = re.compile(r"(?:step|checkpoint)[-_](\d+)")


def checkpoint_series(paths: Sequence[str], model: ModelConfig) -> dict[Any, ModelConfig]:
    """The checkpoints of a training run, by their step where it can be told, else by name.

    Args:
        paths: checkpoint directories, or folders of them (``step-0500`` or ``checkpoint-500``,
            and ``final``); none stands for the embedded encoder's.
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
    found: dict[Any, ModelConfig] = {}
    for path in [inner for each in paths for inner in _checkpoints(Path(each))]:
        name = _step(path)
        if name in found:
            raise InputError(f"checkpoints: {path} and {found[name].source} are both {name}")
        found[name] = replace(model, source=str(path))
    if all(isinstance(name, int) for name in found):
        return dict(sorted(found.items()))
    return {str(name): config for name, config in found.items()}


def _checkpoints(path: Path) -> list[Path]:
    if (path / "config.json").is_file():
        return [path]
    inside = sorted(each.parent for each in path.glob("*/config.json"))
    if not inside:
        raise InputError(
            f"checkpoints: {path} is no checkpoint and has none in it; expected config.json in it "
            "or in its folders"
        )
    return inside


def _step(path: Path) -> int | str:
    if match := _NUMBERED.fullmatch(path.name):
        return int(match[1])
    if path.name == "final" and (path.parent / HISTORY_FILE).is_file():
        return int(read_history(path.parent)["step"].max())
    return path.name


def accuracies_by_checkpoint(
    tables: Mapping[Any, pd.DataFrame], groups: Mapping[str, Sequence[str]] | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, list[str]]]:
    """Tables ``accuracy`` of all checkpoints as effective sizes are worked out from them.

    Args:
        tables: by checkpoint.
        groups: further groups of out-of-domain subsets by name.

    Returns:
        The tables ``full`` and ``grid`` of `effective_size`, and its groups: ``ID``, ``OOD`` and
        ``mixed`` (both), each with the subsets of its data, as ``role:subset``, and those given.
    """
    fulls, grids = [], []
    for name, table in tables.items():
        accuracy = _by_subset(table)
        accuracy.insert(0, "checkpoint", name)
        is_full = accuracy["seed"].isna()
        fulls.append(accuracy[is_full])
        grids.append(accuracy[~is_full])
    full, grid = pd.concat(fulls, ignore_index=True), pd.concat(grids, ignore_index=True)
    names = {role: full[full["role"] == role]["subset"].unique().tolist() for role in ("id", "ood")}
    chosen = {"ID": names["id"], "OOD": names["ood"], "mixed": names["id"] + names["ood"]}
    chosen |= {
        name: [f"ood:{subset}" for subset in subsets] for name, subsets in (groups or {}).items()
    }
    return (
        full[["checkpoint", "subset", "accuracy"]],
        grid[["checkpoint", "seed", "sparsity", "subset", "accuracy"]].astype({"seed": int}),
        chosen,
    )


def _by_subset(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Rows of subsets proper, or of all examples where there are no others."""
    rows = proper_subsets(accuracy)
    return rows.assign(subset=rows["role"] + ":" + rows["subset"], sparsity=rows["target_sparsity"])


def size_tables(
    full: pd.DataFrame, grid: pd.DataFrame, groups: Mapping[str, Sequence[str]], margin: float
) -> dict[str, pd.DataFrame]:
    """The tables ``full``, ``grid``, ``effective_size`` (per seed) and ``mean_effective_size``.

    The last also has full_accuracy, the full model's accuracy on the group.
    """
    sizes = effective_size(full, grid, groups=groups, margin=margin)
    means = mean_effective_size(sizes)
    accuracy = sizes.groupby(["group", "checkpoint"], sort=False, as_index=False)["full_accuracy"]
    means = means.merge(accuracy.first(), on=["group", "checkpoint"])
    return {"full": full, "grid": grid, "effective_size": sizes, "mean_effective_size": means}
