"""Responses against scipy, sklearn and residuals; the verdict on cores by hand."""

import re
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.linear_model import Ridge

from mechcore.ablation import Ablations, ComponentSet
from mechcore.ablation.effects.responses import (
    COMPONENT,
    CORE,
    RESPONSES,
    _order,
    response_rows,
    strongest,
    verdict,
    with_adjusted_p,
)
from mechcore.evaluation.evaluate import Evaluation
from mechcore.evaluation.p_values import selective_p
from mechcore.evaluation.recalibration import folds_of
from mechcore.wording import ALL, FULL

N = 90
LABELS = np.array(["yes", "no", "maybe"] * 30)
LABELS[[5, *range(2, 45, 3)]] = "no"  # 14 are left of maybe, too few


def made_up(seed: int = 0, split: str = "id") -> tuple[Ablations, pd.DataFrame, dict[str, Any]]:
    """Changes that follow a feature, the margin, nothing and two features, and the features."""
    rng = np.random.default_rng(seed)
    features = pd.DataFrame(rng.normal(size=(N, 2)), columns=["a", "b"])
    features["only yes"] = np.where(LABELS == "yes", rng.integers(0, 2, N), 1.0)
    margin = features["b"].to_numpy() + rng.normal(size=N)
    changes = {
        "L0.H0": -features["a"] + 0.3 * rng.normal(size=N),
        "L0.H1": -0.5 * margin + rng.normal(size=N),
        "L0.MLP": 0 * margin,
        "L0.H0+L1.H1": features["a"] + features["b"] + 0.3 * rng.normal(size=N),
    }
    correct = torch.tensor([[label == name for name in ("yes", "no", "maybe")] for label in LABELS])

    def evaluation(margin: Any) -> Evaluation:
        half = torch.tensor(np.asarray(margin, dtype=float))[:, None] + np.log(2)
        logits = torch.where(correct, half, torch.tensor(0.0, dtype=torch.float64))
        return Evaluation(logits, correct, np.full(N, "all", dtype=object), "")

    without = {ComponentSet.of(n.split("+")): evaluation(margin + c) for n, c in changes.items()}
    ablations = Ablations.of(evaluation(margin), without, "made up", split)
    return ablations, features, {FULL: margin, **changes}


def table_of(*splits: str) -> pd.DataFrame:
    rows: list[Any] = []
    for seed, split in enumerate(splits):
        ablations, features, _ = made_up(seed, split)
        kinds = {s: CORE if len(s) > 1 else COMPONENT for s in ablations.sets}
        rows += response_rows(ablations, kinds, features, LABELS.tolist(), n_resamples=50)
    return with_adjusted_p(rows)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return table_of("id")


def test_correlations_and_slopes_are_those_of_every_label(table: pd.DataFrame) -> None:
    RESPONSES.check(table)
    _, features, changes = made_up()
    of_labels = table[table["label"] != ALL].set_index(["set", "label", "feature"])
    assert {*of_labels.index.get_level_values("label")} == {"yes", "no"}
    assert ("L0.H0", "no", "only yes") not in of_labels.index
    assert {*of_labels["classes"]} == {"0", "1"}
    for label, name, feature in (("yes", "L0.H0", "a"), ("no", "L0.H1", "b"), ("no", FULL, "b")):
        rows, row = label == LABELS, of_labels.loc[name, label, feature]
        x, y, z = (
            stats.rankdata(v[rows]) for v in (features[feature], changes[name], changes[FULL])
        )
        assert row["n"] == rows.sum()
        assert row["rho"] == pytest.approx(np.corrcoef(x, y)[0, 1])
        assert row["rho_low"] < row["rho"] < row["rho_high"]
        plain = features[feature][rows]
        slope = np.polyfit(plain, changes[name][rows], 1)[0] * plain.std(ddof=0)
        assert row["slope"] == pytest.approx(slope, abs=1e-5)
        if name == FULL:
            assert np.isnan(row["partial"])
            continue
        left = [part - np.polyval(np.polyfit(z, part, 1), z) for part in (x, y)]
        assert row["partial"] == pytest.approx(np.corrcoef(*left)[0, 1])
    assert of_labels.loc["L0.MLP", ["rho", "partial", "p", "p_adjusted"]].isna().all(axis=None)


def test_shares_are_those_of_ridge_regressions_of_other_folds(table: pd.DataFrame) -> None:
    _, features, changes = made_up()
    rows = np.flatnonzero(LABELS != "maybe")
    number = pd.factorize(LABELS[rows])[0]
    fold, x = folds_of(number, 0), features.iloc[rows].reset_index(drop=True)
    grouped = x.groupby(number)
    x = ((x - grouped.transform("mean")) / grouped.transform("std", ddof=0)).fillna(0)

    def share(name: str, *chosen: str) -> float:
        y, left, before = changes[name][rows], np.zeros(len(rows)), np.zeros(len(rows))
        y = np.asarray(y)
        for label, k in {*zip(number, fold, strict=True)}:
            train, test = (number == label) & (fold != k), (number == label) & (fold == k)
            fit = Ridge(1.0).fit(x.loc[train, [*chosen]], y[train])
            left[test] = y[test] - fit.predict(x.loc[test, [*chosen]])
            before[test] = y[test] - y[train].mean()
        return float(1 - (left**2).sum() / (before**2).sum())

    whole = table[table["label"] == ALL].set_index(["set", "feature"])
    both = "L0.H0+L1.H1"
    for name in (FULL, "L0.H0", both):
        for feature in features:
            row = whole.loc[name, feature]
            assert row["share"] == pytest.approx(share(name, feature), abs=1e-5)
        pairs = {" and ".join(two): share(name, *two) for two in combinations(features, 2)}
        best = max(pairs, key=lambda two: pairs[two])
        assert whole.loc[name, best]["share"] == pytest.approx(pairs[best], abs=1e-5)
        assert whole.loc[name, ALL]["share"] == pytest.approx(share(name, *features), abs=1e-5)
    assert whole.loc[both, "a and b"]["share_low"] > 0.5
    assert whole.loc[both, ALL]["p"] == 0.01  # the largest of 1 + 99
    assert np.isnan(whole.loc["L0.MLP", ALL]["share"])
    assert np.isnan(whole.loc["L0.MLP", ALL]["p"])


def test_a_component_that_follows_the_margin_alone_does_not_respond() -> None:
    table = table_of("id", "ood")
    assert [*strongest(table).groupby("set")["feature"].unique().map(list).items()] == [
        ("L0.H0", ["a"]),
        ("L0.H0+L1.H1", ["a"]),
        (FULL, ["b"]),
    ]
    # Corrected within components over both splits, and over components.
    of = table[(table["kind"] == COMPONENT) & (table["label"] != ALL)]
    wide = of.pivot(index="set", columns=["split", "label", "feature"])
    expected = selective_p(wide["p"].to_numpy())
    np.testing.assert_allclose(wide["p_adjusted"].to_numpy(), expected)


def test_orders_keep_labels_and_clusters_together() -> None:
    number, cluster = np.arange(40) % 2, np.arange(40) // 4
    order = _order(cluster, number, np.random.default_rng(0))
    assert sorted(order) == [*range(40)]
    np.testing.assert_array_equal(number[order], number)
    moved = {(c, cluster[order][cluster == c][0]) for c in range(10)}
    assert all((cluster[order][cluster == a] == b).all() for a, b in moved)
    assert any(a != b for a, b in moved)
    assert not np.array_equal(_order(None, number, np.random.default_rng(0)), np.arange(40))


def test_few_examples_give_no_rows() -> None:
    ablations, features, _ = made_up()
    few = np.arange(20)
    rows = response_rows(ablations.part(few), {}, features.iloc[few], LABELS[few].tolist())
    RESPONSES.check(empty := with_adjusted_p([*rows]))
    assert empty.empty


def core(share: Any, *responses: tuple[str, str, str, float], p: float = 0.01) -> pd.DataFrame:
    """A table of a core: ends of shares by split; split, classes, feature and rho of responses."""
    rows: list[dict[str, Any]] = [
        {"split": split, "feature": ALL, "share_low": low, "share_high": high, "p": p}
        for split, (low, high) in share.items()
    ]
    rows += [
        {"split": split, "classes": classes, "feature": feature, "rho": rho, "p_adjusted": 0.04}
        for split, classes, feature, rho in responses
    ]
    return pd.DataFrame(rows, columns=RESPONSES.names).assign(kind=CORE)


MORE, OPEN, FEW = (0.11, 0.3), (0.09, 0.3), (0.01, 0.09)
INSIDE, OUTSIDE = ("id", "1", "overlap", 0.4), ("ood", "1 2", "overlap", 0.3)
OTHER, AGAINST = ("ood", "0", "overlap", 0.3), ("ood", "1 2", "overlap", -0.3)


@pytest.mark.parametrize(
    ("table", "expected", "why"),
    [
        (core({"id": MORE, "ood": MORE}, INSIDE, OUTSIDE), "supported", "alike are overlap"),
        (core({"id": MORE, "ood": FEW}, INSIDE, OUTSIDE), "not supported", "10% .* out of domain"),
        (
            core({"id": FEW, "ood": OPEN}),
            "not supported",
            "less than 10% of the variance in domain",
        ),
        (core({"id": MORE, "ood": OPEN}, INSIDE, AGAINST), "not supported", "changes its sign"),
        (core({"id": MORE, "ood": OPEN}, INSIDE, OUTSIDE), "inconclusive", "not shown .* out of"),
        (core({"id": MORE, "ood": MORE}, INSIDE, OUTSIDE, p=0.06), "inconclusive", "in domain"),
        (core({"id": MORE, "ood": MORE}, INSIDE, OTHER), "inconclusive", "no response"),
        (core({"id": MORE}, INSIDE), "inconclusive", "not shown .* out of domain"),
    ],
)
def test_verdicts(table: pd.DataFrame, expected: str, why: str) -> None:

    word, reason = verdict(table)
    assert word == expected
    assert re.search(why, reason)
