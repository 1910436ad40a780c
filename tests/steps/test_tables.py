"""Tables of the main job, from answers written out, and means over groups of subsets."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError, MechcoreWarning
from mechcore.evaluation.evaluate import Evaluation
from mechcore.main_study.config import Analyses, StudyConfig
from mechcore.pruning import Subnetwork, random_subnetworks
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.steps.inputs import groups_of
from mechcore.steps.sizes import GRID_TABLE, accuracies_by_checkpoint, size_tables
from mechcore.steps.tables import answer_tables, core_tables, group_table
from mechcore.study.run import prepare, run_study
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
    found = random_subnetworks(shape, target_sparsities=[0.4, 0.6], seeds=3)
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
        *random_subnetworks(shape, target_sparsities=0.4, seeds=3),
        *random_subnetworks(shape, target_sparsities=0.6, seeds=4),
    ]
    summary = core_tables(found)["core_summary"].iloc[0]
    assert summary["expected_by_chance"] < n_heads
    assert summary["spearman_p"] > 0


@pytest.mark.parametrize(("n", "rate"), [(1, 0.05), (3, 0.36840), (12, 0.77908)])
def test_what_seeds_say_of_further_seeds(n: int, rate: float) -> None:
    # Of seeds that keep a head at a rate r, all n do with r ** n, which is 0.05 at the bound.
    found = random_subnetworks(ModelShape(2, 4), target_sparsities=[0.0, 0.1], seeds=range(n))
    core = core_tables(found)["core"]
    assert len(core)
    assert core["rate_low"].tolist() == pytest.approx([rate] * len(core), abs=1e-5)
    assert rate**n == pytest.approx(0.05, abs=1e-4)


# -- groups ---------------------------------------------------------------------------------------

FULL = {("id", "all"): 0.9, ("ood", "a"): 0.2, ("ood", "b"): 0.6, ("ood", "c"): 1.0}
PRUNED = {("id", "all"): 0.8, ("ood", "a"): 0.0, ("ood", "b"): 0.5, ("ood", "c"): 0.7}


def accuracies() -> pd.DataFrame:
    """The full model and one subnetwork; the mean over all examples is none over subsets."""
    rows = [
        (name, sparsity, seed, split, subset, accuracy)
        for name, sparsity, seed, values in (("full", None, None, FULL), ("s", 0.5, 1, PRUNED))
        for (split, subset), accuracy in [*values.items(), (("ood", "all"), 0.33)]
    ]
    columns = ["subnetwork", "target_sparsity", "seed", "split", "subset", "accuracy"]
    return pd.DataFrame(rows, columns=columns).astype({"seed": "Int64"})


def test_each_subset_counts_the_same_and_is_named() -> None:
    table = group_table(accuracies(), {"hard": ("a", "b")}).set_index(["subnetwork", "group"])
    assert table["accuracy"].to_dict() == pytest.approx(
        {
            ("full", "ID"): 0.9,
            ("full", "OOD"): 0.6,
            ("full", "hard"): 0.4,
            ("s", "ID"): 0.8,
            ("s", "OOD"): 0.4,
            ("s", "hard"): 0.25,
        }
    )
    assert table.loc[("full", "OOD"), "subsets"] == "a; b; c"
    assert table["n_subsets"].tolist() == [1, 3, 2] * 2
    assert set(table["missing"]) == {""}


def test_a_mean_lacks_no_subset_in_silence() -> None:
    table = group_table(accuracies(), {"hard": ("a", "gone")}).set_index(["subnetwork", "group"])
    row = table.loc[("full", "hard")]
    assert math.isnan(row["accuracy"])
    assert (row["subsets"], row["missing"]) == ("a; gone", "gone")
    assert table.loc[("full", "OOD"), "accuracy"] == pytest.approx(0.6)


def test_a_task_says_what_is_out_of_domain() -> None:
    table = group_table(accuracies(), {"OOD": ("a",), "OOD-E": ("b", "c")}).set_index("group")
    full = table[table["subnetwork"] == "full"]["accuracy"]
    assert full.to_dict() == pytest.approx({"ID": 0.9, "OOD": 0.2, "OOD-E": 0.8})


def test_effective_sizes_are_of_the_same_groups() -> None:
    groups = {"OOD": ("a",), "OOD-E": ("b", "c")}
    full, grid, chosen = accuracies_by_checkpoint({10: accuracies()}, groups)
    assert chosen == {
        "ID": ["id:all"],
        "OOD": ["ood:a"],
        "OOD-E": ["ood:b", "ood:c"],
        "mixed": ["id:all", "ood:a"],
    }
    sizes = size_tables(full, grid, chosen, tolerance=0.19)["effective_size"].set_index("group")
    # Lost: 0.1 in domain, 0.2 on a, 0.2 on the mean of b and c, 0.15 on both together.
    assert sizes["faithful"].to_dict() == {
        "ID": True,
        "OOD": False,
        "OOD-E": False,
        "mixed": True,
    }
    assert sizes["full_accuracy"].to_dict() == pytest.approx(
        {"ID": 0.9, "OOD": 0.2, "OOD-E": 0.8, "mixed": 0.55}
    )


def test_effective_sizes_are_of_what_masks_keep() -> None:
    masks = pd.DataFrame({"subnetwork": ["s"], "target_sparsity": [0.5], "sparsity": [0.375]})
    full, grid, chosen = accuracies_by_checkpoint({10: accuracies()}, {}, {10: masks})
    GRID_TABLE.check(grid)
    sizes = size_tables(full, grid, chosen, tolerance=0.19)["effective_size"].set_index("group")
    assert sizes.loc["ID", ["effective_size", "target_sparsity"]].tolist() == [0.625, 0.5]


def test_effective_sizes_leave_out_a_group_without_examples_and_say_so() -> None:
    with pytest.warns(MechcoreWarning, match="group 'hard' is left out, .* no example of ood:gone"):
        _, _, chosen = accuracies_by_checkpoint({10: accuracies()}, {"hard": ("a", "gone")})
    assert list(chosen) == ["ID", "OOD", "mixed"]


YOURS = ModelConfig(source="model")


def test_groups_are_limited_to_the_subsets_that_are_kept(tmp_path: Path) -> None:
    groups = {"one": ("a", "b"), "two": ("c",)}
    data = DataConfig(groups=groups, ood_subsets=("b",))
    assert groups_of(YOURS, data) == {"one": ("b",)}
    assert groups_of(YOURS, DataConfig(groups=groups)) == groups
    task = tmp_path / "task.yaml"
    task.write_text("{train: x.csv, id: x.csv, ood: x.csv, groups: {two: [d], three: [e]}}")
    assert groups_of(YOURS, DataConfig(task=str(task), groups=groups)) == {
        "two": ("c",),
        "three": ("e",),
        "one": ("a", "b"),
    }


def test_the_embedded_world_has_its_halves_as_groups() -> None:
    halves = groups_of(ModelConfig(), DataConfig(groups={"one": ("prep",)}))
    assert list(halves) == ["heuristic fails", "heuristic holds", "one"]
    assert groups_of(ModelConfig(), DataConfig(ood_label="entailment")) == {}


def study(**data: Any) -> StudyConfig:
    return StudyConfig(data=DataConfig(max_train=8, max_id=8, **data), analyses=Analyses())


@pytest.mark.parametrize(
    ("subset", "message"),
    [
        ("embedif", r"did you mean 'embed_if'\? subsets are .*so_swap"),
        ("constituent", "no out-of-domain example is of subset 'constituent'; subsets are"),
    ],
)
def test_a_group_of_a_subset_that_is_not_there_is_refused(
    tmp_path: Path, subset: str, message: str
) -> None:
    config = study(max_ood=8, groups={"mine": ("so_swap", subset)})
    with pytest.raises(InputError, match=f"groups: mine: .*{message}"):
        run_study(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_group_with_the_name_of_a_subset_is_refused(tmp_path: Path) -> None:
    config = study(max_ood=8, groups={"prep": ("so_swap", "prep")})
    with pytest.raises(InputError, match="groups: 'prep' is the name of an out-of-domain subset"):
        run_study(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_group_may_lose_subsets_to_the_draw(tmp_path: Path) -> None:
    every = {"mine": ("so_swap", "prep", "embed_if", "embed_verb")}
    for data in ({"max_ood": 2}, {"max_ood": 8, "ood_subsets": ("prep",)}):
        assert prepare(study(groups=every, **data), tmp_path / "out").pending
