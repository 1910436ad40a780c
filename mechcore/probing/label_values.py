"""Labels as plain values that can be told apart, and as numbers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from mechcore.errors import InputError


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
                "itself, such as a string or a number"
            )
    return found


def _can_be_told_apart(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return bool(value == value)  # NaN does not


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
