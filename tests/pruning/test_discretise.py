"""From scores to zeros and ones, against written-out masks and a brute-force search."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pruning.oracles import names

from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError
from mechcore.pruning import discretise, discretise_by_threshold, hard_concrete
from mechcore.pruning.discretise import discretise_by_layer

SHAPE = ModelShape(2, 2)

# -- one ranking ----------------------------------------------------------------------------------


def test_discretising_by_hand() -> None:
    scores = torch.tensor([[3.0, -1.0, 0.5], [0.0, 2.0, -2.0]])
    # The ranking is over the whole model: 3, 2, 0.5, 0, -1, -2.
    assert names(discretise(scores, 0.5, SHAPE)) == {"L0.H0", "L1.H1", "L0.MLP"}
    assert names(discretise(scores, 0.0, SHAPE)) == set(map(str, SHAPE.components))
    assert names(discretise(scores, 5 / 6, SHAPE)) == {"L0.H0"}
    assert discretise(scores, 0.5, SHAPE).values.tolist() == [[1, 0, 1], [0, 1, 0]]
    without = discretise(scores, 0.5, ModelShape(2, 3, has_mlps=False))
    assert names(without) == {"L0.H0", "L1.H1", "L0.H2"}


@pytest.mark.parametrize("to_mask", [discretise, discretise_by_threshold, discretise_by_layer])
def test_scores_that_are_no_numbers_have_no_rank(to_mask: Any) -> None:
    scores = torch.tensor([[3.0, -1.0, 0.5], [0.0, math.nan, math.nan]])
    with pytest.raises(InputError, match=r"NaN for 2 of 6 components, first L1\.H1; expected"):
        to_mask(scores, 0.5, SHAPE)


@given(st.data(), st.integers(1, 4), st.integers(2, 5), st.floats(0, 1, exclude_max=True))
def test_discretising_is_one_ranking(
    draw: st.DataObject, n_layers: int, columns: int, sparsity: float
) -> None:
    n = n_layers * columns
    few = st.integers(-3, 3).map(float)  # few values, so that there are ties
    flat = draw.draw(st.lists(few, min_size=n, max_size=n))
    scores = torch.tensor(flat).reshape(n_layers, columns)
    if sparsity * n > n - 0.5:
        with pytest.raises(InputError, match=f"keeps none of the model's {n} components"):
            discretise(scores, sparsity, ModelShape(n_layers, columns - 1))
        return
    mask = discretise(scores, sparsity, ModelShape(n_layers, columns - 1))
    values = mask.values.flatten().tolist()
    n_pruned = values.count(0.0)
    assert n_pruned + values.count(1.0) == n
    assert abs(n_pruned - sparsity * n) <= 0.5 + 1e-9
    ranking = sorted(range(n), key=lambda i: (-flat[i], i))
    assert {i for i in range(n) if values[i] == 1} == set(ranking[: n - n_pruned])


def test_a_sparsity_that_keeps_nothing_is_refused() -> None:
    scores, shape = torch.arange(10.0).reshape(2, 5), ModelShape(2, 4)
    for sparsity in (0.9, 0.94):
        assert names(discretise(scores, sparsity, shape)) == {"L1.MLP"}
    for sparsity in (0.96, 0.99):
        message = f"sparsity {sparsity}: keeps none of the model's 10 components; expected at most "
        with pytest.raises(InputError, match=f"{message}0.9, which keeps one"):
            discretise(scores, sparsity, shape)


# -- a threshold on the deterministic mask --------------------------------------------------------


def log_alphas(*s: float) -> torch.Tensor:
    """Those whose sigmoid is ``s``; the deterministic mask value is 1.2 s - 0.1."""
    return torch.tensor([math.log(p / (1 - p)) for p in s]).reshape(2, -1)


TRAINED = log_alphas(0.9, 0.55, 0.3, 0.7, 0.1, 0.05)


@pytest.mark.parametrize(
    ("sparsity", "kept"),
    [
        # Threshold 0 prunes the exact zero alone, 0.05 to 0.25 also 0.02, 0.3 to 0.55 also 0.26,
        # 0.6 to 0.7 also 0.56, and 0.75 to 0.95 all but 0.98.
        (1 / 6, [[1, 1, 1], [1, 1, 0]]),
        (2 / 6, [[1, 1, 1], [1, 0, 0]]),
        (3 / 6, [[1, 1, 0], [1, 0, 0]]),
        (4 / 6, [[1, 0, 0], [1, 0, 0]]),
        (5 / 6, [[1, 0, 0], [0, 0, 0]]),
        # The nearest one is taken.
        (0.41, [[1, 1, 1], [1, 0, 0]]),
        (0.43, [[1, 1, 0], [1, 0, 0]]),
        # 5/12 and 3/12 lie halfway between two: the lower threshold, which keeps more.
        (5 / 12, [[1, 1, 1], [1, 0, 0]]),
        (3 / 12, [[1, 1, 1], [1, 1, 0]]),
        # Targets that no threshold reaches.
        (0.0, [[1, 1, 1], [1, 1, 0]]),
        (0.99, [[1, 0, 0], [0, 0, 0]]),
    ],
)
def test_thresholds_by_hand(sparsity: float, kept: list[list[int]]) -> None:
    mask = discretise_by_threshold(TRAINED, sparsity, SHAPE)
    assert mask.values.tolist() == kept
    assert mask.shape == SHAPE


@given(
    st.lists(st.floats(-3.5, 3.5), min_size=6, max_size=6),
    st.floats(0, 1, exclude_max=True),
)
def test_no_other_threshold_is_closer(flat: list[float], sparsity: float) -> None:
    scores = torch.tensor(flat).reshape(2, 3)
    mask = discretise_by_threshold(scores, sparsity, SHAPE)
    values = hard_concrete.deterministic(scores)
    candidates = [Mask((values > threshold / 20).float()) for threshold in range(20)]
    least = min(abs(m.sparsity - sparsity) for m in candidates)
    closest = (m for m in candidates if abs(m.sparsity - sparsity) <= least + 1e-9)
    assert mask == next(closest)


def test_layers_prune_as_many_as_their_scores_expect_to_be_zero() -> None:
    # P(z = 0) is sigmoid(-2/3 log 11 - log_alpha): 1/2 at -1.5986, and 0.009, 0.168, 0.646 and
    # 0.832 at 3.083, 0, -2.2 and -3.2. Sums: 0.823 and 1.978, so 1 and 2.
    scores = torch.tensor([[-2.2, 3.083, 0.0], [-1.5986, -3.2, -2.2]])
    assert hard_concrete.probability_of_zero(scores).sum(1).tolist() == pytest.approx(
        [0.823, 1.978], abs=2e-3
    )
    mask = discretise_by_layer(scores, 0.5, SHAPE)
    assert mask.values.tolist() == [[0, 1, 1], [1, 0, 0]]
    assert mask == discretise_by_layer(scores, 0.1, SHAPE)  # whatever the target
    ties = discretise_by_layer(torch.full((2, 3), -1.5986), 0.5, SHAPE)  # 1.5 of each: 2, the last
    assert ties.values.tolist() == [[1, 0, 0]] * 2
