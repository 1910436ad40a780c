"""States as a table of numbers, and labels as the numbers of their classes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechcore.errors import InputError


def matrix_of(
    states: Float[Tensor | np.ndarray, "example unit"], name: str = "states"
) -> tuple[Float[np.ndarray, "example unit"], float]:
    """States in float64, and the relative precision they came in; 0 for whole numbers.

    Raises:
        InputError: they are not a table of finite numbers, or empty; the message names them.
    """
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
    """Distinct values, sorted, and the number of each example's.

    Raises:
        InputError: there are none, not one for each of ``n`` examples, or one is missing.
    """
    labels = pd.Series(values.tolist() if hasattr(values, "tolist") else list(values), dtype=object)
    if not n or len(labels) != n:
        raise InputError(f"{name}: {len(labels)} values; expected {n or 1}, one per example")
    codes, distinct = pd.factorize(labels, sort=True)
    if (codes < 0).any():
        raise InputError(f"{name}: none in row {int(codes.argmin())}; expected one per example")
    return list(distinct), codes
