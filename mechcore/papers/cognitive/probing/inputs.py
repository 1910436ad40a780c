"""States as a table of numbers; labels as plain values that can be told apart, and as numbers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
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
        raise InputError(f"{name}: found {values.dtype} values; expected numbers")
    if not np.isfinite(values).all():
        row, unit = np.argwhere(~np.isfinite(values))[0]
        raise InputError(
            f"{name}: {values[row, unit]} at example {row}, unit {unit}; expected finite numbers: "
            "does the model overflow in its precision?"
        )
    return values, precision


def label_values(name: str, values: Any, n: int | None = None) -> list[Hashable]:
    """As plain Python values: elements of tensors are not equal to one another."""
    found = values.tolist() if hasattr(values, "tolist") else list(values)
    if not found or (n is not None and len(found) != n):
        expected = "at least one" if n is None else f"{n}, one per example"
        raise InputError(f"{name}: found {len(found)} values; expected {expected}")
    for row, value in enumerate(found):
        if not _can_be_told_apart(value):
            raise InputError(
                f"{name}: found {value!r} in row {row}; expected something hashable that equals "
                "itself, such as a string or a number, and no missing one"
            )
    return found


def _can_be_told_apart(value: Any) -> bool:
    try:
        hash(value)
        return value is not None and bool(value == value)  # NaN does not
    except TypeError:  # nor does pandas' NA, which is neither true nor false
        return False


def coded(
    name: str, values: Sequence[Hashable], n: int
) -> tuple[tuple[Hashable, ...], Int[np.ndarray, " example"]]:
    """Distinct values, sorted if they can be, and the number of each example's."""
    found = label_values(name, values, n)
    distinct: list[Any] = list(dict.fromkeys(found))
    try:
        distinct.sort()
    except TypeError:  # of different kinds: in order of first appearance
        distinct = list(dict.fromkeys(found))
    number = {value: i for i, value in enumerate(distinct)}
    return tuple(distinct), np.array([number[value] for value in found])
