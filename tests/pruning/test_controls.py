"""Random subnetworks: exact numbers, and nothing but chance in the choice."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pruning.oracles import names

from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError
from mechcore.pruning import Subnetwork, discretise
from mechcore.pruning.discretise import layer_matched, random_subnetworks

SHAPE = ModelShape(3, 4)
# -- uniformly drawn components -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "kept"),
    [
        (SHAPE, [9, 15, 10, 1, 3]),  # of 15
        (ModelShape(2, 5, has_mlps=False), [6, 10, 7, 1, 2]),  # of 10
    ],
    ids=str,
)
def test_random_subnetworks_keep_as_many_as_asked(shape: ModelShape, kept: list[int]) -> None:
    target_sparsities = [0.4, 0.0, 0.33, 0.93, 0.8]
    draws = random_subnetworks(shape, target_sparsities=target_sparsities, seeds=[4, 2])
    assert [(draw.target_sparsity, draw.seed) for draw in draws] == [
        (t, s) for t in target_sparsities for s in (4, 2)
    ]
    assert [len(draw.mask.kept) for draw in draws] == [n for n in kept for _ in (4, 2)]
    for draw in draws:
        assert draw.mask.shape == shape
        assert draw.method == "random"
        assert draw.mask == discretise(draw.scores, draw.target_sparsity, shape)
        assert len(draw.history) == 0
    assert draws[0].name == "random-s0.40-seed4"


def test_random_subnetworks_are_those_of_their_seed_and_nested() -> None:
    target_sparsities = [0.2, 0.4, 0.6, 0.8]
    draws, again = (
        random_subnetworks(SHAPE, target_sparsities=target_sparsities, seeds=seeds)
        for seeds in (7, [7])
    )
    assert [draw.mask for draw in draws] == [draw.mask for draw in again]
    for larger, smaller in itertools.pairwise(draws):
        assert names(smaller.mask) < names(larger.mask)
    (alone,) = random_subnetworks(SHAPE, target_sparsities=0.6, seeds=7)
    assert alone.mask == draws[2].mask
    many = random_subnetworks(SHAPE, target_sparsities=0.5, seeds=range(40))  # C(15, 8) = 6435
    assert len({tuple(sorted(names(draw.mask))) for draw in many}) > 35


# -- as many in every layer -----------------------------------------------------------------------


def subnetwork(
    values: Any, seed: int = 5, has_mlps: bool = True, target_sparsity: float = 0.4
) -> Subnetwork:
    values = torch.as_tensor(values, dtype=torch.float32)
    return Subnetwork(Mask(values, has_mlps=has_mlps), target_sparsity, seed, values)


@st.composite
def subnetworks(draw: Any) -> Subnetwork:
    n_layers, columns = draw(st.integers(1, 4)), draw(st.integers(2, 6))
    row = st.lists(st.integers(0, 1), min_size=columns, max_size=columns)
    values = draw(st.lists(row, min_size=n_layers, max_size=n_layers))
    return subnetwork(values, draw(st.integers(0, 2**40)), draw(st.booleans()))


@given(subnetworks())
def test_matches_keep_as_many_heads_and_the_same_mlps(trained: Subnetwork) -> None:
    (match,) = layer_matched([trained])
    assert match.mask.shape == trained.mask.shape
    assert match.mask.is_discrete
    assert torch.equal(match.mask.heads.sum(1), trained.mask.heads.sum(1))
    assert torch.equal(match.mask.mlps, trained.mask.mlps)
    assert match.sparsity == trained.sparsity
    assert (match.target_sparsity, match.seed, match.method) == (0.4, trained.seed, "layer-matched")
    assert match.name == f"layer-matched-s0.40-seed{trained.seed}"
    assert layer_matched([trained])[0].mask == match.mask


def test_matches_are_drawn_apart_from_the_random_subnetwork_of_their_seed() -> None:
    # Otherwise the match of a random subnetwork is that subnetwork, and the two controls of one
    # trained mask are not two draws.
    shape = ModelShape(4, 12)
    draws = random_subnetworks(shape, target_sparsities=0.5, seeds=range(5))
    matches = layer_matched(draws)
    assert not any(a.mask == b.mask for a, b in zip(draws, matches, strict=True))


@pytest.mark.parametrize("values", [torch.ones(2, 3, 4), torch.full((3, 4), 0.5)])
def test_only_single_masks_of_zeros_and_ones_have_matches(values: torch.Tensor) -> None:
    with pytest.raises(InputError, match="kept and ablated sets are those of a single mask"):
        layer_matched([subnetwork(values)])
