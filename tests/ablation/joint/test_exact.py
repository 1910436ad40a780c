"""Interactions: the published Table 3 as a fixture of facts, and hand-made margins."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ablation.few import of_margins
from ablation.planted import game
from scipy import stats

from mechcore.ablation import (
    Ablations,
    ComponentSet,
    ablation_table,
    dividends,
    interactions,
    shapley,
)
from mechcore.ablation.joint import exact
from mechcore.ablation.joint.exact import FLOOR
from mechcore.components import Component
from mechcore.evaluation.evaluate import Evaluation
from mechcore.evaluation.p_values import adjusted_p

SUBSETS = ("mnli", "so_swap", "prep", "embed_if", "embed_verb")
N = 1000
TABLE_3 = {
    "full": (83.3, 86.7, 73.5, 33.0, 33.4),
    "2.5": (83.4, 70.3, 58.6, 28.5, 23.6),
    "3.7": (83.5, 68.6, 60.2, 28.2, 23.0),
    "4.0": (82.9, 45.4, 41.8, 21.2, 12.7),
    "2.5 3.7 4.0": (80.4, 3.6, 11.1, 20.1, 4.7),
}
"""Accuracies in per cent, arXiv 2403.03942, Table 3."""
INTERACTIONS = (-2.8, -7.3, -2.5, 8.2, 12.2)
"""In points: joint change less the sum of single changes, -83.1 + (16.4 + 18.1 + 41.3)."""


def of(names: str) -> ComponentSet:
    return ComponentSet.of([Component.parse(name) for name in names.split()])


def answers(correct: np.ndarray, subsets: Any = "s") -> Evaluation:
    return of_margins(np.where(correct, 1.0, -1.0), subsets=subsets)


def table_3() -> Ablations:
    """1000 answers per subset, which examples are right drawn at random."""
    subsets = np.repeat(np.array(SUBSETS, dtype=object), N)
    rng = np.random.default_rng(0)

    def with_accuracies(percent: tuple[float, ...]) -> Evaluation:
        blocks = [rng.permutation(N) < round(10 * p) for p in percent]
        return answers(np.concatenate(blocks), subsets)

    by_name = {name: with_accuracies(percent) for name, percent in TABLE_3.items()}
    full = by_name.pop("full")
    return Ablations.of(full, {of(name): cut for name, cut in by_name.items()}, "table 3", "ood")


def test_the_published_interactions() -> None:
    published = table_3()
    table = interactions(published, n_resamples=50)
    assert list(table.columns) == exact.INTERACTIONS.required
    assert set(table["set"]) == {"L2.H5+L3.H7+L4.H0"}
    assert set(table["size"]) == {3}
    assert table["subset"].tolist() == [s for s in (*SUBSETS, "all") for _ in range(2)]
    assert table["metric"].tolist() == ["accuracy", "margin"] * 6
    assert table["n"].tolist() == [N] * 10 + [5 * N] * 2
    rows = table[(table["metric"] == "accuracy") & (table["subset"] != "all")]
    assert (100 * rows["interaction"]).tolist() == pytest.approx(list(INTERACTIONS), abs=1e-9)
    full, *_, joint = TABLE_3.values()
    changes = [(b - a) / 100 for a, b in zip(full, joint, strict=True)]
    assert rows["joint_change"].tolist() == pytest.approx(changes)
    sums = [d - i / 100 for d, i in zip(changes, INTERACTIONS, strict=True)]
    assert rows["sum_of_single_changes"].tolist() == pytest.approx(sums)
    # The answers of Table 3 are drawn apart from each other: 2.8 and 2.5 points are not shown.
    shown = (rows["high"] < 0) & (rows["p_adjusted"] <= 0.05)
    assert rows["superadditive"].tolist() == shown.tolist() == [False, True, False, False, False]
    over_all = table[(table["metric"] == "accuracy") & (table["subset"] == "all")].iloc[0]
    assert 100 * over_all["interaction"] == pytest.approx(sum(INTERACTIONS) / 5)
    assert not over_all["superadditive"]
    table = interactions(published, n_resamples=2).set_index(["subset", "metric"])
    # SO-Swap and Embed-Verb end at 3.6 and 4.7 %; the single losses in Embed-Verb (9.8 + 10.4 +
    # 20.7 = 40.9) exceed its 33.4 %, too. Embed-If ends at 20.1 %, and its single losses add up
    # to 21.1 of 33.0 %.
    assert FLOOR == 0.05
    floors = [subset for subset in SUBSETS if table.loc[(subset, "accuracy"), "floor"]]
    assert floors == ["so_swap", "embed_verb"]
    assert not table.xs("margin", level="metric")["floor"].any()


def test_margins_by_hand() -> None:
    def margins(*values: float) -> Evaluation:
        return of_margins(values, subsets=["u", "u", "v"])

    ablations = Ablations.of(
        margins(4, 2, 3),
        {
            of("0.0"): margins(3, 2, 3.5),  # changes -1 0 0.5
            of("1.1"): margins(2, 1, 3),  # changes -2 -1 0
            of("1.mlp"): margins(4, 2, -3),  # changes 0 0 -6
            of("0.0 1.1"): margins(-3, 0.5, 2),  # -7 -1.5 -1, less the sum -4 -0.5 -1.5
            of("0.0 1.1 1.mlp"): margins(-3, 0.5, -5),  # -7 -1.5 -8, less the sum -4 -0.5 -2.5
            of("0.0 2.0"): margins(0.5, 1, 2),  # L2.H0 was not ablated alone
        },
        "x",
        "ood",
    )
    table = interactions(ablations, n_resamples=200)
    assert set(table["set"]) == {"L0.H0+L1.H1", "L0.H0+L1.H1+L1.MLP"}
    margin = table[table["metric"] == "margin"].set_index(["subset", "set"])
    pair, triple = "L0.H0+L1.H1", "L0.H0+L1.H1+L1.MLP"
    assert margin.loc[("u", pair), "interaction"] == pytest.approx(-4.5 / 2)
    assert margin.loc[("v", pair), "interaction"] == pytest.approx(-1.5)
    assert margin.loc[("all", pair), "interaction"] == pytest.approx(-2)
    assert margin.loc[("all", pair), "joint_change"] == pytest.approx(-9.5 / 3)
    assert margin.loc[("all", pair), "sum_of_single_changes"] == pytest.approx(-3.5 / 3)
    assert margin.loc[("all", triple), "interaction"] == pytest.approx(-7 / 3)
    assert margin.loc[("all", triple), "size"] == 3
    # -4, -0.5 and -1.5 have the standard error 1.04083, and Student's t with 2 degrees of freedom
    # is 4.30265, an end at most three times as far; of one value there is no interval.
    low, high = margin.loc[("all", pair), ["low", "high"]]
    for away in (-2 - low, high + 2):
        assert 4.4783 <= away + 1e-3 <= 3 * 4.4783 + 2e-3
    assert margin.loc[("v", pair), ["low", "high"]].isna().all()


@pytest.mark.parametrize(
    ("level", "correction", "wanted"),
    [
        (0.95, "none", [True, False, False]),
        (0.97, "none", [False] * 3),
        (0.95, "holm", [False] * 3),
        (0.99, "benjamini-hochberg", [False] * 3),
    ],
)
def test_superadditivity_needs_interval_and_p(level: float, correction: Any, wanted: Any) -> None:
    # Of 100 answers, only ablating pairs makes some wrong: 5, 1, and 5 that were wrong right.
    def right(lost: int) -> Evaluation:
        return answers((np.arange(100) >= lost) & (np.arange(100) < 90))

    without = {of(name): right(5) for name in ("0.0", "0.1", "0.2")}
    without |= {of("0.0 0.1"): right(10), of("0.0 0.2"): right(6), of("0.1 0.2"): right(0)}
    swept = Ablations.of(right(5), without, "x", "id")
    table = interactions(swept, correction=correction, level=level, n_resamples=2)
    rows = table[(table["metric"] == "accuracy") & (table["subset"] == "s")]
    assert rows["interaction"].tolist() == pytest.approx([-0.05, -0.01, 0.05])
    assert rows["superadditive"].tolist() == wanted
    # Two more examples, half of one for and half of one against: 5 for of 102, squares 5 + 1.
    p = 2 * stats.t.sf(5 / math.sqrt(6 - 25 / 102), 99)
    once = 2 * stats.t.sf(1 / math.sqrt(2 - 1 / 102), 99)
    assert rows["p"].tolist() == pytest.approx([p, once, p])
    of_pairs = dividends(swept, ["L0.H0", "L0.H1"], n_resamples=2).query("metric == 'accuracy'")
    assert of_pairs["p"].iloc[2] == pytest.approx(p)
    assert p == pytest.approx(0.0397, abs=1e-4)
    # The margins are 1 and -1: twice the changes, by a plain t test.
    margin = table.loc[(table["metric"] == "margin") & (table["subset"] == "s"), "p"]
    assert margin.iloc[0] == pytest.approx(stats.ttest_1samp([2] * 5 + [0] * 95, 0).pvalue)


def test_what_shows_no_superadditivity() -> None:
    # Margins are those of float32: without effect they differ by the last digits. So do those of
    # the second pair, by ten times as much as counts for rounding.
    noise = np.random.default_rng(0).random(30) * 1e-6
    changes = {"L0.H0": 0 * noise, "L0.H1": -noise, "L0.H2": -noise}
    changes |= {"L0.H0+L0.H1": -3 * noise, "L0.H0+L0.H2": -noise - 1e-3}
    table = interactions(game(changes), n_resamples=5)
    rows = table[(table["metric"] == "margin") & (table["subset"] == "all")].set_index("set")
    assert rows["interaction"]["L0.H0+L0.H1"] == pytest.approx(-2 * noise.mean())
    assert rows["superadditive"].to_dict() == {"L0.H0+L0.H1": False, "L0.H0+L0.H2": True}
    assert rows["p"]["L0.H0+L0.H1"] == 1
    full = of_margins(np.ones(3))
    for names in ([], ["0.0"], ["0.0 0.1"], ["0.0", "0.0 0.1"]):
        table = interactions(Ablations.of(full, {of(n): full for n in names}, "x", "id"))
        assert table.empty
        assert list(table.columns) == exact.INTERACTIONS.required


def flags(full: int, a: int, b: int, joint: int) -> tuple[bool, bool]:
    """Floor and ceiling of a pair, from accuracies in per cent."""
    right, *without = (answers(np.arange(100) < percent) for percent in (full, a, b, joint))
    names = map(of, ("0.0", "0.1", "0.0 0.1"))
    swept = Ablations.of(right, dict(zip(names, without, strict=True)), "x", "ood")
    row = interactions(swept, n_resamples=1).iloc[0]
    return bool(row["floor"]), bool(row["ceiling"])


def test_a_floor_and_a_ceiling_by_hand() -> None:
    assert flags(70, 60, 60, 30) == (False, False)
    assert flags(70, 60, 60, 4) == (True, False)  # next to nothing is left
    assert flags(70, 30, 30, 10) == (True, False)  # losing 0.4 twice is more than 0.7
    assert flags(70, 75, 80, 96) == (False, True)  # next to nothing is left to gain
    assert flags(70, 90, 90, 93) == (False, True)  # gaining 0.2 twice is more than 0.3
    assert flags(99, 90, 90, 97) == (False, False)  # high, but ablating does not help
    assert flags(97, 97, 97, 97) == (False, False)
    # Single drops add up to all there is, 0.24 + 0.21 of 0.45, and no more; or 5 % are left, or
    # 95 % are reached.
    exact_cases = [(45, 21, 24, 30), (45, 42, 3, 30), (85, 80, 84, 5)]
    exact_cases += [(n, n + 1, n + 1, joint) for n in range(40, 95, 4) for joint in (5, 95)]
    assert {flags(*case) for case in exact_cases} == {(False, False)}


def test_copies_given_as_clusters_say_no_more_than_the_examples() -> None:
    rng, ten = np.random.default_rng(2), np.repeat(np.arange(40), 10)
    full, *others = (of_margins(m, subsets="all") for m in rng.normal(1, 1, (4, 40)))
    names = ("1.1", "1.2", "1.1 1.2")
    once = Ablations.of(full, dict(zip(map(of, names), others, strict=True)), "made up", "ood")
    copied = once.part(ten)
    known = replace(copied, full=replace(copied.full, clusters=ten))
    ends = ["interaction", "low", "high", "p"]
    tables = [interactions(made, n_resamples=50).set_index("metric") for made in (once, known)]
    margins = [table.loc["margin", ends].to_numpy(float) for table in tables]
    np.testing.assert_allclose(margins[1], margins[0])
    assert list(tables[0].columns) == [n for n in tables[1] if n in tables[0]]
    other = tables[1].loc["margin", ["other_low", "other_high"]].to_numpy(float)
    assert np.ptp(other) < 0.4 * np.ptp(margins[0][1:3])
    for table in (ablation_table(known, n_resamples=50), interactions(known, n_resamples=50)):
        assert (table["n_clusters"] == 40).all()
    values = shapley(known, ["L1.H1", "L1.H2"], n_resamples=50)
    assert (values["other_high"] < values["high"]).all()


def test_p_values_are_corrected_within_subset_and_metric() -> None:
    heads, noise = [f"L0.H{i}" for i in range(4)], np.random.default_rng(4)
    names = [*heads, *map("+".join, itertools.combinations(heads, 2))]
    changes = {name: noise.normal(len(name) / 50, 1, 60) for name in names}
    table = interactions(game(changes, subsets=["u", "v", "v"] * 20), n_resamples=2)
    for _, rows in table.groupby(["subset", "metric"]):
        wanted = adjusted_p(rows["p"].to_numpy(), "benjamini-hochberg")
        assert rows["p_adjusted"].tolist() == pytest.approx(wanted.tolist())
    assert (table["p_adjusted"] > table["p"]).any()
