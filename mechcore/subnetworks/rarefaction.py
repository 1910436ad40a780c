"""Cores of different numbers of seeds, compared at the smaller number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from mechcore.components import Mask, same_model
from mechcore.errors import InputError
from mechcore.subnetworks.core import heads_by_draw


def rarefied_core(masks: Sequence[Mask], n: int, draws: Sequence[int] | None = None) -> pd.Series:
    """Probability of every head to be in the core of ``n`` of the draws; the sum is its mean size.

    Cores shrink with the number of draws: compare those of different numbers at the smaller one. A
    head that k of N draws keep in all their masks has C(k, n) / C(N, n). For the arguments see
    `heuristic_core`.

    Raises:
        InputError: as `heuristic_core`, or ``n`` is under 1 or above the number of draws.
    """
    same_model(masks)
    common = heads_by_draw(masks, draws)
    if not 1 <= n <= len(common):
        raise InputError(f"rarefied core: n is {n}; expected 1 to {len(common)}, the draws given")
    kept = {str(head): sum(head in heads for heads in common) for head in masks[0].shape.heads}
    return pd.Series({h: math.comb(k, n) / math.comb(len(common), n) for h, k in kept.items()})
