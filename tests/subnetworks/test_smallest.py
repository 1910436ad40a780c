"""The smallest subnetwork within a loss, on answers made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mechcore.components import Mask, ModelShape
from mechcore.evaluation.evaluate import Evaluation
from mechcore.subnetworks.smallest import (
    SMALLEST,
    explain_smallest,
    is_for_export,
    smallest_subnetworks,
)
from mechcore.wording import MINUS

SHAPE = ModelShape(2, 4)
N = 400
LABEL = np.arange(N) % 2


def answers(wrong: int, *, shift: float = 0.0, labels: np.ndarray = LABEL) -> Evaluation:
    """Margins of 1 for the true label, but -1 for the first so many; ``shift`` favours label 1."""
    margin = np.where(np.arange(N) < wrong, -1.0, 1.0) * (2 * labels - 1) + shift
    logits = torch.tensor(np.stack([0 * margin, margin], axis=1))
    correct = torch.tensor(np.eye(2, dtype=bool)[labels])
    return Evaluation(logits, correct, np.full(N, "all", dtype=object), "")


def without(n: int) -> Mask:
    return Mask.full(SHAPE).without([f"L{i // 4}.H{i % 4}" for i in range(n)])


MASKS = {"dense": without(1), "middle": without(3), "sparse": without(6)}


def smallest(
    wrong: dict[str, int], limit: float, ood: dict[str, int] | None = None
) -> pd.DataFrame:
    by_role = {"id": wrong, "ood": ood or wrong}
    masked = {split: {m: answers(n) for m, n in fails.items()} for split, fails in by_role.items()}
    fulls = {split: answers(20) for split in masked}
    table = smallest_subnetworks(MASKS, fulls, masked, limit, n_resamples=400)
    SMALLEST.check(table)
    return table.set_index("measure", drop=False)


def dense(full: dict[str, Evaluation], masked: Evaluation | None = None, **options: Any) -> Any:
    """The table of a single mask, whose answers are those of the full model unless given."""
    of_mask = {split: {"dense": masked or evaluation} for split, evaluation in full.items()}
    options = {"limit": 0.01} | options
    table = smallest_subnetworks({"dense": MASKS["dense"]}, full, of_mask, **options)
    SMALLEST.check(table)
    return table


def test_it_is_the_sparsest_of_those_within_the_limit_in_both_domains() -> None:
    # 24 of 400 wrong in place of 20 is a loss of a point, with a standard error of half a point.
    inside = {"dense": 20, "middle": 24, "sparse": 24}
    row = smallest(inside, 0.05, inside | {"sparse": 60}).loc["accuracy"]
    assert row["within"]
    assert (row["subnetwork"], row["mask"]) == ("middle", "masks/middle.safetensors")
    assert row["sparsity"] == MASKS["middle"].sparsity
    assert (row["kept"], row["n_masks"]) == (7, 3)
    assert row["id_change"] == row["ood_change"] == pytest.approx(-0.01)
    assert -0.025 < row["id_change_low"] < -0.01 < row["id_change_high"]
    assert row["reason"] == ""
    ends = [f"{MINUS}{-100 * row[f'{split}_change_low']:.1f}" for split in ("id", "ood")]
    assert explain_smallest(row.to_dict()) == (
        "smallest subnetwork within 5 points of accuracy: middle, which keeps 7 components, "
        f"a change of {MINUS}1.0 points in domain (at worst {ends[0]}) and {MINUS}1.0 points out "
        f"of domain (at worst {ends[1]}); where other examples choose, {MINUS}1.0 in domain and "
        f"{MINUS}1.0 out of domain"
    )
    assert "which keeps 1 component, a change of" in explain_smallest({**row, "kept": 1})


def test_what_a_choice_loses_is_measured_on_examples_that_did_not_choose_it() -> None:
    # The sparse mask is wrong on a fifth of one half of 20 clusters, by chance as it were, and on
    # none of the other. That half, which loses nothing with it, chooses it, and the other half
    # loses 20 points; this one chooses the dense mask, which loses nothing anywhere.
    clusters = np.arange(N) // 20
    second = np.isin(clusters, np.random.default_rng(0).permutation(20)[:10])
    wrong = second & (np.cumsum(second) <= 40)
    right = replace(answers(0), clusters=clusters)
    sparse = right.part(np.arange(N))
    sparse.logits[torch.tensor(wrong)] *= -1
    masked = {split: {"dense": right, "sparse": sparse} for split in ("id", "ood")}
    masks, full = {n: MASKS[n] for n in ("dense", "sparse")}, dict.fromkeys(masked, right)
    table = smallest_subnetworks(masks, full, masked, 0.05, n_resamples=50)
    SMALLEST.check(table)
    assert table["subnetwork"].tolist() == ["dense"] * 2
    assert table.loc[0, ["id_change", "ood_change"]].tolist() == [0, 0]
    assert table.loc[0, ["id_change_held_out", "ood_change_held_out"]].tolist() == pytest.approx(
        [-0.1] * 2
    )
    few = np.concatenate([np.arange(90), np.arange(N - 90, N)])  # of each label 45 in a half
    few_dense, few_sparse = (replace(whole, clusters=None).part(few) for whole in (right, sparse))
    masked = {split: {"dense": few_dense, "sparse": few_sparse} for split in full}
    full = dict.fromkeys(masked, few_dense)
    table = smallest_subnetworks(masks, full, masked, 0.05, n_resamples=50)
    assert table["id_change_held_out"].isna().tolist() == [False, True]


def test_where_none_is_within_the_limit_the_closest_is_named() -> None:
    row = smallest({"dense": 60, "middle": 50, "sparse": 70}, 0.01).loc["accuracy"]
    assert not row["within"]
    assert row["subnetwork"] == "middle"
    assert row["ood_change"] == pytest.approx(-30 / 400)
    assert row["reason"] == (
        "middle comes closest of 3 masks, and loses up to "
        f"{-100 * min(row['id_change_low'], row['ood_change_low']):.1f} points"
    )
    assert explain_smallest(row.to_dict()) == (
        f"smallest subnetwork within 1 point of accuracy: none; {row['reason']}"
    )


def test_a_loss_just_above_the_limit_is_not_shown_as_the_limit() -> None:
    wrong = {"dense": 22, "middle": 50, "sparse": 70}
    low = smallest(dict.fromkeys(wrong, 22), 0.5).loc["accuracy", "id_change_low"]
    limit = -float(low) - 1e-5  # 1.3 points, were both rounded
    row = smallest(wrong, limit).loc["accuracy"]
    assert not row["within"]
    assert float(row["reason"].split()[-2]) > 100 * limit


def test_a_moved_threshold_costs_accuracy_and_no_information() -> None:
    full = {split: answers(20) for split in ("id", "ood")}
    table = dense(full, answers(20, shift=3.0))
    assert table["within"].tolist() == [False, True]
    assert table["id_change"].tolist() == [pytest.approx(-0.45), pytest.approx(0.0)]
    for split in ("id", "ood"):
        assert table[f"{split}_accuracy_change"].tolist() == pytest.approx([-0.45, -0.45])
    information = table.to_dict("records")[1]
    assert explain_smallest(information).endswith(
        f"; of accuracy, with its bias as it is, {MINUS}45.0 points in domain and {MINUS}45.0 "
        "points out of domain"
    )
    assert not is_for_export(information)
    assert not is_for_export({**information, "id_accuracy_change": 0.0})
    changes = {"id_accuracy_change": -0.01, "ood_accuracy_change": 0.3}
    assert is_for_export({**information, **changes})
    assert not is_for_export({**information, **changes, "within": False})


def test_a_rare_label_counts_as_much_as_the_other() -> None:
    """Nothing changes, but of the rare label there are 50 examples only.

    As if two examples more had changed by half an answer each: one of 50 of a label is 1 / 100 of
    the balanced accuracy. So the error of n = 2050 examples is n / 100 / (n + 2) = 0.00999, and the
    ends 1.961 times that.
    """
    label = np.repeat([0, 1], [50, 2000])
    logits = torch.tensor(np.eye(2)[label])
    correct = torch.tensor(np.eye(2, dtype=bool)[label])
    same = Evaluation(logits, correct, np.full(len(label), "all", dtype=object), "")
    accuracy, information = dense({"id": same, "ood": same}).to_dict("records")
    assert accuracy["within"]
    assert accuracy["id_change_low"] > -0.001
    assert not information["within"]
    assert information["id_change"] == 0
    assert -information["id_change_low"] == information["id_change_high"]
    assert information["id_change_high"] == pytest.approx(1.9611 * 0.0099903, rel=1e-3)


def test_one_example_has_no_interval_to_be_within() -> None:
    full = {"id": answers(20), "ood": answers(20).part(np.array([N - 1]))}
    table = dense(full, limit=0.1)
    assert table["within"].tolist() == [False, False]
    assert set(table["reason"]) == {"out of domain: one example, which has no interval"}


def test_one_label_has_accuracy_alone() -> None:
    full = {"id": answers(20), "ood": answers(20, labels=np.ones(N, dtype=int))}
    table = dense(full)
    assert table["within"].tolist() == [True, False]
    reason = "out of domain: one label only: lost information "
    reason += "cannot be distinguished from a shifted threshold"
    assert table["reason"].tolist() == ["", reason]
    assert table["subnetwork"].tolist() == ["dense", ""]
