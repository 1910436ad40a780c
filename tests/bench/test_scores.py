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
    CircuitSizes,
    Truth,
    cmd,
    cpr,
    mask_distance,
    node_auroc,
    pair_auroc,
    path_auroc,
    sign_accuracy,
)
from mechcore.bench.faithfulness import ranked
from mechcore.bench.scores import MIB_SHARES, by_component, faithfulness, recovery
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
    table = pd.DataFrame({"set": rows.keys(), "margin_drop": rows.values(), "subset": "all"})
    other = table.assign(subset="s", margin_drop=0.0)
    both = pd.concat([other, table])
    # Sizes 0.9 and 0.1 against 0.7 and 0.5: 2 of 4.
    true = ["0.0>1.1.q", "L1.H1>answer"]
    assert path_auroc(both, true) == 0.5
    assert path_auroc(both, true, subset="s") == 0.5  # all the same
    assert path_auroc(table, ["L0.H0>L1.H1.q"]) == 1
    screening = table.drop(columns="subset").rename(columns={"margin_drop": "predicted"})
    assert path_auroc(screening, true, column="predicted") == 0.5
    with pytest.raises(InputError, match="no column 'margin_drop'; found set, predicted"):
        path_auroc(screening, true)
    with pytest.raises(InputError, match=r"L0\.H0>L1\.H1\.q is there more than once"):
        path_auroc(pd.concat([table, table]), true)
    cut = table.assign(margin_drop=[1.0, 1.0, math.nan, 1.0])
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


# -- sizes and areas ------------------------------------------------------------------------------


def test_areas_by_hand() -> None:
    shares, f = [0, 0.5, 1], np.array([0.0, 1.5, 1.0])
    # Trapezoids: (0 + 1.5) / 4 + (1.5 + 1) / 4 = 1; of |1 - f| 1, 0.5, 0: 1.5 / 4 + 0.5 / 4 = 0.5.
    assert cpr(shares, f) == pytest.approx(1)
    assert cmd(shares, f) == pytest.approx(0.5)
    # On a logarithmic axis 0.25, 0.5 and 1 are ln 2 apart: ln 2 * (0.75 + 1.25).
    shares = [0.25, 0.5, 1]
    assert cpr(shares, f, axis="log") == pytest.approx(2 * math.log(2))
    assert cmd(shares, f, axis="log") == pytest.approx(math.log(2))
    both = cpr(shares, np.stack([f, np.ones(3)]))  # rows by themselves
    np.testing.assert_allclose(both, [0.25 * 0.75 + 0.5 * 1.25, 0.75])


@given(
    st.lists(st.floats(0.001, 1), min_size=2, max_size=8, unique=True),
    st.sampled_from(["linear", "log"]),
    st.data(),
)
def test_areas_of_any_curve(shares: list[float], axis: Any, draw: st.DataObject) -> None:
    shares = sorted(shares)
    width = shares[-1] - shares[0] if axis == "linear" else math.log(shares[-1] / shares[0])
    ones = np.ones(len(shares))
    assert cpr(shares, ones, axis=axis) == pytest.approx(width)
    assert cmd(shares, ones, axis=axis) == 0
    numbers = st.lists(st.floats(-9, 9), min_size=len(shares), max_size=len(shares))
    f = np.array(draw.draw(numbers))
    assert cmd(shares, f, axis=axis) >= 0
    # What lies above 1 and what lies under it add up; the one less the other is CPR less the width.
    assert cmd(shares, f, axis=axis) >= abs(cpr(shares, f, axis=axis) - width) - 1e-9


def test_faithfulness_by_hand() -> None:
    # 1 of nothing, 5 of everything: 3 is half of the way, 6 is beyond it.
    np.testing.assert_allclose(faithfulness([1, 3, 6, 5], 5, 1), [0, 0.5, 1.25, 1])
    falling = faithfulness(np.array([[3.0, 1.0], [0.5, 0.0]]), [0.0, 0.0], [4.0, 1.0])
    np.testing.assert_allclose(falling, [[0.25, 0.75], [0.5, 1]])
    assert np.isnan(faithfulness([1.0], 1, 1)).all()


def test_sizes() -> None:
    assert CircuitSizes.of(4) == CircuitSizes((0, 0.25, 0.5, 0.75, 1), (0, 1, 2, 3, 4))
    assert CircuitSizes.of(4, axis="log").kept == (1, 2, 3, 4)
    assert CircuitSizes.of(10, [7, 2, 7]) == CircuitSizes((0.2, 0.7), (2, 7))
    # Rounded down, as MIB does: 0.2 of 14 are 2.8, and under 1000 components some sizes are empty.
    assert CircuitSizes.of(14, compat="mib") == CircuitSizes(
        MIB_SHARES, (0, 0, 0, 0, 0, 0, 1, 2, 7, 14)
    )
    with pytest.raises(InputError, match="found 0 to 5 components; expected 0 to 4"):
        CircuitSizes.of(4, range(6))
    with pytest.raises(InputError, match="compat is 'mib'; expected 'mib', without other sizes"):
        CircuitSizes.of(4, [1], compat="mib")


@pytest.mark.parametrize(
    ("shares", "options", "message"),
    [
        ([0, 1], {}, "found the shares 0, 1 for 3 circuits"),
        ([0, 1, 0.5], {}, "each larger than the one before"),
        ([0, 0.5, 0.5], {}, "each larger than the one before"),
        ([0, 0.5, 2], {}, "from 0 to 1"),
        ([0, 0.5, 1], {"axis": "log"}, "size 0 has no logarithm"),
        ([0, 0.5, 1], {"axis": "both"}, "axis is 'both'; expected 'linear' or 'log'"),
    ],
)
def test_what_is_no_axis(shares: list[float], options: Any, message: str) -> None:
    for area in (cpr, cmd):
        with pytest.raises(InputError, match=message):
            area(shares, np.ones(3), **options)


# -- MIB's own figures ----------------------------------------------------------------------------

OF_MIB = [
    (1.576638736376, 0.701878328711, 1.155599135006, 5.752156143976),
    (4.339648500626, 3.393093374380, -1.051285351621, 7.959040630603),
    (1.393737416511, 0.507660310219, 0.987928879781, 5.919826399201),
    (13.373487869213, 12.442487869213, 14.809015637759, 14.809015637759),
    (1.750500956962, 0.839312557748, 2.837958921508, 4.069796357475),
    (-3.800029433132, 4.799029433132, -2.804550867223, 9.712306146205),
    (1.166513488135, 0.357433830642, 1.288354975141, 5.619400303841),
    (-1.394956990217, 2.393956990217, 3.648124793680, 3.733934764967),
    (5.963406879105, 5.006198496808, -0.339491788235, 8.846441253204),
    (2.101408113850, 1.157129172621, 2.340694351088, 4.567060927894),
]
"""Its CPR and CMD of circuits of nodes by signed scores on the linear axis, and by their size on
the logarithmic one, for the random score files of ten seeds (hannamw/MIB-circuit-track b759df3)."""


@pytest.mark.parametrize("seed", range(10))
def test_areas_are_those_of_mib(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = ModelShape(int(rng.integers(2, 13)), int(rng.integers(2, 17)))
    n = len(shape.components)
    weights = dict(zip(shape.components, rng.normal(0.1, 1.0, size=n), strict=True))
    values = np.array(list(weights.values())).reshape(shape.n_layers, shape.columns)
    scores = (values + rng.normal(size=values.shape)).astype(np.float32)  # as MIB's files hold them
    found: list[float] = []
    for axis, absolute in (("linear", False), ("log", True)):
        order = ranked(scores, shape, absolute=absolute)
        sizes = CircuitSizes.of(n, compat="mib")
        # The metric of a circuit is 2 and the weights of what it keeps.
        metric = [2 + sum(weights[c] for c in order[:k]) for k in (*sizes.kept, n, 0)]
        f = faithfulness(metric[:-2], metric[-2], metric[-1])
        found += (float(area(sizes.shares, f, axis=axis)) for area in (cpr, cmd))  # type: ignore[arg-type]
    assert found == pytest.approx(OF_MIB[seed], abs=1e-9)
