"""Subnetworks by every method, and how close each comes to the full model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.main_study.config import StudyConfig
from mechcore.masking.means import MeanActivations
from mechcore.pruning import METHODS, Method, PruningError, Request, Subnetwork
from mechcore.pruning.settings import check_keeps_some
from mechcore.steps.inputs import Inputs


def check_methods(names: Sequence[str]) -> list[Method]:
    """The methods of these names, in the order in which they can be run.

    Raises:
        InputError: there is none, one is unknown, or there is nothing to match by layer.
    """
    for name in names:
        METHODS[name]
    if not names:
        raise InputError(f"methods: found none; expected some of {', '.join(METHODS.names())}")
    if "layer-matched" in names and "l0" not in names:
        raise InputError(
            "methods: layer-matched draws as many heads per layer as trained masks keep; name l0 "
            "among them, too"
        )
    return [method for method in METHODS if method in names]


def check_sparsities(methods: Sequence[str], config: StudyConfig, model: Any) -> None:
    """Make sure, before any work, that every target sparsity leaves a component to keep.

    Raises:
        InputError: one does not, by a method that keeps as many as the target says.
    """
    if config.prune.discretisation == "ranking" or {*methods} - {"l0"}:
        check_keeps_some(config.sparsities, ModelShape.of(model))


def find_subnetworks(
    method: Method,
    config: StudyConfig,
    inputs: Inputs,
    means: MeanActivations,
    folder: Path,
    *,
    state: Path | None = None,
    trained: Sequence[Subnetwork] = (),
) -> list[Subnetwork]:
    """Subnetworks of a run's seeds and sparsities by one method, each written to ``folder``.

    Args:
        method: how to find them. Rankings without chance have one result for all seeds.
        config: the run.
        inputs: its model and data.
        means: the model's mean activations.
        folder: for the masks.
        state: for ``"l0"``, the file to go on from, see `mechcore.prune`; removed at the end.
        trained: for ``"layer-matched"``, the subnetworks to match.

    Raises:
        PruningError: some masks could not be trained; the others are in the folder.
    """
    try:
        found = METHODS[method](
            Request(
                inputs.model,
                inputs.data["train"],
                means,
                config.sparsities,
                config.seeds,
                config.prune,
                config.data.seed,
                state,
                trained,
            )
        )
    except PruningError as error:
        _save(error.finished, folder)
        raise
    _save(found, folder)
    if state is not None:
        state.unlink(missing_ok=True)
    return found


def _save(subnetworks: Sequence[Subnetwork], folder: Path) -> None:
    for each in subnetworks:
        each.save(folder / f"{each.name}.safetensors")


def method_table(subnetworks: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds of each method's divergence and accuracies, by target sparsity.

    Args:
        subnetworks: the table of that name.

    Returns:
        Columns method, target_sparsity, n, kl (nats), kl_low and kl_high (smallest and largest),
        id_accuracy, ood_accuracy (shares); methods in the order of their names in `METHODS`.
    """
    table = subnetworks.groupby(["method", "target_sparsity"], as_index=False).agg(
        n=("kl", "size"),
        kl=("kl", "mean"),
        kl_low=("kl", "min"),
        kl_high=("kl", "max"),
        id_accuracy=("id_accuracy", "mean"),
        ood_accuracy=("ood_accuracy", "mean"),
    )
    order = table["method"].map({name: i for i, name in enumerate(METHODS.names())})
    return table.assign(order=order).sort_values(["order", "target_sparsity"]).drop(columns="order")
