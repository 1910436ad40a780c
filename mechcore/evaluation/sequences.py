"""Confidence sequences: intervals of means that hold at every look and whenever one stops.

Examples come in random order, and the mean is that over all of them; nothing else is assumed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from mechcore.errors import InputError

_STEPS = 30  # halvings in the search for the ends of an interval


def confidence_sequence(
    values: Float[np.ndarray, "row example"],
    n_all: int,
    error: float,
    bounds: Float[np.ndarray, " row"],
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    """Intervals of the means of all ``n_all`` values from those seen, in random order.

    By betting without replacement (Waudby-Smith and Ramdas, JRSS B 86, 2024, sections 4 and 5):
    capital that bets against a mean m reaches 2 / error with probability error / 2 at most if m is
    the mean. Stakes do not depend on m, so that the means not yet refuted are an interval. Any
    mean is outside with probability ``error`` at most, if no value is larger than its bound.

    Raises:
        InputError: a value is larger than its bound.
    """
    n = values.shape[1]
    too_large = np.abs(values).max(1) > bounds
    if too_large.any():
        row = int(too_large.argmax())
        raise InputError(
            f"confidence sequence: a value of size {np.abs(values[row]).max():g}; expected at most "
            f"{bounds[row]:g}"
        )
    half = np.maximum(bounds, np.finfo(float).tiny)[:, None]
    unit = (values / half + 1) / 2
    before = np.arange(n)
    sums = np.cumsum(unit, 1) - unit
    left = n_all - before
    guesses = (0.5 + sums) / (before + 1)
    squares = np.cumsum((unit - guesses) ** 2, 1)
    variances = (0.25 + squares - (unit - guesses) ** 2) / (before + 1)
    stakes = np.sqrt(2 * np.log(2 / error) / (variances * (before + 1) * np.log(before + 2)))
    target = np.log(2 / error)

    def refuted(means: np.ndarray, sign: int) -> np.ndarray:
        """Whether a mean is too low (sign 1) or too high (sign -1)."""
        expected = (n_all * means[:, None] - sums) / left
        room = expected if sign > 0 else 1 - expected
        impossible = (room < 0).any(1)  # what was seen leaves no such mean
        with np.errstate(divide="ignore", invalid="ignore"):
            # One example can lose 0.9 of the capital.
            stake = np.minimum(stakes, 0.9 / np.maximum(room, 1e-12))
            capital = np.log1p(sign * stake * (unit - expected)).cumsum(1).max(1)
        return impossible | (capital >= target)

    # The mean over all, if what was not seen were all at one end.
    lowest, highest = unit.sum(1) / n_all, (unit.sum(1) + n_all - n) / n_all
    low = _edge(lowest, highest, lambda means: refuted(means, 1))
    high = _edge(highest, lowest, lambda means: refuted(means, -1))
    return (2 * low - 1) * bounds, (2 * high - 1) * bounds


def _edge(
    start: np.ndarray, end: np.ndarray, refuted: Callable[[np.ndarray], np.ndarray]
) -> Float[np.ndarray, " row"]:
    """The last mean refuted on the way from ``start`` to ``end``; ``start`` where none is."""
    there, beyond = start, end
    for _ in range(_STEPS):
        middle = (there + beyond) / 2
        gone = refuted(middle)
        there, beyond = np.where(gone, middle, there), np.where(gone, beyond, middle)
    return there
