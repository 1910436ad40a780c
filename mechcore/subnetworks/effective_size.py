"""Effective size: how few components do what the whole model does (arXiv 2403.03942, section 5)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from mechcore.errors import InputError, shown, warn
from mechcore.tables import CHECKPOINT, SEED, Column, Schema, estimate

_GROUP = Column("group", "text", "group of subsets that accuracies are averaged over")
_FULL = Column("full_accuracy", "share", "accuracy of the full model", header="full model")
EFFECTIVE_SIZE = Schema(
    "effective_size",
    "Effective size of every seed at every checkpoint.",
    (
        _GROUP,
        CHECKPOINT,
        SEED,
        Column("effective_size", "share", "share of components kept; 1 if none is faithful"),
        Column("faithful", "flag", "whether a subnetwork is faithful"),
        Column("target_sparsity", "share", "target sparsity of the sparsest faithful subnetwork"),
        Column("accuracy", "share", "accuracy of the sparsest faithful subnetwork"),
        _FULL,
    ),
)
MEAN_EFFECTIVE_SIZE = Schema(
    "mean_effective_size",
    "Effective size of every checkpoint, over seeds.",
    (
        _GROUP,
        CHECKPOINT,
        *estimate(
            "effective_size",
            "share",
            "mean share of components kept",
            low="mean_low",
            high="mean_high",
            over="over pruning seeds, for the same texts and grid",
            optional_ends=True,
        ),
        Column("low", "share", "smallest seed"),
        Column("high", "share", "largest seed"),
        Column("n_seeds", "whole", "seeds"),
        Column("n_faithful", "whole", "seeds with a faithful subnetwork; others count as 1"),
        _FULL,
    ),
)
KEPT = "kept"
"""An optional column: the share of components that the subnetwork actually keeps."""

ROUNDING = 1e-6
"""Accuracies that differ by at most this are equal: 0.83 - 0.03 is not 0.80 in floating point."""


def effective_size(
    full: pd.DataFrame,
    grid: pd.DataFrame,
    *,
    groups: Mapping[str, Sequence[str]],
    tolerance: float = 0.03,
) -> pd.DataFrame:
    """Share of components that the sparsest faithful subnetwork keeps, per seed.

    A subnetwork is faithful on a group of subsets if its accuracy is more than the full model's
    minus ``tolerance`` (one-sided, strict up to `ROUNDING`). The accuracy on a group is the
    unweighted mean over its subsets. Sparsities between those of the grid are not considered, and
    a sparser subnetwork may be faithful even if a denser one is not.

    Args:
        full: accuracy (share) of the full model: checkpoint, subset, accuracy. Checkpoints that
            ``grid`` lacks are omitted, with a warning.
        grid: accuracy (share) of subnetworks: checkpoint, seed, target_sparsity (in [0, 1)),
            subset, accuracy; and kept (share), by default 1 - target_sparsity. A warning names
            sparsities that only other seeds have.
        groups: subsets by name of group, such as ``{"ID": [...], "OOD": [...]}``.
        tolerance: maximum accuracy loss (share) of a faithful subnetwork.

    Returns:
        The columns of `EFFECTIVE_SIZE`, one row per group, checkpoint (in the order of ``full``)
        and seed. If no subnetwork is faithful, effective_size is 1, as published, faithful is
        False, and target_sparsity and accuracy are missing.

    Raises:
        InputError: a column or accuracy is missing, repeated or not a share; a checkpoint of the
            grid is not in ``full``; a group or the tolerance is unusable.
    """
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance: found {tolerance}; expected a share in [0, 1), such as 0.03")
    _check_shares(grid, "grid", "target_sparsity")
    wholes = _by_subset(full, "full", ["checkpoint", "subset"])
    parts = _by_subset(grid, "grid", ["checkpoint", "seed", "target_sparsity", "subset"])
    checkpoints = _in_both(
        full["checkpoint"].unique().tolist(), parts.index.unique("checkpoint").tolist()
    )
    wholes = wholes.loc[checkpoints]
    _name_uneven(parts.index.to_frame(index=False))
    kept = _kept(grid)
    rows = []
    for group, subsets in groups.items():
        whole = _group_accuracy(wholes, "full", group, subsets)
        part = _group_accuracy(parts, "grid", group, subsets)
        for checkpoint in checkpoints:
            needed = whole.loc[checkpoint] - tolerance + ROUNDING
            for seed, accuracy in part.xs(checkpoint).groupby(level="seed"):
                faithful = accuracy[accuracy > needed].droplevel("seed")
                candidates = [(kept[checkpoint, seed, s], -s, a) for s, a in faithful.items()]
                size, target_sparsity, reached = min(candidates, default=(1.0, math.nan, math.nan))
                figures = (size, bool(candidates), -target_sparsity, reached, whole.loc[checkpoint])
                rows.append((group, checkpoint, seed, *figures))
    return pd.DataFrame(rows, columns=EFFECTIVE_SIZE.names)


def _kept(grid: pd.DataFrame) -> Mapping[Any, float]:
    """Share of components that each subnetwork keeps, by checkpoint, seed and target sparsity."""
    keys = ["checkpoint", "seed", "target_sparsity"]
    if KEPT not in grid:
        return {key: 1 - key[-1] for key in grid[keys].itertuples(index=False, name=None)}
    _check_shares(grid, "grid", KEPT)
    kept = grid.groupby(keys)[KEPT].agg(["min", "max"])
    differs = kept[kept["min"] != kept["max"]].reset_index()
    if len(differs):
        raise InputError(f"grid: {_place(differs)}: {KEPT} differs between its rows")
    return kept["min"].to_dict()


def mean_effective_size(sizes: pd.DataFrame) -> pd.DataFrame:
    """Average a table of `effective_size` over seeds: the columns of `MEAN_EFFECTIVE_SIZE`.

    The interval of the mean, by Student's t, is missing for one seed, and if all have the same
    size.
    """
    by_checkpoint = sizes.groupby(["group", "checkpoint"], sort=False)
    table = by_checkpoint.agg(
        effective_size=("effective_size", "mean"),
        low=("effective_size", "min"),
        high=("effective_size", "max"),
        n_seeds=("effective_size", "size"),
        n_faithful=("faithful", "sum"),
    ).reset_index()
    mean, error = table["effective_size"], by_checkpoint["effective_size"].sem().to_numpy()
    reach = pd.Series(error * stats.t.ppf(0.975, np.maximum(table["n_seeds"] - 1, 1)))
    reach = reach.where(table["low"] < table["high"])  # equal sizes only show a coarse grid
    low, high = ((mean + sign * reach).clip(0, 1) for sign in (-1, 1))
    return table.assign(mean_low=low, mean_high=high)


# -- checks ---------------------------------------------------------------------------------------


def _in_both(full: list[Any], grid: list[Any]) -> list[Any]:
    """The checkpoints of ``full`` that ``grid`` has; ``grid`` must not have any others."""
    alone = [checkpoint for checkpoint in grid if checkpoint not in full]
    if alone:
        raise InputError(
            f"checkpoint {alone[0]!r} is not in both tables: full has {_list(full)}; grid has "
            f"{_list(grid)}; expected every checkpoint of grid in full"
        )
    both = [checkpoint for checkpoint in full if checkpoint in grid]
    if len(both) < len(full):
        warn(
            f"full: omitted {len(full) - len(both)} of {len(full)} checkpoints without subnetworks "
            f"in grid; used {shown(_list(both), 300)}"
        )
    return both


def _name_uneven(settings: pd.DataFrame) -> None:
    """Warn of sparsities that only other seeds of the same checkpoint have."""
    lacking = [
        f"checkpoint {checkpoint!r}, seed {seed!r} lacks {_list(sorted(gone))}"
        for checkpoint, rows in settings.groupby("checkpoint", sort=False)
        for seed, own in rows.groupby("seed")
        if (gone := set(rows["target_sparsity"]) - set(own["target_sparsity"]))
    ]
    if lacking:
        warn(
            "grid: some seeds lack sparsities that others of the same checkpoint have, so their "
            f"sizes are chosen among the rest: {'; '.join(lacking)}"
        )


def _by_subset(frame: pd.DataFrame, name: str, keys: list[str]) -> pd.DataFrame:
    """Checked accuracies with a column for every subset, NaN if missing."""
    _check_shares(frame, name, "accuracy")
    repeated = frame.duplicated(keys)
    if repeated.any():
        raise InputError(f"{name}: {_place(frame[repeated])}: occurs twice; expected one accuracy")
    return frame.set_index(keys)["accuracy"].unstack("subset")


def _check_shares(frame: pd.DataFrame, name: str, column: str) -> None:
    """Percent would pass for shares; of a target of 1 nothing is left."""
    inclusive: Literal["left", "both"] = "left" if column == "target_sparsity" else "both"
    bad = ~frame[column].between(0, 1, inclusive=inclusive)
    if bad.any():
        interval = "[0, 1)" if inclusive == "left" else "[0, 1]"
        raise InputError(
            f"{name}: {_place(frame[bad])}: {column} is not a share in {interval}: 25 % is the "
            "share 0.25"
        )


def _place(rows: pd.DataFrame) -> str:
    """The first row in words."""
    return ", ".join(f"{key} {value!r}" for key, value in rows.to_dict("records")[0].items())


def _group_accuracy(
    table: pd.DataFrame, name: str, group: str, subsets: Sequence[str]
) -> pd.Series:
    """Mean over the group's subsets, all of which must be there."""
    chosen = table.reindex(columns=list(subsets))
    missing = chosen.isna().to_numpy()
    if missing.any():
        row, column = np.argwhere(missing)[0]
        raise InputError(
            f"{name}: {_place(chosen.index[[row]].to_frame())}: no subset {subsets[column]!r}, "
            f"which group {group!r} needs; found {_list(table.iloc[row].dropna().index)}; add its "
            "accuracy, or change the group"
        )
    return chosen.mean(axis=1)


def _list(names: Iterable[Any]) -> str:
    return ", ".join(map(repr, names))
