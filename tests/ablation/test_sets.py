"""Ready sets of components: which ones, under which names, and what cannot be had."""

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechcore.ablation import ComponentSet, sets
from mechcore.components import Component, ModelShape
from mechcore.errors import InputError

SHAPE = ModelShape(2, 3)
ATTENTION_ONLY = ModelShape(2, 2, has_mlps=False)


def names(chosen: list[ComponentSet]) -> list[str]:
    return [str(cut) for cut in chosen]


def test_ready_sets_written_out() -> None:
    heads = ["L0.H0", "L0.H1", "L0.H2", "L1.H0", "L1.H1", "L1.H2"]
    assert names(sets.singles(SHAPE, mlps=False)) == heads
    assert names(sets.singles(SHAPE, heads=False)) == ["L0.MLP", "L1.MLP"]
    assert set(names(sets.singles(SHAPE))) == {*heads, "L0.MLP", "L1.MLP"}
    assert names(sets.singles(ATTENTION_ONLY)) == ["L0.H0", "L0.H1", "L1.H0", "L1.H1"]
    cuts = sets.pairs(["1.0", "L0.MLP", "0.2", "0.2"])
    assert names(cuts) == ["L0.H2+L0.MLP", "L0.H2+L1.H0", "L0.MLP+L1.H0"]
    cuts = names(sets.subsets(["1.0", "0.2", "0.mlp"]))
    pairs = ["L0.H2+L0.MLP", "L0.H2+L1.H0", "L0.MLP+L1.H0"]
    assert cuts == ["L0.H2", "L0.MLP", "L1.H0", *pairs, "L0.H2+L0.MLP+L1.H0"]
    assert names(sets.subsets(["1.0", "0.2", "0.mlp"], sizes=[3, 1])) == [cuts[-1], *cuts[:3]]


@given(st.integers(1, 8))
def test_subsets_are_all_different(n: int) -> None:
    subsets = sets.subsets([Component(0, i) for i in range(n)])
    assert len(set(subsets)) == len(subsets) == 2**n - 1
    assert Counter(map(len, subsets)) == {k: math.comb(n, k) for k in range(1, n + 1)}


def test_more_than_ten_components_need_sizes() -> None:
    components = [Component(0, i) for i in range(11)]
    with pytest.raises(InputError, match="11 components have 2047 subsets; give sizes"):
        sets.subsets(components)
    assert len(sets.subsets(components, sizes=[2])) == 55


def test_sizes_that_do_not_exist() -> None:
    for sizes in ([], [0], [3], [1, 5]):
        with pytest.raises(InputError, match="of 2 distinct components; expected sizes from 1"):
            sets.subsets(["0.0", "0.1", "0.0"], sizes=sizes)
    for components in ([], ["0.0"], ["0.0", "L0.H0"]):
        with pytest.raises(InputError, match=r"sizes \[2\] of [01] distinct components"):
            sets.pairs(components)


CHOSEN = ["0.1", "0.2", "2.mlp"]
LARGE = ModelShape(3, 8)


@given(st.integers(0, 1000))
def test_random_sets_match_layer_by_layer(seed: int) -> None:
    drawn = sets.matched_random(CHOSEN, LARGE, 4, seed=seed)
    assert list(drawn) == ["random 1", "random 2", "random 3", "random 4"]
    for cut in drawn.values():
        heads = [c for c in cut.components if c.is_head]
        assert Counter(c.layer for c in heads) == {0: 2}
        assert len(cut) == 3  # MLPs match in number, in whichever layer
        assert not set(map(str, cut.components)) & {"L0.H1", "L0.H2", "L2.MLP"}
        assert all(LARGE.index(c) for c in cut.components)


def test_random_sets_differ_and_follow_the_seed() -> None:
    drawn = sets.matched_random(CHOSEN, LARGE, 20, seed=1)
    assert len(set(drawn.values())) == 20
    assert drawn == sets.matched_random(CHOSEN, LARGE, 20, seed=1)
    assert drawn != sets.matched_random(CHOSEN, LARGE, 20, seed=2)
    layers = {c.layer for cut in drawn.values() for c in cut.components if not c.is_head}
    assert layers == {0, 1}
    assert sets.matched_random(CHOSEN, LARGE, 0) == {}


def test_random_sets_where_few_or_none_are_left() -> None:
    # One head is left beside two of three, so there is one set without the MLP.
    drawn = sets.matched_random(["0.0"], ModelShape(1, 2), 1)
    assert [str(cut) for cut in drawn.values()] == ["L0.H1"]
    with pytest.raises(InputError, match="only 1 distinct ones exist, 2 requested"):
        sets.matched_random(["0.0"], ModelShape(1, 2), 2)
    with pytest.raises(
        InputError,
        match=r"2 other components needed, but 1 available \(L0.H2\); expected a smaller set",
    ):
        sets.matched_random(["0.0", "0.1"], SHAPE)
    with pytest.raises(InputError, match=r"1 other components needed, but 0 available"):
        sets.matched_random(["0.mlp"], ModelShape(1, 2))
    for name in ("2.0", "0.3"):
        with pytest.raises(InputError, match="out of range"):
            sets.matched_random([name], SHAPE)
    with pytest.raises(InputError, match="no MLPs"):
        sets.matched_random(["0.mlp"], ATTENTION_ONLY)
    drawn = sets.matched_random(["0.0"], ATTENTION_ONLY, 1)
    assert [str(cut) for cut in drawn.values()] == ["L0.H1"]


def test_fewer_random_sets_where_there_are_no_more() -> None:
    every = sets.matched_random(["0.0", "1.1"], ModelShape(2, 4), 200, fewer=True)
    expected = {f"L0.H{a}+L1.H{b}" for a in (1, 2, 3) for b in (0, 2, 3)}
    assert {*map(str, every.values())} == expected
    options: dict[str, Any] = {"fewer": True, "seed": 4}
    shape = ModelShape(2, 4)
    few = sets.matched_random(["0.0", "1.1"], shape, 5, **options)
    assert few == sets.matched_random(["0.0", "1.1"], shape, 5, seed=4)
    assert sets.matched_random(["0.0", "0.1", "0.2"], shape, 5, **options) == {}
