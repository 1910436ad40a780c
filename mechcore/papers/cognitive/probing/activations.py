"""Activations of any hook points at chosen tokens of every example, and checks of such tables."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechcore.data.encoding import BATCH_SIZE, batch_bar
from mechcore.errors import InputError
from mechcore.models.encoded import as_encoded
from mechcore.models.hooks import hooked
from mechcore.models.protocol import Batch, check_hooks, forward
from mechcore.session import plain_session


def hook_resid_post(layer: int) -> str:
    """Residual stream after a layer, [batch, pos, d_model]."""
    return f"blocks.{layer}.hook_resid_post"


@plain_session()
def activations_at(
    model: Any,
    data: Any,
    hooks: Sequence[str],
    positions: Int[Tensor, "example position"] | None = None,
    *,
    batch_size: int = BATCH_SIZE,
) -> dict[str, Float[Tensor, "example position *unit"]]:
    """Read hook points at chosen tokens of every example: by name, float32 on the CPU.

    In a model of low precision, what a token has not read yet still reaches its activations as
    rounding that differs with the shape of the batch: run models in float32 where that matters.
    ``data`` are examples of any form, ``hooks`` have [batch, pos, ...]; heads keep an axis of their
    own. ``positions`` count from an example's first token, or from its last, -1; None reads the
    last.

    Raises:
        InputError: an example has no such token, or a hook point is unknown or has no axis of
            positions.
    """
    check_hooks(model, hooks)
    examples = as_encoded(model, data, labelled=False)
    lengths = torch.tensor([len(ids) for ids in examples.input_ids])
    places = torch.full((len(lengths), 1), -1) if positions is None else positions
    outside = ((places < -lengths[:, None]) | (places >= lengths[:, None])).nonzero()
    if len(outside):
        row, column = outside[0].tolist()
        n = int(lengths[row])
        raise InputError(
            f"activations: row {row}: position {int(places[row, column])} was asked for, but "
            f"the row has {n} tokens; expected {-n} to {n - 1}"
        )
    places = torch.where(places < 0, places + lengths[:, None], places)
    parts: dict[str, list[Tensor]] = {name: [] for name in hooks}
    rows: list[Tensor] = []
    with torch.no_grad(), batch_bar("activations", examples, batch_size) as advance:
        for batch in examples.batches(batch_size):
            rows.append(batch["index"])
            _read(model, batch, parts, places[rows[-1]])
            advance()
    order = torch.cat(rows).argsort()
    return {name: torch.cat(parts.pop(name))[order] for name in hooks}


def _read(
    model: Any,
    batch: Batch,
    parts: dict[str, list[Tensor]],
    places: Int[Tensor, "row position"],
) -> None:
    rows = torch.arange(len(places))[:, None]

    def take(name: str, activation: Tensor, hook: Any) -> None:
        wanted = tuple(batch["attention_mask"].shape)
        if activation.ndim < 3 or tuple(activation.shape[:2]) != wanted:
            raise InputError(
                f"activations: {name} is {tuple(activation.shape)} for a batch of {wanted}; "
                "expected [batch, pos, ...]: choose another hook point"
            )
        device = activation.device
        parts[name].append(activation[rows.to(device), places.to(device)].float().cpu())

    with hooked(model, [(name, partial(take, name)) for name in parts]):
        forward(model, batch)


def matrix_of(
    states: Float[Tensor | np.ndarray, "example unit"], name: str = "states"
) -> tuple[Float[np.ndarray, "example unit"], float]:
    """States in float64, and the relative precision they came in; 0 for whole numbers."""
    values = states.detach().cpu() if isinstance(states, Tensor) else np.asarray(states)
    if values.ndim != 2 or 0 in values.shape:
        raise InputError(
            f"{name}: shape {tuple(values.shape)}; expected [example, unit], at least one of each: "
            "flatten further axes, or take one position or head at a time"
        )
    if isinstance(values, Tensor):
        precision = torch.finfo(values.dtype).eps if values.is_floating_point() else 0.0
        values = values.double().numpy()
    elif values.dtype.kind in "biuf":
        precision = float(np.finfo(values.dtype).eps) if values.dtype.kind == "f" else 0.0
        values = values.astype(float)
    else:
        raise InputError(f"{name}: {values.dtype} values; expected numbers")
    if not np.isfinite(values).all():
        row, unit = np.argwhere(~np.isfinite(values))[0]
        raise InputError(
            f"{name}: {values[row, unit]} at example {row}, unit {unit}; expected finite numbers: "
            "does the model overflow in its precision?"
        )
    return values, precision


def standardised(
    states: Float[Tensor | np.ndarray, "example unit"], name: str = "states"
) -> tuple[Float[np.ndarray, "example unit"], Bool[np.ndarray, " unit"]]:
    """States of mean 0 and population standard deviation 1 in every unit, float64.

    Also which units are constant, within a rounding step of the precision they came in; they are 0.
    """
    values, precision = matrix_of(states, name)
    spread = values.max(axis=0) - values.min(axis=0)
    constant = spread <= precision * np.abs(values).max(axis=0)
    # Scaled by the range first, or squares of very small or large numbers would not be numbers.
    values = (values - values.mean(axis=0)) / np.where(constant, 1.0, spread)
    values[:, constant] = 0.0
    values -= values.mean(axis=0)
    return values / np.where(constant, 1.0, values.std(axis=0)), constant


def coded(
    name: str, values: Sequence[Hashable], n: int
) -> tuple[list[Hashable], Int[np.ndarray, " example"]]:
    """Distinct values, sorted, and the number of each of ``n`` examples' value."""
    labels = pd.Series(values.tolist() if hasattr(values, "tolist") else list(values), dtype=object)
    if not n or len(labels) != n:
        raise InputError(f"{name}: {len(labels)} values; expected {n or 1}, one per example")
    codes, distinct = pd.factorize(labels, sort=True)
    if (codes < 0).any():
        raise InputError(f"{name}: none in row {int(codes.argmin())}; expected one per example")
    return list(distinct), codes
