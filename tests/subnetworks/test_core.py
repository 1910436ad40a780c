"""Frequencies, cores and chance levels against counts and sums written out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
import torch

from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError, MismatchError
from mechcore.pruning import Subnetwork, draws_of
from mechcore.pruning.mask_training import HISTORY
from mechcore.subnetworks.core import (
    accuracy_spread,
    frequency_agreement,
    head_frequency,
    head_overlap,
    heuristic_core,
    outliers,
    shared_by_chance,
)

SHAPE = ModelShape(2, 2)
NAMES = ["L0.H0", "L0.H1", "L0.MLP", "L1.H0", "L1.H1", "L1.MLP"]


def keeping(*names: str) -> Mask:
    return Mask.full(SHAPE).only(*names)


MASKS = [
    keeping("L0.H0", "L0.H1", "L1.H1", "L1.MLP"),
    keeping("L0.H1", "L1.H0", "L1.H1", "L0.MLP"),
    keeping("L0.H1", "L1.H1"),
    keeping("L0.H1", "L0.H0", "L0.MLP"),
]
TARGETS = [0.25, 0.25, 0.75, 0.75]


def test_frequencies_by_hand() -> None:
    table = head_frequency(MASKS, TARGETS)
    named = ["component", "layer", "head", "target_sparsity", "n_seeds", "count", "frequency"]
    assert list(table.columns) == named
    assert table["component"].tolist() == NAMES * 2
    assert table["target_sparsity"].tolist() == [0.25] * 6 + [0.75] * 6
    assert table["n_seeds"].tolist() == [2] * 12
    assert table["count"].tolist() == [1, 2, 1, 1, 2, 1, 1, 2, 1, 0, 1, 0]
    assert table["frequency"].tolist() == [0.5, 1, 0.5, 0.5, 1, 0.5, 0.5, 1, 0.5, 0, 0.5, 0]
    assert table["layer"].tolist() == [0, 0, 0, 1, 1, 1] * 2
    assert table["head"].isna().tolist() == [name.endswith("MLP") for name in NAMES * 2]
    assert table["head"].dropna().tolist() == [0, 1, 0, 1] * 2
    with pytest.raises(InputError, match="expected at least one"):
        head_frequency([], [])


# -- agreement ------------------------------------------------------------------------------------


def test_spearman_by_hand() -> None:
    # Head counts 1 2 1 2 and 1 2 0 1 have ranks 1.5 3.5 1.5 3.5 and 2.5 4 1 2.5, whose deviations
    # from 2.5 are -1 1 -1 1 and 0 1.5 -1.5 0: rho = 3 / sqrt(4 * 4.5) = 1 / sqrt 2.
    agreement = frequency_agreement(head_frequency(MASKS, TARGETS))
    assert agreement.rho == pytest.approx(1 / math.sqrt(2), abs=1e-12)
    # Of the four permutations within the two layers of two, this one and its reverse have sums of
    # products 3 and -3, the others 0.
    assert agreement.p_value == pytest.approx(1 / 2, abs=0.02)
    assert (agreement.low_sparsity, agreement.high_sparsity) == (0.25, 0.75)


def test_frequencies_that_only_layers_explain_have_no_small_p() -> None:
    # The first of two layers of six heads is kept by all seeds, of the second each has some head.
    shape = ModelShape(2, 6)
    masks = [
        Mask.full(shape).only(*(f"L0.H{i}" for i in range(6)), f"L1.H{(a * seed + b) % 6}")
        for a, b in ((1, 0), (5, 3))
        for seed in range(5)
    ]
    agreement = frequency_agreement(head_frequency(masks, [0.2] * 5 + [0.7] * 5))
    assert agreement.rho > 0.8
    assert agreement.p_value == 1 or agreement.p_value > 0.1


# -- overlap, spread ------------------------------------------------------------------------------


def test_overlap_by_hand() -> None:
    table = head_overlap(MASKS, "abcd").set_index(["first", "second"])
    assert table.index.tolist() == list(itertools.combinations("abcd", 2))
    assert table.loc[("a", "b"), ["shared", "either", "jaccard"]].tolist() == [2, 4, 0.5]
    assert table.loc[("a", "c"), "jaccard"] == pytest.approx(2 / 3)
    assert table.loc[("c", "d"), ["shared", "either"]].tolist() == [1, 3]
    # Of layers with 2 and 1 heads, and 1 and 2: always one shared in each, 2 of 4.
    assert table.loc[("a", "b"), "expected"] == pytest.approx(2 / 4)
    # 2 and 1, 1 and 1: the one of layer 0, and that of layer 1 half of the time.
    assert table.loc[("a", "c"), "expected"] == pytest.approx(1 / 2 * 2 / 3 + 1 / 2 * 1 / 4)
    assert table.loc[("c", "d"), "expected"] == pytest.approx(1 / 3)
    # Two random sets of 3 of 4 heads share 2 (probability 3/4, 2 of 4) or 3 (1/4, 3 of 3).
    uniform = table["expected_uniform"]
    assert uniform["a", "b"] == pytest.approx(3 / 4 * 2 / 4 + 1 / 4)
    # 3 and 2 of 4: share 1 (1/2, of 4) or 2 (1/2, of 3). 2 and 2: 1 (4/6, of 3) or 2 (1/6, of 2).
    assert uniform["a", "c"] == pytest.approx(1 / 2 / 4 + 1 / 2 * 2 / 3)
    assert uniform["c", "d"] == pytest.approx(4 / 6 / 3 + 1 / 6)
    # By layer: two are always shared; a and c have both with 1/2, c and d one with certainty.
    assert table["p_value"]["a", "b"] == pytest.approx(1)
    assert table["p_value"]["a", "c"] == pytest.approx(1 / 2)
    assert table["p_value"]["c", "d"] == pytest.approx(1)
    assert table["p_uniform"]["a", "c"] == pytest.approx(1 / 2)
    assert table["p_uniform"]["c", "d"] == pytest.approx(5 / 6)


def accuracies(*rows: tuple[float | None, int | None, str, float]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["target_sparsity", "seed", "subset", "accuracy"])
    return frame.assign(data="hans", split="ood")


def test_spread_by_hand() -> None:
    table = accuracy_spread(
        accuracies(
            (None, None, "swap", 0.9),
            (None, None, "if", 0.8),
            (0.5, 1, "swap", 0.2),
            (0.5, 2, "swap", 0.5),
            (0.5, 3, "swap", 0.2),
            (0.5, 1, "if", 0.7),
            (0.7, 1, "swap", 0.1),
        )
    )
    assert table[["target_sparsity", "subset", "n_seeds"]].to_numpy().tolist() == [
        [0.5, "swap", 3],
        [0.5, "if", 1],
        [0.7, "swap", 1],
    ]
    first = table.iloc[0]
    assert first[["full", "low", "high"]].tolist() == [0.9, 0.2, 0.5]
    # Mean 0.3; deviations -0.1 0.2 -0.1: variance 0.06 / 2.
    assert first["mean"] == pytest.approx(0.3)
    assert first["std"] == pytest.approx(math.sqrt(0.03))
    assert first["spread"] == pytest.approx(0.3)
    assert table["std"].isna().tolist() == [False, True, True]
    assert table["full"].tolist() == [0.9, 0.8, 0.9]


# -- the core -------------------------------------------------------------------------------------


def test_the_core_by_hand() -> None:
    core = heuristic_core(MASKS)
    assert [str(head) for head in core.heads] == ["L0.H1"]
    assert (core.n_subnetworks, core.n_heads) == (4, 4)
    # 3, 3, 2 and 2 of 4 heads: 4 * 3/4 * 3/4 * 1/2 * 1/2 = 9/16.
    assert core.expected_uniform == pytest.approx(9 / 16)
    two = heuristic_core(MASKS[:2])
    assert [str(head) for head in two.heads] == ["L0.H1", "L1.H1"]
    # Two sets of 3 of 4 share at least 2, so that is no surprise.
    assert two.expected_uniform == pytest.approx(9 / 4)
    assert two.p_uniform == pytest.approx(1)


def sized(*sizes: int) -> list[Mask]:
    """Masks that keep the first so many of 144 heads and every MLP."""
    heads = [(torch.arange(144) < size).float().reshape(12, 12) for size in sizes]
    return [Mask(torch.cat([kept, torch.ones(12, 1)], dim=1)) for kept in heads]


def test_the_expected_size_of_the_papers_core() -> None:
    # arXiv 2403.03942 quotes 7.7e-5 for 12 random subnetworks that keep 30 % of 144 heads:
    # 144 * 0.3^12 = 7.653e-5. Whole numbers of heads come no nearer than 43 (29.9 %):
    # 144 * (43 / 144)^12 = 7.239e-5; eleven of 43 and one of 44 give 7.407e-5, nine and three
    # 7.756e-5.
    assert math.isclose(144 * 0.3**12, 7.653e-5, rel_tol=1e-3)
    assert heuristic_core(sized(*[43] * 12)).expected_uniform == pytest.approx(7.239e-5, rel=1e-3)
    eleven, nine = (heuristic_core(sized(*[43] * n, *[44] * (12 - n))) for n in (11, 9))
    assert eleven.expected_uniform == pytest.approx(7.407e-5, rel=1e-3)
    assert nine.expected_uniform == pytest.approx(7.756e-5, rel=1e-3)
    # One shared head is then as likely as the expected number says (few ever share two).
    chance = shared_by_chance([144], np.full((12, 1), 43))
    assert chance[1:].sum() == pytest.approx(7.239e-5, rel=1e-3)
    assert chance[9:].sum() < 1e-40


def test_what_has_no_core() -> None:
    with pytest.raises(InputError, match="no mask; expected at least one"):
        heuristic_core([])
    with pytest.raises(MismatchError, match="masks of different models: 2 layers x 2 heads"):
        heuristic_core([*MASKS, Mask.full(ModelShape(2, 3))])
    with pytest.raises(InputError, match="zeros and ones"):
        heuristic_core([Mask(torch.full((2, 3), 0.5))])
    with pytest.raises(InputError, match="single mask"):
        heuristic_core([Mask.stack(MASKS)])


# -- chance with as many heads of each layer ------------------------------------------------------


def test_whole_layers_are_no_surprise() -> None:
    """Subnetworks that all keep one layer share it whatever their heads: uniform chance errs."""
    core = heuristic_core([keeping("L0.H0", "L0.H1")] * 4)
    assert [str(head) for head in core.heads] == ["L0.H0", "L0.H1"]
    assert (core.expected, core.p_value) == (2, 1)
    assert core.expected_uniform == pytest.approx(4 / 16)
    assert core.p_uniform == pytest.approx(1 / 6**3)


def choices(groups: Sequence[int], sizes: Sequence[int]) -> list[set[tuple[int, int]]]:
    """All sets with so many heads of each layer."""
    by_layer = [
        itertools.combinations([(layer, head) for head in range(n)], size)
        for layer, (n, size) in enumerate(zip(groups, sizes, strict=True))
    ]
    return [set(itertools.chain(*parts)) for parts in itertools.product(*by_layer)]


@pytest.mark.parametrize(("groups", "n_sets"), [([2, 3], 2), ([3], 3), ([4], 3), ([5], 3)])
def test_chance_is_that_of_counting_all_sets(groups: list[int], n_sets: int) -> None:
    possible = list(itertools.product(*(range(n + 1) for n in groups)))
    for sizes in itertools.product(possible, repeat=n_sets):
        first, *others = (choices(groups, kept) for kept in sizes)
        # The first may stay fixed, as only overlaps count.
        shared = [len(first[0].intersection(*sets)) for sets in itertools.product(*others)]
        counts = np.bincount(shared, minlength=sum(groups) + 1)
        np.testing.assert_allclose(
            shared_by_chance(groups, np.array(sizes)), counts / len(shared), atol=1e-12
        )


def by_layer(*kept: str) -> list[Mask]:
    """Masks of two layers of three heads, by the heads that they keep: ``"01 2"``."""
    full = Mask.full(ModelShape(2, 3, has_mlps=False))
    layers = [text.split(" ") for text in kept]
    named = [[f"{i}.{head}" for i, heads in enumerate(split) for head in heads] for split in layers]
    return [full.only(*names) for names in named]


def test_the_core_by_chance_is_that_of_counting_all_subnetworks() -> None:
    masks = by_layer("01 12", "02 1", "01 01")
    by_set = [[int(n) for n in mask.heads.sum(1)] for mask in masks]
    possible = {
        "layers": [choices([3, 3], sizes) for sizes in by_set],
        "any": [choices([6], [sum(sizes)]) for sizes in by_set],
    }
    core, overlap = heuristic_core(masks), head_overlap(masks[:2], "ab").iloc[0]
    assert (len(core.heads), overlap["shared"]) == (2, 2)
    chances = {"layers": (core.expected, core.p_value, overlap["expected"], overlap["p_value"])}
    chances["any"] = (core.expected_uniform, core.p_uniform)
    chances["any"] += (overlap["expected_uniform"], overlap["p_uniform"])
    for how, sets in possible.items():
        shared = np.array([len(a & b & c) for a, b, c in itertools.product(*sets)])
        two = np.array([[len(a & b), len(a | b)] for a, b in itertools.product(*sets[:2])])
        expected = (shared.mean(), (shared >= 2).mean())
        expected += ((two[:, 0] / two[:, 1]).mean(), (two[:, 0] >= 2).mean())
        assert chances[how] == pytest.approx(expected), how


def test_subnetworks_of_one_ranking_are_one_random_subnetwork() -> None:
    """The sparser mask is part of the other, whatever is ranked: that both keep it is certain."""
    large, small, other = by_layer("01 12", "0 12", "01 12")
    nested = heuristic_core([large, small], [7, 7])
    assert (len(nested.heads), nested.n_subnetworks) == (3, 2)
    assert (nested.expected, nested.expected_uniform) == (3, 3)
    assert (nested.p_value, nested.p_uniform) == (1, 1)
    # With one of another ranking: 1 of 3 heads by 2 of 3, and 2 of 3 by 2 of 3.
    apart, two = heuristic_core([large, small, other], [0, 0, 2]), heuristic_core([small, other])
    assert apart.expected == pytest.approx(1 * 2 / 3 + 2 * 2 / 3)
    assert (apart.p_value, apart.p_uniform) == (two.p_value, two.p_uniform)
    # All three are shared if 2 of 3 hold one (2/3) and are the same two of three (1/3).
    assert apart.p_value == pytest.approx(2 / 9)
    table = head_overlap([large, small, other], "abc", [0, 0, 2]).set_index(["first", "second"])
    figures = table[["expected", "p_value", "expected_uniform", "p_uniform"]]
    assert figures.loc[("a", "b")].isna().all()
    assert figures.drop(("a", "b")).notna().all(axis=None)
    assert table.loc[("a", "b"), "jaccard"] == 3 / 4


def test_draws_are_those_of_a_seed_or_a_ranking() -> None:
    shape = ModelShape(2, 3)
    first, second = (torch.linspace(0, 1, 8).roll(n).reshape(2, 4) for n in (0, 3))
    one, other = (Mask.full(shape).without("L0.H1").with_identity(name) for name in "ab")

    def draws(method: str, *given: tuple[Mask, int, torch.Tensor]) -> list[int]:
        history = pd.DataFrame(columns=list(HISTORY))
        pruned = [Subnetwork(m, 0.5, seed, scores, method, history) for m, seed, scores in given]
        return draws_of(pruned)

    assert draws("l0", (one, 1, first), (one, 1, second)) == [0, 0]
    assert draws("l0", (one, 1, first), (one, 2, second)) == [0, 1]
    assert draws("l0", (one, 1, first), (other, 1, second)) == [0, 0]
    assert draws("ugs", (one, 1, first), (one, 1, second)) == [0, 0]
    assert draws("ugs", (one, 1, first), (other, 1, second)) == [0, 1]
    assert draws("attribution", (one, 1, first), (one, 2, first)) == [0, 0]


# -- outlying subnetworks, by accuracies written out


def table(
    accuracies: Sequence[float], target_sparsity: float = 0.7, method: str = "l0"
) -> pd.DataFrame:
    rows = [
        {
            "subnetwork": f"s{target_sparsity:.2f}-seed{42 + i}",
            "method": method,
            "target_sparsity": target_sparsity,
            "id_accuracy": accuracy,
        }
        for i, accuracy in enumerate(accuracies)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    "accuracies",
    [
        [0.98, 0.63],  # two: either may be the odd one
        [0.75, 0.875, 0.625],  # as far below as the others are apart
        [0.901, 0.900, 0.851],  # the others are alike, but less than 5 points above
        [0.63, 0.64, 0.98],  # the odd one is better
        [0.60, 0.60, 0.90, 0.91],  # two are bad
    ],
)
def test_no_other_difference_is_called_a_failure(accuracies: list[float]) -> None:
    assert [*outliers(table(accuracies))] == []


def test_targets_and_methods_are_not_mixed_and_controls_left_out() -> None:
    sparse, dense = table([0.6, 0.6, 0.6], 0.9), table([0.9, 0.9, 0.9], 0.5)
    ranked = table([0.9, 0.9, 0.6], method="ugs")
    chance = table([0.9, 0.9, 0.4], method="random")
    texts = [*outliers(pd.concat([sparse, dense, ranked, chance]))]
    assert [text.split()[0] for text in texts] == ["s0.70-seed44"]
    assert len([*outliers(ranked.drop(columns="method"))]) == 1
