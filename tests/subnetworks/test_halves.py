"""Overlap of subnetworks and cores between halves of the data, worked out by hand."""

from __future__ import annotations

import math

import pytest

from mechcore.components import Mask, ModelShape
from mechcore.subnetworks.halves import HALF_CORES, HALF_OVERLAP, half_cores, half_overlap

FULL = Mask.full(ModelShape(1, 4))


def keeping(*heads: int) -> Mask:
    """The MLP and these heads."""
    return FULL.only("L0.MLP", *[f"L0.H{head}" for head in heads])


MASKS = {
    "all data": {(0.5, 1): keeping(0, 1), (0.5, 2): keeping(0, 2)},
    "half 1": {(0.5, 1): keeping(0, 1), (0.5, 2): keeping(0, 1)},
    "half 2": {(0.5, 1): keeping(0, 3), (0.5, 2): keeping(2, 3)},
}
CHANCE = (1 * 1 + 4 * (1 / 3)) / 6
"""Of the 6 pairs of heads 1 is a given one, and 4 share a head of three with it."""


def test_overlap_by_hand() -> None:
    table = half_overlap(MASKS)
    HALF_OVERLAP.check(table)
    rows = {row["compared"]: row for row in table.to_dict("records")}
    third = pytest.approx(1 / 3)
    for compared, n, jaccard, low, high in (
        ("two halves, one seed", 2, pytest.approx(1 / 6), 0, third),
        ("two halves, two seeds", 2, pytest.approx(1 / 6), 0, third),
        ("one half, two seeds", 2, pytest.approx(2 / 3), third, 1),
        ("all data, two seeds", 1, third, third, third),
        ("all data and a half, one seed", 4, pytest.approx(1 / 2), third, 1),
        ("all data and a half, two seeds", 4, pytest.approx(5 / 12), 0, 1),
    ):
        row = rows.pop(compared)
        assert [row[name] for name in ("target_sparsity", "n_pairs", "jaccard", "low", "high")] == [
            *(0.5, n, jaccard, low, high)
        ], compared
        # Masks of one seed share its noise, whatever they were pruned on.
        chance = CHANCE if compared.endswith("two seeds") else math.nan
        assert row["expected"] == pytest.approx(chance, nan_ok=True), compared
    assert not rows


def test_cores_by_hand() -> None:
    table = half_cores(MASKS)
    HALF_CORES.check(table)
    assert table[["first", "second", "first_core", "second_core"]].to_numpy().tolist() == [
        ["all data", "half 1", "L0.H0", "L0.H0 L0.H1"],
        ["all data", "half 2", "L0.H0", "L0.H3"],
        ["half 1", "half 2", "L0.H0 L0.H1", "L0.H3"],
    ]
    assert table[["first_size", "second_size", "shared"]].to_numpy().tolist() == [
        *([1, 2, 1], [1, 1, 0], [2, 1, 0]),
    ]
    assert table["jaccard"].tolist() == [0.5, 0, 0]
    assert "expected" not in table  # they are of the same seeds
    # Kept by 2 1 1 0, by 2 2 0 0 and by 1 0 1 2 subnetworks.
    assert table["rho"].tolist() == pytest.approx([0.5**0.5, -0.5, -(0.5**0.5)])


def test_empty_cores_neither_agree_nor_differ() -> None:
    none = {(0.5, 1): keeping(0, 1), (0.5, 2): keeping(2, 3)}
    table = half_cores(dict.fromkeys(MASKS, none))
    assert table["jaccard"].isna().all()
    assert table["rho"].isna().all()  # every head is kept once
    assert (table["first_core"] == "").all()
    HALF_CORES.check(table)
