"""Shares of effects by category of attention, on changes that are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from ablation.few import of_margins
from scipy import optimize, stats

from mechcore.ablation import Ablations, ComponentSet
from mechcore.ablation.effects.information import information_table
from mechcore.ablation.effects.knockouts import (
    KNOCKOUTS,
    knockout_table,
    to_control,
    with_controls,
)
from mechcore.evaluation.metrics import Measured, Metric

N = 60
RNG = np.random.default_rng(5)
OWN = {name: -1 + RNG.normal(size=N) for name in ("L0.H0", "L0.H1", "L1.H0")}
OWN["L1.H1"] = RNG.normal(size=N) * 0.5
OWN["L1.H1"] -= OWN["L1.H1"].mean()  # has no effect
SHARES = {
    "repeated": {"L0.H0": 1.0, "L0.H1": 0.0, "L1.H0": 0.5, "L1.H1": 1.0},
    "first": {"L0.H0": 0.05, "L0.H1": 0.9, "L1.H0": 0.5, "L1.H1": 0.0},
}
HIDDEN = {
    category: {name: share * OWN[name] + 0.2 * RNG.normal(size=N) for name, share in of.items()}
    for category, of in SHARES.items()
}
ALL_HEADS = ComponentSet.of([*OWN], "all heads")


def ablations(changes: dict[str, np.ndarray]) -> Ablations:
    """With these changes of margin; the full model has a margin of 2."""
    without = {ComponentSet.of([name]): of_margins(2 + c) for name, c in changes.items()}
    without[ALL_HEADS] = of_margins(2 + np.sum([*changes.values()], axis=0))
    return Ablations.of(of_margins(np.full(N, 2.0)), without, "hans", "ood")


PLAIN = ablations(OWN)
BY_CATEGORY = {category: ablations(changes) for category, changes in HIDDEN.items()}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    masses = {("L0.H0", "repeated"): {"mass": 0.7, "control_mass": 0.4}}
    return knockout_table(PLAIN, BY_CATEGORY, masses, n_resamples=20)


def of(table: pd.DataFrame, component: str, category: str) -> pd.Series:
    rows = (table["component"] == component) & (table["category"] == category)
    (row,) = table[rows & (table["subset"] == "all")].to_dict("records")
    return pd.Series(row)


def test_a_share_is_a_ratio_of_changes_in_margin_with_fiellers_interval(
    table: pd.DataFrame,
) -> None:
    KNOCKOUTS.check(table)
    for category, changes in HIDDEN.items():
        for name in ("L0.H0", "L0.H1", "L1.H0"):
            row, x, y = of(table, name, category), OWN[name], changes[name]
            assert row["margin_change"] == pytest.approx(y.mean(), abs=1e-5)
            assert row["margin_change_without"] == pytest.approx(x.mean(), abs=1e-5)
            assert row["share"] == pytest.approx(y.mean() / x.mean(), abs=1e-5)
            assert row["p"] == pytest.approx(stats.ttest_1samp(y - 0.5 * x, 0).pvalue, rel=1e-3)

            def outside(r: float, x: np.ndarray = x, y: np.ndarray = y) -> float:
                return float(stats.ttest_1samp(y - r * x, 0).pvalue) - 0.05

            low = optimize.brentq(outside, row["share"] - 2, row["share"] - 1e-9)
            high = optimize.brentq(outside, row["share"] + 1e-9, row["share"] + 2)
            assert [row["share_low"], row["share_high"]] == pytest.approx([low, high], abs=1e-3)
    assert of(table, "all heads", "repeated")["size"] == 4
    row = of(table, "L0.H0", "repeated")
    assert (row["mass"], row["control_mass"]) == (0.7, 0.4)


def test_any_metric_has_the_shares_that_the_margin_has(table: pd.DataFrame) -> None:
    metric = Metric("difference", lambda logits, batch: logits[:, 0])

    def measured(ablations: Ablations) -> Ablations:
        full = Measured(metric, np.full(N, 2.0), ablations.full.subsets)
        without: dict[Any, Any] = {
            one: Measured(metric, answers.margin.astype(float), full.subsets)
            for one, answers in ablations.without.items()
        }
        return Ablations(full, without, "hans", "ood")

    hidden = {name: measured(of) for name, of in BY_CATEGORY.items()}
    own = knockout_table(measured(PLAIN), hidden, n_resamples=20)
    assert {"difference_change", "difference_change_without"} < {*own}
    assert not [name for name in own if "margin" in name or "information" in name]
    same = ["component", "size", "category", "data", "split", "subset", "n", "p", "p_adjusted"]
    same += ["share", "share_low", "share_high"]
    pd.testing.assert_frame_equal(own[same], table[same])
    change = own["difference_change"].rename("margin_change")
    pd.testing.assert_series_equal(change, table["margin_change"])


def test_there_is_no_share_of_an_effect_that_may_be_0(table: pd.DataFrame) -> None:
    for category in SHARES:
        row = of(table, "L1.H1", category)
        assert row[["share", "share_low", "p", "p_adjusted"]].isna().all()
        assert row["margin_change"] == pytest.approx(HIDDEN[category]["L1.H1"].mean(), abs=1e-5)
    known = table[(table["subset"] == "all") & table["p"].notna()]
    adjusted = stats.false_discovery_control(known["p"].to_numpy(float))
    np.testing.assert_allclose(known["p_adjusted"].astype(float), adjusted)


def test_information_is_that_of_its_table() -> None:
    labels = np.arange(2 * N) % 2
    rng = np.random.default_rng(1)
    full, without, hidden = (
        of_margins(1 + shift + rng.normal(size=2 * N), labels) for shift in (0.0, -1.5, -0.7)
    )
    one = ComponentSet.of(["L0.H0"])
    plain, knocked = (Ablations.of(full, {one: e}, "hans", "ood") for e in (without, hidden))
    table = knockout_table(plain, {"first": knocked}, n_resamples=50, seed=3)
    (row,) = table[table["subset"] == "all"].to_dict("records")
    (expected,) = information_table(knocked, subsets=["all"], n_resamples=50, seed=3).to_dict(
        "records"
    )
    for name in ("information_change", "information_change_low", "threshold_change"):
        assert row[name] == expected[name]
    (own,) = information_table(plain, subsets=["all"], seed=3).to_dict("records")
    assert row["information_change_without"] == own["information_change"] != 0


def test_what_is_carried(table: pd.DataFrame) -> None:
    wanted = to_control(table)
    assert [*zip(wanted["component"], wanted["category"], strict=True)] == [
        ("L0.H0", "repeated"),
        ("L0.H1", "first"),
    ]
    controls = {wanted.index[0]: (0.9, [0.1] * 19 + [0.3]), wanted.index[1]: (0.9, [0.95] * 20)}
    judged = with_controls(table, controls)
    KNOCKOUTS.check(judged)
    assert {
        (row["component"], row["category"]): row["carried"]
        for _, row in judged[judged["subset"] == "all"].iterrows()
        if row["component"] != "all heads"
    } == {
        ("L0.H0", "repeated"): "supported",
        ("L0.H1", "repeated"): "not supported",
        ("L1.H0", "repeated"): "inconclusive",
        ("L1.H1", "repeated"): "",
        ("L0.H0", "first"): "not supported",
        ("L0.H1", "first"): "not supported",  # as much of any other attention does as much
        ("L1.H0", "first"): "inconclusive",
        ("L1.H1", "first"): "",
    }
    row = of(judged, "L0.H0", "repeated")
    assert row[["n_controls", "control_share", "p_control"]].tolist() == pytest.approx(
        [20, 0.11, 1 / 21]
    )
    assert table["carried"].eq("").all(), "the table given is left as it is"
