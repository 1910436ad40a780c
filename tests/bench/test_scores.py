"""Scores against known truth: by hand, by their properties, and as MIB's own code has them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mechcore.ablation.effects import ComponentSet
from mechcore.bench import (
    Truth,
    mask_distance,
    node_auroc,
    pair_auroc,
    path_auroc,
    sign_accuracy,
)
from mechcore.bench.faithfulness import ranked
from mechcore.bench.scores import by_component, recovery
from mechcore.components import Component, Mask, ModelShape
from mechcore.errors import InputError, MismatchError

SHAPE = ModelShape(2, 2)


def truth_of(*names: str, **more: Any) -> Truth:
    return Truth(frozenset(map(Component, names)), **more)


def by_pair(**sizes: float) -> dict[ComponentSet, float]:
    """Numbers of pairs of heads of layer 0, by their two numbers: ``_01`` is L0.H0+L0.H1."""
    return {ComponentSet.of([f"0.{name[1]}", f"0.{name[2]}"]): size for name, size in sizes.items()}


# -- rankings of components -----------------------------------------------------------------------


def test_rankings_by_hand() -> None:
    truth = truth_of("L0.H1", "L1.MLP")
    scores = np.array([[0.3, 0.9, 0.1], [0.5, 0.2, 0.4]])
    # 0.9 is above all four others; 0.4 is above 0.3, 0.1 and 0.2, and under 0.5: 7 of 8.
    assert node_auroc(scores, truth) == pytest.approx(7 / 8)
    assert node_auroc(torch.tensor(scores), truth) == pytest.approx(7 / 8)
    named = pd.Series(scores.ravel(), index=[str(each) for each in SHAPE.components])
    assert node_auroc(named.sample(frac=1, random_state=0), truth) == pytest.approx(7 / 8)
    # The same columns as three heads: L0.H1 and L1.H2.
    heads = truth_of("L0.H1", "L1.H2")
    assert node_auroc(scores, heads, has_mlps=False) == pytest.approx(7 / 8)
    # A tie counts half: 0.5 beside 0.5 makes 7.5 of 8.
    scores[1, 2] = 0.5
    assert node_auroc(scores, truth) == pytest.approx(7.5 / 8)
    assert node_auroc(np.zeros((2, 3)), truth) == 0.5


@given(st.data())
def test_right_and_reversed_rankings(draw: st.DataObject) -> None:
    shape = ModelShape(draw.draw(st.integers(1, 4)), draw.draw(st.integers(1, 4)))
    n = len(shape.components)
    true = draw.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1))
    truth = Truth(frozenset(shape.components[i] for i in true))
    values = np.array(draw.draw(st.permutations(range(n))), dtype=float)
    values[sorted(true)] += n
    scores = values.reshape(shape.n_layers, shape.columns)
    assert node_auroc(scores, truth) == 1
    assert node_auroc(-scores, truth) == 0
    moved = 3 * values**3 - 7  # rises with them
    assert node_auroc(moved.reshape(scores.shape), truth) == 1


def test_what_is_no_ranking() -> None:
    scores = np.arange(6.0).reshape(2, 3)
    for names, n in (((), 0), (map(str, SHAPE.components), 6)):
        with pytest.raises(InputError, match=f"{n} of 6 are a true component; expected some that"):
            node_auroc(scores, truth_of(*names))
    with pytest.raises(InputError, match=r"the true component L2\.H0 has none"):
        node_auroc(scores, truth_of("L0.H0", "L2.H0"))
    for bad in (math.nan, math.inf):
        wrong = scores.copy()
        wrong[1, 2] = bad
        with pytest.raises(InputError, match=rf"found {bad} for L1\.MLP; expected a finite number"):
            node_auroc(wrong, truth_of("L0.H0"))
    with pytest.raises(InputError, match=r"found the shape \(6,\); expected \[layers, heads"):
        node_auroc(scores.ravel(), truth_of("L0.H0"))
    with pytest.raises(InputError, match=r"ranking: L0\.H1 is there more than once"):
        by_component(pd.Series([1.0, 2.0], index=["L0.H1", "0.1"]))


def test_components_by_falling_score() -> None:
    scores = np.array([[0.0, -3.0, 1.0], [1.0, 2.0, 0.0]])
    found = ranked(scores, SHAPE)
    assert list(map(str, found)) == ["L1.H1", "L0.MLP", "L1.H0", "L0.H0", "L1.MLP", "L0.H1"]
    assert str(ranked(scores, SHAPE, absolute=True)[0]) == "L0.H1"
    some = pd.Series({"L1.H1": -1.0, "L0.H0": 4.0})
    assert list(map(str, ranked(some, SHAPE))) == ["L0.H0", "L1.H1"]
    with pytest.raises(MismatchError, match=r"found the shape \(3, 2\); the model has 2 layers"):
        ranked(scores.T, SHAPE)
    with pytest.raises(InputError, match="out of range"):
        ranked(pd.Series({"L5.H0": 1.0}), SHAPE)


# -- pairs ----------------------------------------------------------------------------------------

PAIRS = truth_of("L0.H0", interactions=by_pair(_01=2.0, _23=-0.5))


def test_pairs_by_hand() -> None:
    predicted = by_pair(_01=-1.0, _02=0.5, _03=0.1, _23=0.3)
    # 1.0 is above 0.5 and 0.1, 0.3 above 0.1: 3 of 4, whatever the signs.
    assert pair_auroc(predicted, PAIRS) == pytest.approx(3 / 4)
    named = pd.Series({"L0.H1+L0.H0": -1.0, "0.0+0.2": 0.5, "0.0+0.3": 0.1, "L0.H2+L0.H3": 0.3})
    assert pair_auroc(named, PAIRS) == pytest.approx(3 / 4)
    # The sign of 0.1 is wrong, of 2.3 too; of what is not true, it is not asked.
    assert sign_accuracy(predicted, PAIRS) == 0
    assert sign_accuracy(by_pair(_01=1.0, _23=0.3), PAIRS) == 0.5
    assert sign_accuracy(by_pair(_01=0.0, _23=-0.3), PAIRS) == 0.5  # 0 has no sign


def test_signs_of_what_is_beyond_the_errors() -> None:
    predicted, errors = by_pair(_01=1.0, _23=0.3), by_pair(_01=0.9, _23=0.3)
    assert sign_accuracy(predicted, PAIRS, errors) == 1  # 2.0 > 2 * 0.9, 0.5 < 2 * 0.3
    assert sign_accuracy(predicted, PAIRS, errors, k=1) == 0.5
    with pytest.raises(InputError, match="no pair truly interacts"):
        sign_accuracy(predicted, PAIRS, errors, k=9)
    signs = truth_of("L0.H0", interactions=by_pair(_01=1.0), sized=False)
    assert sign_accuracy(predicted, signs) == 1
    with pytest.raises(InputError, match="by sign, not by size"):
        sign_accuracy(predicted, signs, errors)


HEADS = ("0.0", "0.1", "0.2", "0.3")


@given(st.lists(st.floats(0.1, 9), min_size=6, max_size=6), st.integers(1, 5))
def test_right_and_reversed_pairs(sizes: list[float], n_true: int) -> None:
    pairs = [
        ComponentSet.of(each) for each in itertools.combinations(["0.0", "0.1", "0.2", "0.3"], 2)
    ]
    true = dict(zip(pairs[:n_true], sizes, strict=False))
    signed = {pair: size * (-1) ** i for i, (pair, size) in enumerate(true.items())}
    truth = truth_of("L0.H0", interactions=signed)
    right = {pair: signed.get(pair, 0.0) for pair in pairs}
    assert (pair_auroc(right, truth), sign_accuracy(right, truth)) == (1, 1)
    other = {pair: 0.0 if pair in true else 1.0 for pair in pairs}
    assert (pair_auroc(other, truth), sign_accuracy(other, truth)) == (0, 0)
    assert sign_accuracy({pair: -size for pair, size in right.items()}, truth) == 0


def test_what_no_pairs_can_be_compared_with() -> None:
    with pytest.raises(InputError, match="its interactions are unknown"):
        pair_auroc(by_pair(_01=1.0), truth_of("L0.H0"))
    with pytest.raises(InputError, match=r"the true pair L0\.H2\+L0\.H3 has none"):
        pair_auroc(by_pair(_01=1.0, _02=1.0), PAIRS)
    with pytest.raises(InputError, match=r"predicted: found L0\.H1; expected pairs"):
        pair_auroc({"L0.H1": 1.0}, PAIRS)
    with pytest.raises(InputError, match=r"predicted: found nan for L0\.H0\+L0\.H1"):
        sign_accuracy(by_pair(_01=math.nan, _23=1.0), PAIRS)
    # An interaction that is written down as 0 is none.
    nothing = truth_of("L0.H0", interactions=by_pair(_01=0.0))
    with pytest.raises(InputError, match="0 of 1 are a true pair"):
        pair_auroc(by_pair(_01=1.0), nothing)


# -- paths ----------------------------------------------------------------------------------------


def test_paths_by_hand() -> None:
    rows = {"L0.H0>L1.H1.q": -0.9, "L0.H1>L1.H1.q": 0.5, "L0.H0>answer": 0.7, "L1.H1>answer": 0.1}
    table = pd.DataFrame({"set": rows.keys(), "margin_change": rows.values(), "subset": "all"})
    other = table.assign(subset="s", margin_change=0.0)
    both = pd.concat([other, table])
    # Sizes 0.9 and 0.1 against 0.7 and 0.5: 2 of 4.
    true = ["0.0>1.1.q", "L1.H1>answer"]
    assert path_auroc(both, true) == 0.5
    assert path_auroc(both, true, subset="s") == 0.5  # all the same
    assert path_auroc(table, ["L0.H0>L1.H1.q"]) == 1
    screening = table.drop(columns="subset").rename(columns={"margin_change": "predicted"})
    assert path_auroc(screening, true, column="predicted") == 0.5
    with pytest.raises(InputError, match="no column 'margin_change'; found set, predicted"):
        path_auroc(screening, true)
    with pytest.raises(InputError, match=r"L0\.H0>L1\.H1\.q is there more than once"):
        path_auroc(pd.concat([table, table]), true)
    cut = table.assign(margin_change=[1.0, 1.0, math.nan, 1.0])
    with pytest.raises(InputError, match=r"found nan for L0\.H0>answer"):
        path_auroc(cut, true)
    with pytest.raises(InputError, match=r"the true set of paths L0\.H5>answer has none"):
        path_auroc(table, ["L0.H5>answer"])


# -- sets -----------------------------------------------------------------------------------------


def test_sets_by_hand() -> None:
    found = recovery(["L0.H0", "L0.H1", "L1.MLP"], ["L0.H1", "L1.MLP", "L1.H0", "L1.H1"])
    assert list(map(str, found.extra)) == ["L0.H0"]
    assert list(map(str, found.missing)) == ["L1.H0", "L1.H1"]
    assert found.distance == 3
    figures = (found.precision, found.recall, found.jaccard)
    assert figures == pytest.approx((2 / 3, 2 / 4, 2 / 5))


def test_empty_sets() -> None:
    none = recovery([], ["L0.H0"])
    assert math.isnan(none.precision)
    assert (none.recall, none.jaccard, none.distance) == (0, 0, 1)
    nothing = recovery(["L0.H0"], [])
    assert math.isnan(nothing.recall)
    assert (nothing.precision, nothing.jaccard) == (0, 0)
    assert recovery([], []).jaccard == 1


def test_masks_by_hand() -> None:
    truth = truth_of("L0.H1", "L1.MLP")
    found = mask_distance(Mask.full(SHAPE).without("L1.MLP", "L0.H0"), truth)
    assert list(map(str, found.extra)) == ["L0.MLP", "L1.H0", "L1.H1"]
    assert list(map(str, found.missing)) == ["L1.MLP"]
    assert (found.distance, found.precision, found.recall) == (4, 1 / 4, 1 / 2)
    right = Mask.full(SHAPE).only(truth.components)
    assert mask_distance(right, truth).distance == 0
    assert mask_distance(~right, truth).distance == 6
    with pytest.raises(InputError, match="out of range"):
        mask_distance(right, truth_of("L2.H0"))
    with pytest.raises(InputError, match="zeros and ones"):
        mask_distance(Mask(torch.full((2, 3), 0.5)), truth)
