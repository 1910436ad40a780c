"""What is wrong out of domain: by hand, and on planted models that fail for a known reason."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from ablation.few import of_margins

from mechcore.ablation import Ablations, ComponentSet, ablate, information_table, sets
from mechcore.ablation.effects.failure import (
    FAILURE,
    FAILURE_SETS,
    Explanation,
    explanation,
    failure_table,
    gap_of,
    hurting,
    label_names,
    net_table,
    over_all,
)
from mechcore.bench.failing import failing_data, failing_model
from mechcore.evaluation.evaluate import Evaluation, evaluate
from mechcore.masking.means import MeanActivations

NAMES = {"id": "inside", "ood": "outside"}
FEW: dict[str, Any] = {"n_resamples": 20}


LABEL = np.repeat([0, 1], [100, 300])
SUBSET = np.where(np.arange(400) % 2, "odd", "even")
LABELS = ["no" if i == 0 else "yes" for i in LABEL]
INSIDE = of_margins(np.where(LABEL == 1, 1.0, -1.0), LABEL, SUBSET)
OUTSIDE = of_margins(np.where(LABEL == 1, 3.0, 1.0), LABEL, SUBSET)
"""Always "yes", though a threshold of 2 would separate all."""


def table_of(outside: Evaluation, labels: list[str] = LABELS) -> pd.DataFrame:
    full, by_split = {"id": INSIDE, "ood": outside}, {"id": LABELS, "ood": labels}
    table = failure_table(full, by_split, NAMES, **FEW)
    FAILURE.check(table)
    return table


def test_a_moved_threshold_by_hand() -> None:
    table = table_of(OUTSIDE).set_index(["split", "subset", "label"])
    whole = table.loc[("ood", "all", "all")]
    assert (whole["accuracy"], whole["balanced_accuracy"]) == pytest.approx((0.75, 0.5))
    figures = whole[["recalibrated", "threshold", "ceiling", "auc", "guessing"]].tolist()
    assert figures == pytest.approx([1, 0.5, 1, 1, 0.5])
    assert table.loc[("ood", "all", "no"), ["accuracy", "wrong"]].tolist() == [0, 1]
    assert table.loc[("ood", "even", "no"), "wrong"] == 0.5
    assert np.isnan(table.loc[("ood", "even", "no"), "recalibrated"])
    gap = gap_of(table.reset_index())
    assert gap[:3] == pytest.approx((1, 0.5, 0.5))
    assert 0.4 < gap.low < 0.5 < gap.high < 0.6
    gap = gap_of(table_of(OUTSIDE.part(LABEL == 1), ["yes"] * 300))
    assert (gap.balanced, gap.size) == (False, 0)


def test_a_ceiling_is_what_no_cross_fitted_threshold_exceeds() -> None:
    rng = np.random.default_rng(0)
    for labels in (np.repeat([0, 1], 100), np.repeat([0, 1, 2], 70)):
        logits = torch.tensor(rng.normal(size=(len(labels), 3)) + np.eye(3)[labels])
        correct = torch.tensor(np.eye(3, dtype=bool)[labels])
        noisy = Evaluation(logits, correct, np.full(len(labels), "all", dtype=object), "")
        row = failure_table({"ood": noisy}, {"ood": [*map(str, labels)]}, NAMES, **FEW).iloc[0]
        assert row["recalibrated"] <= row["ceiling"] < 1
        assert row["threshold"] == pytest.approx(row["recalibrated"] - row["balanced_accuracy"])
        assert row["guessing"] == pytest.approx(1 / len(np.unique(labels)))


def test_fixed_and_broken_answers_by_hand() -> None:
    """Without A the 100 of "no" are right, and the 30 first of "yes" wrong."""
    a, b = (ComponentSet.of([name]) for name in ("L0.H0", "L0.H1"))
    margin = np.where(LABEL == 1, 3.0, -1.0)
    margin[100:130] = -1
    without = {a: of_margins(margin, LABEL, SUBSET), b: OUTSIDE}
    ablations = Ablations.of(OUTSIDE, without, "outside", "ood")
    table = net_table(ablations, LABELS, dict.fromkeys(ablations.sets, "single"), **FEW)
    FAILURE_SETS.check(table)
    rows = table.set_index(["set", "subset", "label"])
    whole = rows.loc[("L0.H0", "all", "all")]
    assert (whole["fixed"], whole["broken"], whole["n"]) == (100, 30, 400)
    assert whole["net"] == pytest.approx((1 - 0.1) / 2)
    assert whole[["confirmed", "halves_found"]].tolist() == [True, 2]
    assert whole["net_confirmed"] == pytest.approx(0.45, abs=0.05)
    # It says "no" 55 points more often with labels weighed alike.
    assert (whole["said"], whole["said_change"]) == ("no", pytest.approx(0.55))
    of_all = information_table(ablations, subsets=["all"], **FEW).set_index("set")
    assert whole["information"] == pytest.approx(of_all.loc["L0.H0", "information_change"])
    assert rows.loc[("L0.H0", "all", "no"), "net"] == 1
    assert rows.loc[("L0.H0", "even", "no"), "one_label"]
    idle = rows.loc["L0.H1"]
    assert (idle[["fixed", "broken", "net"]] == 0).all(axis=None)
    assert not idle["confirmed"].any()
    # Of 4 clusters no interval is known, and nothing is confirmed.
    a = ComponentSet.of(["L0.H0"])
    clustered = replace(OUTSIDE, clusters=np.arange(400) % 4)
    ablations = Ablations.of(clustered, {a: INSIDE}, "outside", "ood")
    table = net_table(ablations, LABELS, {a: "single"}, **FEW)
    assert table["net_low"].isna().all()
    assert not table["confirmed"].any()
    assert (
        label_names(OUTSIDE.correct_classes.numpy(), [*LABELS[:99], "not", *LABELS[100:]]) == LABELS
    )


def test_what_changes_at_random_is_not_confirmed() -> None:
    rng, label = np.random.default_rng(1), np.tile([0, 1], 150)
    margin = np.where(label == 1, 1.0, -1.0) * rng.choice([1, -1], 300)
    flipped = {
        ComponentSet.of([f"L0.H{i}"]): of_margins(
            np.where(rng.random(300) < 0.1, -1, 1) * margin, label, "all"
        )
        for i in range(40)
    }
    ablations = Ablations.of(of_margins(margin, label, "all"), flipped, "outside", "ood")
    labels = ["no" if i == 0 else "yes" for i in label]
    table = net_table(ablations, labels, dict.fromkeys(flipped, "single"), **FEW)
    assert not table["confirmed"].any()


def nets(**net: float) -> pd.DataFrame:
    table = pd.DataFrame(net.items(), columns=["set", "net"])
    table[["kind", "subset", "label"]] = ["single", "all", "all"]
    return table.assign(confirmed=True, information=np.nan)


def test_what_gives_back_more_explains_the_failure() -> None:
    why = explanation(table_of(OUTSIDE), nets(A=0.6, B=0.1))
    assert (why.kind, why.share, why.name) == ("components", 1, "A")
    why = explanation(table_of(OUTSIDE), nets(A=0.4))
    assert (why.kind, why.share, why.name) == ("threshold", 1, "")
    # What is not confirmed or only moves the threshold explains nothing.
    guessing = of_margins(np.where(np.arange(400) % 2, 1.0, -1.0), LABEL, SUBSET)
    table = table_of(guessing)
    assert explanation(table, nets(A=0.2)).kind == "components"
    assert explanation(table, nets(A=0.1)).kind == "unexplained"
    assert explanation(table, nets(A=0.2).assign(confirmed=False)).kind == "unexplained"
    assert explanation(table, nets(A=0.2).assign(information=-0.01)).kind == "unexplained"
    assert explanation(table_of(INSIDE), nets(A=0.2)).kind == "none"  # where nothing fails


def explained(name: str, folder: Path) -> tuple[Explanation, pd.DataFrame, pd.DataFrame]:
    """What is said of a planted model, and the tables of its failure and of its sets."""
    model = failing_model(name, folder / name)
    data = failing_data(name, {"train": 150, "id": 300, "ood": 300})
    means = MeanActivations.compute(model, data["train"])
    kinds = dict.fromkeys(sets.singles(model), "single")
    kinds[ComponentSet.of(["L0.H2", "L1.H1"])] = "pair"
    ablations = ablate(model, list(kinds), data["ood"], means, split="ood")
    full = {"id": evaluate(model, data["id"]), "ood": ablations.full}
    labels = {s: data[s].examples.frame["label"].tolist() for s in ("id", "ood")}
    failure = failure_table(full, labels, NAMES, **FEW)
    table = net_table(ablations, labels["ood"], kinds, **FEW)
    return explanation(failure, table), failure, table


def test_planted_failures_are_explained_by_what_is_planted(tmp_path: Path) -> None:
    why, _, table = explained("head", tmp_path)
    assert (why.kind, why.name) == ("components", "L0.H2")
    assert why.share == pytest.approx(1, abs=0.05)
    # The same of every kind, which has both labels.
    top = table[table["subset"] != "all"].groupby(["subset", "label"])["net"].idxmax()
    assert (table.loc[top, "set"] == "L0.H2").all()
    needed = over_all(table).sort_values("net").iloc[:1]
    assert not needed["confirmed"].any()  # nothing can be lost where nothing is right

    why, _, table = explained("backup", tmp_path)  # heads that stand in for each other
    assert (why.kind, why.name) == ("components", "L0.H2+L1.H1")
    assert hurting(table[table["kind"] == "single"]).empty

    why, _, table = explained("threshold", tmp_path)
    assert (why.kind, why.share) == ("threshold", 1)
    assert hurting(table, beyond_threshold=False)["set"].iloc[0] == "L0.H2"

    why, failure, _ = explained("absent", tmp_path)
    assert why.kind == "unexplained"
    inside, outside = (failure[failure["split"] == split].iloc[0] for split in ("id", "ood"))
    assert inside["auc"] > 0.9 > 0.6 > outside["auc"]
