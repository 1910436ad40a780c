"""Interactions: the published Table 3 as a fixture of facts, and hand-made margins."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from mechcore.ablation import Ablations, ComponentSet, interactions
from mechcore.ablation.superadditivity import COLUMNS, FLOOR
from mechcore.components import Component
from mechcore.evaluate import Evaluation

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
INTERACTIONS = (2.8, 7.3, 2.5, -8.2, -12.2)
"""In points: joint drop less the sum of single drops; such as 83.1 - (16.4 + 18.1 + 41.3)."""


def of(names: str) -> ComponentSet:
    return ComponentSet.of([Component.parse(name) for name in names.split()])


def answers(
    correct: np.ndarray, subsets: np.ndarray, margin: np.ndarray | None = None
) -> Evaluation:
    signed = np.where(correct, 1.0, -1.0) if margin is None else margin
    logits = torch.tensor(np.stack([signed, np.zeros_like(signed)], axis=1))
    right = torch.tensor([[True, False]]).repeat(len(logits), 1)
    return Evaluation(logits, right, subsets, "")


@pytest.fixture(scope="module")
def table_3() -> Ablations:
    """1000 answers per subset, which examples are right drawn at random."""
    subsets = np.repeat(np.array(SUBSETS, dtype=object), N)
    rng = np.random.default_rng(0)

    def with_accuracies(percent: tuple[float, ...]) -> Evaluation:
        blocks = [rng.permutation(N) < round(10 * p) for p in percent]
        return answers(np.concatenate(blocks), subsets)

    found = {name: with_accuracies(percent) for name, percent in TABLE_3.items()}
    full = found.pop("full")
    return Ablations.of(full, {of(name): each for name, each in found.items()}, "table 3", "ood")


def test_the_published_interactions(table_3: Ablations) -> None:
    table = interactions(table_3, n_resamples=50)
    assert list(table.columns) == list(COLUMNS)
    assert set(table["set"]) == {"L2.H5+L3.H7+L4.H0"}
    assert set(table["size"]) == {3}
    assert table["subset"].tolist() == [s for s in (*SUBSETS, "all") for _ in range(2)]
    assert table["metric"].tolist() == ["accuracy", "margin"] * 6
    assert table["n"].tolist() == [N] * 10 + [5 * N] * 2
    rows = table[(table["metric"] == "accuracy") & (table["subset"] != "all")]
    assert (100 * rows["interaction"]).tolist() == pytest.approx(list(INTERACTIONS), abs=1e-9)
    full, *_, joint = TABLE_3.values()
    drops = [(a - b) / 100 for a, b in zip(full, joint, strict=True)]
    assert rows["joint_drop"].tolist() == pytest.approx(drops)
    sums = [d - i / 100 for d, i in zip(drops, INTERACTIONS, strict=True)]
    assert rows["sum_of_single_drops"].tolist() == pytest.approx(sums)
    assert rows["superadditive"].tolist() == [True, True, True, False, False]
    over_all = table[(table["metric"] == "accuracy") & (table["subset"] == "all")].iloc[0]
    assert 100 * over_all["interaction"] == pytest.approx(sum(INTERACTIONS) / 5)
    assert not over_all["superadditive"]


def test_floors_of_the_published_accuracies(table_3: Ablations) -> None:
    table = interactions(table_3, n_resamples=2).set_index(["subset", "metric"])
    # SO-Swap and Embed-Verb end at 3.6 and 4.7 %; the single drops in Embed-Verb (9.8 + 10.4 +
    # 20.7 = 40.9) exceed its 33.4 %, too. Embed-If ends at 20.1 %, and its single drops add up
    # to 21.1 of 33.0 %.
    assert FLOOR == 0.05
    floors = {subset: bool(table.loc[(subset, "accuracy"), "floor"]) for subset in SUBSETS}
    assert floors == {
        "mnli": False,
        "so_swap": True,
        "prep": False,
        "embed_if": False,
        "embed_verb": True,
    }
    assert not table.xs("margin", level="metric")["floor"].any()


def test_a_floor_through_single_drops_alone() -> None:
    # Accuracies 0.5, 0.2, 0.2 and 0.1: the drops of 0.3 add up to 0.6 > 0.5, the end is over 0.05.
    subsets = np.full(10, "s", dtype=object)

    def right(count: int) -> Evaluation:
        return answers(np.arange(10) < count, subsets)

    without = {of("0.0"): right(2), of("0.1"): right(2), of("0.0 0.1"): right(1)}
    table = interactions(Ablations.of(right(5), without, "x", "id"), n_resamples=5)
    first = table.iloc[0]
    assert (first["subset"], first["metric"], first["floor"]) == ("s", "accuracy", True)
    assert first["interaction"] == pytest.approx(-0.2)
    without[of("0.1")] = right(3)
    table = interactions(Ablations.of(right(5), without, "x", "id"), n_resamples=5)
    assert not table.iloc[0]["floor"]


def test_margins_by_hand() -> None:
    subsets = np.array(["u", "u", "v"], dtype=object)

    def margins(*values: float) -> Evaluation:
        margin = np.array(values)
        return answers(margin > 0, subsets, margin)

    ablations = Ablations.of(
        margins(4, 2, 3),
        {
            of("0.0"): margins(3, 2, 3.5),  # drops 1 0 -0.5
            of("1.1"): margins(2, 1, 3),  # drops 2 1 0
            of("1.mlp"): margins(4, 2, -3),  # drops 0 0 6
            of("0.0 1.1"): margins(-3, 0.5, 2),  # drops 7 1.5 1, over the sum 4 0.5 1.5
            of("0.0 1.1 1.mlp"): margins(-3, 0.5, -5),  # drops 7 1.5 8, over the sum 4 0.5 2.5
            of("0.0 2.0"): margins(0.5, 1, 2),  # L2.H0 was not ablated alone
        },
        "x",
        "ood",
    )
    table = interactions(ablations, n_resamples=200)
    assert set(table["set"]) == {"L0.H0+L1.H1", "L0.H0+L1.H1+L1.MLP"}
    margin = table[table["metric"] == "margin"].set_index(["subset", "set"])
    pair, triple = "L0.H0+L1.H1", "L0.H0+L1.H1+L1.MLP"
    assert margin.loc[("u", pair), "interaction"] == pytest.approx(4.5 / 2)
    assert margin.loc[("v", pair), "interaction"] == pytest.approx(1.5)
    assert margin.loc[("all", pair), "interaction"] == pytest.approx(2)
    assert margin.loc[("all", pair), "joint_drop"] == pytest.approx(9.5 / 3)
    assert margin.loc[("all", pair), "sum_of_single_drops"] == pytest.approx(3.5 / 3)
    assert margin.loc[("all", triple), "interaction"] == pytest.approx(7 / 3)
    assert margin.loc[("all", triple), "size"] == 3
    # Resampled means of 4, 0.5 and 1.5 stay between them, and one value has no spread.
    low, high = margin.loc[("all", pair), ["low", "high"]]
    assert 0.5 <= low < 2 < high <= 4
    assert margin.loc[("v", pair), ["low", "high"]].tolist() == [1.5, 1.5]


def test_the_interval_is_that_of_the_interaction_example_by_example() -> None:
    n = 4000
    rng = np.random.default_rng(2)
    common, a, b, extra = (rng.normal(size=n) * scale for scale in (10, 1, 1, 0.5))
    subsets = np.full(n, "s", dtype=object)

    def of_margin(margin: np.ndarray) -> Evaluation:
        return answers(margin > 0, subsets, margin)

    ablations = Ablations.of(
        of_margin(common),
        {
            of("0.0"): of_margin(common - a),
            of("0.1"): of_margin(common - b),
            of("0.0 0.1"): of_margin(common - a - b - extra - 0.01),
        },
        "x",
        "id",
    )
    table = interactions(ablations, n_resamples=4000, seed=1)
    row = table[(table["metric"] == "margin") & (table["subset"] == "all")].iloc[0]
    error = extra.std() / math.sqrt(n)
    mean = extra.mean() + 0.01
    assert row["interaction"] == pytest.approx(mean)
    assert row["low"] == pytest.approx(mean - 1.959964 * error, abs=0.15 * error)
    assert row["high"] == pytest.approx(mean + 1.959964 * error, abs=0.15 * error)


def test_components_without_effect_do_not_interact() -> None:
    subsets = np.array(["u", "v"] * 10, dtype=object)
    full = answers(np.arange(20) % 3 > 0, subsets)
    without = dict.fromkeys([of("0.0"), of("0.1"), of("0.0 0.1")], full)
    table = interactions(Ablations.of(full, without, "x", "id"))
    assert len(table) == 6
    columns = ["joint_drop", "sum_of_single_drops", "interaction", "low", "high"]
    assert (table[columns] == 0).all(axis=None)
    assert not table[["superadditive", "floor"]].any(axis=None)


@pytest.mark.parametrize("names", [[], ["0.0"], ["0.0 0.1"], ["0.0", "0.0 0.1"]])
def test_without_all_single_ablations_there_is_no_interaction(names: list[str]) -> None:
    full = answers(np.ones(3, dtype=bool), np.full(3, "s", dtype=object))
    table = interactions(Ablations.of(full, {of(n): full for n in names}, "x", "id"))
    assert table.empty
    assert list(table.columns) == list(COLUMNS)


def test_every_set_has_a_row_per_subset_and_metric(table_3: Ablations) -> None:
    pairs = [of(" ".join(p)) for p in itertools.combinations(("2.5", "3.7", "4.0"), 2)]
    more = Ablations.of(table_3.full, dict.fromkeys(pairs, table_3.full), "table 3", "ood")
    table = interactions(table_3.with_more(more), n_resamples=2)
    assert len(table) == 4 * 6 * 2
    assert table.groupby(["set", "metric"]).size().tolist() == [6] * 8
