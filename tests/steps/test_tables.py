"""Tables of the main job, from answers written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechcore.components import Mask, ModelShape
from mechcore.evaluation.evaluate import Evaluation
from mechcore.pruning import Subnetwork, random_subnetworks
from mechcore.steps.tables import answer_tables, core_tables
from mechcore.subnetworks.core import ACCURACY_SPREAD


def test_a_moved_threshold_is_no_spread_on_both_labels() -> None:
    # 60 examples of each label; the log-odds of the second are -3 and -1 for the first label, 1 and
    # 3 for the second. Two masks add 2 or -2 to all, so that half of a label is answered wrongly;
    # the last makes half of the first label's 3, which no threshold makes good.
    label, odds = np.repeat([0, 1], 60), np.tile([-3.0, -1, 1, 3], 30)
    odds = np.sort(odds)

    def evaluation(values: np.ndarray) -> Evaluation:
        logits = torch.tensor(np.stack([np.zeros(120), values], axis=1))
        return Evaluation(logits, torch.eye(2, dtype=torch.bool)[label], subsets, "")

    subsets = np.where(label, "v", "u").astype(object)
    full, masked = evaluation(odds), [evaluation(odds + 2), evaluation(odds - 2)]
    masked.append(evaluation(np.where(odds == -1, 3, odds)))
    mask = Mask.full(ModelShape(1, 4)).without("0.0")
    found = [
        Subnetwork(mask, t, seed, torch.zeros(1, 5)) for t, seed in ((0.2, 1), (0.2, 2), (0.4, 3))
    ]
    answers = dict.fromkeys(("id", "ood"), masked)
    tables = answer_tables(dict.fromkeys(answers, full), found, answers, {"id": "a", "ood": "b"})
    accuracy = tables["accuracy"].query("split == 'ood'").set_index("subset")
    assert accuracy.loc["u", "accuracy"].tolist() == [1, 0.5, 1, 0.5]
    assert accuracy.loc["all", "balanced_accuracy"].tolist() == pytest.approx([1, 0.75, 0.75, 0.75])
    assert accuracy.loc["all", "information"].tolist() == pytest.approx([1, 1, 1, 0.75])
    assert accuracy.loc["u", ["balanced_accuracy", "information"]].isna().all(axis=None)
    spread = tables["accuracy_spread"].query("split == 'ood' and target_sparsity == 0.2")
    spread = spread.set_index("subset")[[*ACCURACY_SPREAD.names[-3:]]]
    assert spread.loc["u"].iloc[0] == 0.5
    assert spread.loc["all"].tolist() == pytest.approx([0, 0, 0])
    assert spread.loc["v"].isna().tolist() == [False, True, True]


def test_a_core_of_one_ranking_is_no_evidence() -> None:
    shape = ModelShape(4, 6)
    found = random_subnetworks(shape, sparsity=[0.4, 0.6], seeds=3)
    tables = core_tables(found)
    summary = tables["core_summary"].iloc[0]
    n_heads = sum(c.is_head for c in found[1].mask.kept)
    assert summary["core_size"] == summary["expected_by_chance"] == n_heads
    assert summary["p_value"] == summary["p_uniform"] == 1
    assert summary["spearman_rho"] > 0
    assert np.isnan(summary["spearman_p"])
    assert tables["head_overlap"]["p_value"].isna().all()
    # Seeds of their own are found apart, at one sparsity or at two.
    found = [
        *random_subnetworks(shape, sparsity=0.4, seeds=3),
        *random_subnetworks(shape, sparsity=0.6, seeds=4),
    ]
    summary = core_tables(found)["core_summary"].iloc[0]
    assert summary["expected_by_chance"] < n_heads
    assert summary["spearman_p"] > 0


@pytest.mark.parametrize(("n", "rate"), [(1, 0.05), (3, 0.36840), (12, 0.77908)])
def test_what_seeds_say_of_further_seeds(n: int, rate: float) -> None:
    # Of seeds that keep a head at a rate r, all n do with r ** n, which is 0.05 at the bound.
    found = random_subnetworks(ModelShape(2, 4), sparsity=[0.0, 0.1], seeds=range(n))
    core = core_tables(found)["core"]
    assert len(core)
    assert core["rate_low"].tolist() == pytest.approx([rate] * len(core), abs=1e-5)
    assert rate**n == pytest.approx(0.05, abs=1e-4)
