"""Dividends and Shapley values: by hand, by their axioms and on random games."""

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ablation.planted import game
from hypothesis import given, settings
from hypothesis import strategies as st

from mechcore.ablation import Ablations, dividends, interactions, sets, shapley
from mechcore.errors import InputError

COLUMNS = ["set", "size", "data", "split", "subset", "n", "metric"]
A, B, C = "L0.H0", "L0.H1", "L1.MLP"
D = {A: 1, B: 2, C: 4, f"{A}+{B}": 2.5, f"{A}+{C}": 5, f"{B}+{C}": 9, f"{A}+{B}+{C}": 10}
"""Changes without every set of three components."""


def values(table: pd.DataFrame, column: str, metric: str = "margin") -> dict[str, float]:
    rows = table[(table["metric"] == metric) & (table["subset"] == "all")]
    return dict(zip(rows["set"], rows[column], strict=True))


def test_dividends_by_hand() -> None:
    table = dividends(game(D), n_resamples=5)
    columns = [*COLUMNS, "change", "dividend", "low", "high", "p", "p_adjusted"]
    assert list(table.columns) == columns
    # A and B are worth 2.5 - 1 - 2 together, B and C 9 - 2 - 4, A and C add up; all three are
    # worth 10 - 1 - 2 - 4 + 0.5 - 0 - 3.
    expected = {A: 1, B: 2, C: 4, f"{A}+{B}": -0.5, f"{A}+{C}": 0, f"{B}+{C}": 3}
    assert values(table, "dividend") == pytest.approx({**expected, f"{A}+{B}+{C}": 0.5})
    assert values(table, "change") == pytest.approx(D)
    assert table[["low", "high"]].isna().all(axis=None)  # of one example there is no interval
    table = shapley(game(D), n_resamples=5)
    assert list(table.columns) == [*COLUMNS, "shapley", "low", "high"]
    # Their own worth, and their shares of -0.5, 3 and 0.5.
    shared = {A: 1 - 0.25 + 0.5 / 3, B: 2 - 0.25 + 1.5 + 0.5 / 3, C: 4 + 1.5 + 0.5 / 3}
    assert values(table, "shapley") == pytest.approx(shared)
    assert set(table["size"]) == {1}


def test_examples_subsets_and_some_of_the_components_by_hand() -> None:
    changes = {A: [1, 0, 2], B: [0, 0, 1], f"{A}+{B}": [2, 3, 1]}
    # Dividends of the pair: 1, 3 and -2. Correct with a margin above 0.
    played = game(changes, start=[-1.5, -1.5, -1.5], subsets=["u", "u", "v"])
    table = dividends(played, n_resamples=50)
    pair = table[(table["set"] == f"{A}+{B}") & (table["metric"] == "margin")]
    assert pair.set_index("subset")["dividend"].to_dict() == {"u": 2, "v": -2, "all": 2 / 3}
    assert pair.set_index("subset")["n"].to_dict() == {"u": 2, "v": 1, "all": 3}
    for row in pair.itertuples():
        assert row.low <= row.dividend <= row.high if row.n > 1 else math.isnan(row.low)
    # Accuracy: 0 0 0, without A 0 0 1, without B 0 0 0, without both 1 1 0.
    accuracy = table[(table["metric"] == "accuracy") & (table["subset"] == "all")]
    assert accuracy["dividend"].tolist() == pytest.approx([1 / 3, 0, 1 / 3])
    by_example = shapley(played, n_resamples=200)
    row = by_example[(by_example["set"] == A) & (by_example["metric"] == "margin")]
    expected = pytest.approx({"u": (1.5 + 1.5) / 2, "v": 1, "all": 4 / 3})
    assert row.set_index("subset")["shapley"].to_dict() == expected
    assert row.set_index("subset").loc["u", ["low", "high"]].tolist() == [1.5, 1.5]
    played = game(D)
    of_two = values(dividends(played, [C, B], n_resamples=2), "dividend")
    assert of_two == {B: 2, C: 4, f"{B}+{C}": 3}
    assert values(shapley(played, [C, B], n_resamples=2), "shapley") == {B: 3.5, C: 5.5}
    assert values(shapley(played, [A], n_resamples=2), "shapley") == {A: 1}


@st.composite
def games(draw: st.DrawFn, least: int = 1) -> Ablations:
    """Any changes without any set of up to four components, on three examples in two subsets."""
    components = ["L0.H0", "L0.MLP", "L1.H2", "L3.H1"][: draw(st.integers(least, 4))]
    number = st.floats(-100, 100).map(lambda value: round(value, 3))
    return game(
        {str(cut): [draw(number) for _ in range(3)] for cut in sets.subsets(components)},
        subsets=["u", "v", "u"],
    )


@settings(max_examples=20)
@given(games(least=2))
def test_the_dividend_of_a_pair_is_its_interaction(played: Ablations) -> None:
    pairs = interactions(played, n_resamples=1).query("size == 2")
    table = dividends(played, n_resamples=1).query("size == 2")
    merged = pairs.merge(table, on=["set", "subset", "metric"])
    assert len(merged) == len(pairs) == len(table)
    np.testing.assert_allclose(merged["interaction"], merged["dividend"], atol=1e-9)
    np.testing.assert_allclose(merged["p_x"], merged["p_y"], atol=1e-6)


@settings(max_examples=20)
@given(games())
def test_shapley_values_are_means_over_all_orders(played: Ablations) -> None:
    names = [str(s) for s in played.without if len(s) == 1]
    worth: dict[frozenset, float] = {frozenset(): 0.0}
    for cut in played.without:
        members = frozenset(str(cut).split("+"))
        worth[members] = float(played.changes(cut, "margin").mean())
    expected = dict.fromkeys(names, 0.0)
    for order in itertools.permutations(names):
        for i, name in enumerate(order):
            gain = worth[frozenset(order[: i + 1])] - worth[frozenset(order[:i])]
            expected[name] += gain / math.factorial(len(names))
    assert values(shapley(played, n_resamples=1), "shapley") == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("function", [dividends, shapley])
def test_every_subset_is_needed(function: Any) -> None:
    played = game({name: d for name, d in D.items() if name != f"{A}+{C}"})
    message = rf"subsets: L0\.H0\+L1\.MLP was not ablated; ablate all subsets of {A}, {B}, {C}"
    with pytest.raises(InputError, match=message):
        function(played)
    assert len(function(played, [A, B], n_resamples=1)) > 0
    with pytest.raises(InputError, match=r"L2\.H0 was not ablated"):
        function(played, [A, "2.0"])
    with pytest.raises(InputError, match="of 0 distinct components"):
        function(played, [])
