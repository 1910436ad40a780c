"""Changes and their intervals against hand-made answers, edited weights and the normal law."""

import numpy as np
import pytest
from ablation.few import of_margins

from mechcore.ablation import Ablations, ComponentSet, ablation_table
from mechcore.evaluation.intervals import mean_intervals

COLUMNS = [
    *("set", "kind", "size", "data", "split", "subset", "n"),
    *("accuracy", "accuracy_change", "accuracy_change_low", "accuracy_change_high"),
    *("margin", "margin_change", "margin_change_low", "margin_change_high", "kl"),
]
A, B = (ComponentSet.of([name]) for name in ("L0.H1", "L1.H0"))


def test_answers_join() -> None:
    joint = ComponentSet.of([*A.components, *B.components])
    more = Ablations.of(BY_HAND.full, {joint: of_margins(FULL, subsets=SUBSETS)}, "hans", "ood")
    both = BY_HAND.with_more(more)
    assert list(both.without) == [A, B, joint]
    assert list(BY_HAND.without) == [A, B]
    assert both.full is BY_HAND.full


SUBSETS = ["u", "u", "v", "u", "v"]
FULL = [2.0, 1.0, -1.0, 0.5, 3.0]
WITHOUT_A = [1.0, -1.0, 1.0, -0.5, 3.0]
WITHOUT_B = [2.0, 1.0, -2.0, 1.5, -1.0]
BY_HAND = Ablations.of(
    of_margins(FULL, subsets=SUBSETS),
    {A: of_margins(WITHOUT_A, subsets=SUBSETS), B: of_margins(WITHOUT_B, subsets=SUBSETS)},
    "hans",
    "ood",
)


def test_changes_and_their_table_by_hand() -> None:
    # Correct: full 1 1 0 1 1, without A 1 0 1 0 1, without B 1 1 0 1 0.
    assert BY_HAND.changes(A, "accuracy").tolist() == [0, -1, 1, -1, 0]
    assert BY_HAND.changes(B, "accuracy").tolist() == [0, 0, 0, 0, -1]
    assert BY_HAND.changes(A, "margin").tolist() == [-1, -2, 2, -1, 0]
    assert BY_HAND.changes(B, "margin").tolist() == [0, 0, -1, 1, -4]
    table = ablation_table(BY_HAND, {A: "single", B: "joint"}, n_resamples=20)
    assert list(table.columns) == COLUMNS
    assert table["subset"].tolist() == ["u", "u", "v", "v", "all", "all"]
    assert table["set"].tolist() == ["L0.H1", "L1.H0"] * 3
    assert table["kind"].tolist() == ["single", "joint"] * 3
    assert table["n"].tolist() == [3, 3, 2, 2, 5, 5]
    assert (table[["data", "split", "size"]] == ["hans", "ood", 1]).all(axis=None)
    assert table["accuracy"].tolist() == pytest.approx([1 / 3, 1, 1, 0, 3 / 5, 3 / 5])
    changes = [-2 / 3, 0, 1 / 2, -1 / 2, -1 / 5, -1 / 5]
    assert table["accuracy_change"].tolist() == pytest.approx(changes)
    assert table["margin"].tolist() == pytest.approx([-0.5 / 3, 1.5, 2, -1.5, 0.7, 0.3])
    assert table["margin_change"].tolist() == pytest.approx([-4 / 3, 1 / 3, 1, -2.5, -0.4, -0.8])
    for metric in ("accuracy", "margin"):
        change, low, high = (table[f"{metric}_change{end}"] for end in ("", "_low", "_high"))
        assert (low <= change + 1e-12).all()
        assert (change <= high + 1e-12).all()


def test_the_average_of_other_heads_is_the_mean_of_their_rows() -> None:
    both = ablation_table(BY_HAND, {A: "single", B: "single"}, n_resamples=20)
    table = ablation_table(BY_HAND, {A: "single"}, average=("others", [A, B]), n_resamples=20)
    rows = table[table["set"] == "others"]
    assert len(rows) == 3
    assert (rows[["kind", "size"]] == ["non-core", 1]).all(axis=None)
    for column in ("accuracy", "accuracy_change", "margin", "margin_change"):
        means = both.groupby("subset", sort=False)[column].mean()
        assert rows.set_index("subset")[column].to_dict() == pytest.approx(means.to_dict())
    # An interval of the average, not of single rows: u has the changes 0, -1/2 and -1/2.
    u = rows[rows["subset"] == "u"].iloc[0]
    [changes] = mean_intervals(np.array([[0, -0.5, -0.5]]), answers=True)
    ends = {"accuracy_change_low": changes.low, "accuracy_change_high": changes.high}
    assert u[[*ends]].to_dict() == pytest.approx(ends)
    assert ablation_table(BY_HAND, {A: "single"}, average=("others", []))["set"].nunique() == 1
    nothing = ablation_table(BY_HAND, {}, average=("others", []))
    assert nothing.empty
    assert list(nothing.columns) == COLUMNS


def test_identical_models_change_by_exactly_nothing() -> None:
    full = of_margins(np.random.default_rng(0).normal(size=50))
    table = ablation_table(Ablations.of(full, {A: full}, "x", "id"), {A: "single"})
    sure = ["accuracy_change", *(c for c in COLUMNS if c.startswith("margin_change"))]
    assert (table[sure] == 0.0).all(axis=None)
    # That none of 50 answers changes leaves it open whether one in 30 would.
    assert (table["accuracy_change_low"] == -table["accuracy_change_high"]).all()
    assert table["accuracy_change_high"].between(0.03, 0.05).all()
