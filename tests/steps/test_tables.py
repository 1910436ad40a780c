"""Tables of the main job from answers written out, means over groups, series of checkpoints."""

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
from mechcore.files import write_csv
from mechcore.main_study.config import Analyses, StudyConfig
from mechcore.pruning import Subnetwork, random_subnetworks
from mechcore.pruning.settings import MAX_SEED
from mechcore.report.kinds import schemas_of
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.steps.inputs import groups_of
from mechcore.steps.sizes import (
    GRID_TABLE,
    accuracies_by_checkpoint,
    checkpoint_series,
    size_tables,
)
from mechcore.steps.tables import answer_tables, core_tables, group_table
from mechcore.study.run import prepare
from mechcore.subnetworks.core import ACCURACY_SPREAD, accuracy_spread
from mechcore.training.run_folder import write_records


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
    pruned = [
        Subnetwork(mask, t, seed, torch.zeros(1, 5)) for t, seed in ((0.2, 1), (0.2, 2), (0.4, 3))
    ]
    answers = dict.fromkeys(("id", "ood"), masked)
    tables = answer_tables(dict.fromkeys(answers, full), pruned, answers, {"id": "a", "ood": "b"})
    accuracy = tables["accuracy"].query("split == 'ood'").set_index("subset")
    assert accuracy.loc["u", "accuracy"].tolist() == [1, 0.5, 1, 0.5]
    assert accuracy.loc["all", "balanced_accuracy"].tolist() == pytest.approx([1, 0.75, 0.75, 0.75])
    assert accuracy.loc["all", "information"].tolist() == pytest.approx([1, 1, 1, 0.75])
    assert accuracy.loc["u", ["balanced_accuracy", "information"]].isna().all(axis=None)
    spread = accuracy_spread(tables["accuracy"]).query("split == 'ood' and target_sparsity == 0.2")
    spread = spread.set_index("subset")[[*ACCURACY_SPREAD.names[-3:]]]
    assert spread.loc["u"].iloc[0] == 0.5
    assert spread.loc["all"].tolist() == pytest.approx([0, 0, 0])
    assert spread.loc["v"].isna().tolist() == [False, True, True]


def test_a_core_of_one_ranking_is_no_evidence() -> None:
    shape = ModelShape(4, 6)
    draws = random_subnetworks(shape, target_sparsities=[0.4, 0.6], seeds=3)
    tables = core_tables(draws)
    summary = tables["core"].iloc[0]
    n_heads = sum(c.is_head for c in draws[1].mask.kept)
    assert summary["core_size"] == summary["expected_by_chance"] == n_heads
    assert summary["p_value"] == summary["p_uniform"] == 1
    assert summary["spearman_rho"] > 0
    assert np.isnan(summary["spearman_p"])
    assert tables["head_overlap"]["p_value"].isna().all()
    # Seeds of their own are found apart, at one sparsity or at two.
    apart = random_subnetworks(shape, target_sparsities=0.6, seeds=4)
    summary = core_tables([draws[0], *apart])["core"].iloc[0]
    assert summary["expected_by_chance"] < n_heads
    assert summary["spearman_p"] > 0


@pytest.mark.parametrize(("n", "rate"), [(1, 0.05), (3, 0.36840), (12, 0.77908)])
def test_what_seeds_say_of_further_seeds(n: int, rate: float) -> None:
    # Of seeds that keep a head at a rate r, all n do with r ** n, which is 0.05 at the bound.
    draws = random_subnetworks(ModelShape(2, 4), target_sparsities=[0.0, 0.1], seeds=range(n))
    core = core_tables(draws)["core"]
    assert core["core_size"].item() > 0
    assert core["rate_low"].item() == pytest.approx(rate, abs=1e-5)
    assert rate**n == pytest.approx(0.05, abs=1e-4)


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
    return pd.DataFrame(rows, columns=columns).assign(data="d", n=9).astype({"seed": "Int64"})


def test_each_subset_counts_the_same_and_is_named() -> None:
    table = group_table(accuracies(), {"hard": ("a", "b")}).set_index(["subnetwork", "subset"])
    expected = {
        "full": {"ID": 0.9, "OOD": 0.6, "hard": 0.4},
        "s": {"ID": 0.8, "OOD": 0.4, "hard": 0.25},
    }
    for name, values in expected.items():
        assert table.loc[name, "accuracy"].to_dict() == pytest.approx(values)
    assert table.loc[("full", "OOD"), "subsets"] == "a; b; c"
    assert table["n_subsets"].tolist() == [1, 3, 2] * 2
    assert set(table["missing"]) == {""}
    # A task says what is out of domain; a mean lacks no subset in silence.
    groups = {"OOD": ("a",), "OOD-E": ("b", "c"), "hard": ("a", "gone")}
    full = group_table(accuracies(), groups).set_index(["subnetwork", "subset"]).loc["full"]
    assert math.isnan(full.loc["hard", "accuracy"])
    assert full["accuracy"].drop("hard").to_dict() == pytest.approx(
        {"ID": 0.9, "OOD": 0.2, "OOD-E": 0.8}
    )
    assert full.loc["hard", ["subsets", "missing"]].tolist() == ["a; gone", "gone"]


def test_effective_sizes_are_of_the_same_groups() -> None:
    groups = {"OOD": ("a",), "OOD-E": ("b", "c")}
    masks = pd.DataFrame({"subnetwork": ["s"], "target_sparsity": [0.5], "sparsity": [0.375]})
    full, grid, chosen = accuracies_by_checkpoint({10: accuracies()}, groups, {10: masks})
    assert chosen == {
        "ID": ["id:all"],
        "OOD": ["ood:a"],
        "OOD-E": ["ood:b", "ood:c"],
        "mixed": ["id:all", "ood:a"],
    }
    GRID_TABLE.check(grid)
    sizes = size_tables(full, grid, chosen, tolerance=0.19)["effective_size"].set_index("group")
    # Lost: 0.1 in domain, 0.2 on a, 0.2 on the mean of b and c, 0.15 on both together.
    faithful = {"ID": True, "OOD": False, "OOD-E": False, "mixed": True}
    assert sizes["faithful"].to_dict() == faithful
    assert sizes["full_accuracy"].to_dict() == pytest.approx(
        {"ID": 0.9, "OOD": 0.2, "OOD-E": 0.8, "mixed": 0.55}
    )
    # They are of what masks keep.
    assert sizes.loc["ID", ["effective_size", "target_sparsity"]].tolist() == [0.625, 0.5]
    with pytest.warns(MechcoreWarning, match="group 'hard' is omitted .* no examples of ood:gone"):
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
    known = groups_of(YOURS, DataConfig(task=str(task), groups=groups))
    assert known == {"two": ("c",), "three": ("e",), "one": ("a", "b")}


def test_the_embedded_world_has_its_halves_as_groups() -> None:
    halves = groups_of(ModelConfig(), DataConfig(groups={"one": ("prep",)}))
    assert list(halves) == ["heuristic fails", "heuristic holds", "one"]
    assert groups_of(ModelConfig(), DataConfig(ood_label="entailment")) == {}


def study(**data: Any) -> StudyConfig:
    return StudyConfig(data=DataConfig(max_train=8, max_id=8, **data), analyses=Analyses())


@pytest.mark.parametrize(
    ("group", "subset", "message"),
    [
        ("mine", "embedif", r"mine: .*did you mean 'embed_if'\? subsets are .*so_swap"),
        ("mine", "constituent", "mine: .*no out-of-domain example is of subset 'constituent'; sub"),
        ("prep", "prep", "groups: 'prep' is also the name of an out-of-domain subset"),
    ],
)
def test_a_group_that_cannot_be_is_refused(
    tmp_path: Path, group: str, subset: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        prepare(study(max_ood=8, groups={group: ("so_swap", subset)}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_group_may_lose_subsets_to_the_draw(tmp_path: Path) -> None:
    every = {"mine": ("so_swap", "prep", "embed_if", "embed_verb")}
    for data in ({"max_ood": 2}, {"max_ood": 8, "ood_subsets": ("prep",)}):
        assert prepare(study(groups=every, **data), tmp_path / "out")[2]


def trained(out: Path, folders: list[str], best: int | None) -> str:
    """What a training of six steps leaves, so far as a series reads it."""
    for name in folders:
        (out / name).mkdir(parents=True)
        (out / name / "config.json").touch()
    records = [
        {"step": step, "loss": 1.0, "accuracy": {"id": {"all": 0.5}}, "seconds": 0.0}
        for step in (2, 4, 6)
    ]
    write_records(out, records, best)
    return str(out)


@pytest.mark.parametrize(
    ("folders", "best", "expected"),
    [
        ("step-2 step-4 final", None, {2: "step-2", 4: "step-4", 6: "final"}),
        ("step-4 final", 2, {2: "final", 4: "step-4"}),  # the best is not kept otherwise
        ("step-2 step-4 final", 2, {2: "step-2", 4: "step-4"}),
        ("step-2 step-4 step-6 final", 6, {2: "step-2", 4: "step-4", 6: "step-6"}),
    ],
)
def test_final_is_of_the_step_whose_weights_it_has(
    tmp_path: Path, folders: str, best: int | None, expected: dict[object, str]
) -> None:
    run = trained(tmp_path / "run", folders.split(), best)
    assert [*names_of(run).items()] == [*expected.items()]
    last = next(reversed(expected)) if best is None else best
    assert [*names_of(f"{run}/final")] == [last]


def checkpoints(root: Path, **weights: str) -> str:
    """Folders that look like checkpoints; ``top`` is the folder of all."""
    for name, text in weights.items():
        folder = root if name == "top" else root / name.replace("_", "-")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").touch()
        (folder / "model.safetensors").write_text(text)
    return str(root)


def names_of(*paths: str) -> dict[object, str]:
    series = checkpoint_series(paths, ModelConfig())
    return {step: Path(str(model.source)).name for step, model in series.items()}


TWO = {"checkpoint_1000": "b", "checkpoint_500": "a"}


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (
            TWO | {"top": "c"},  # the final one
            {"500": "checkpoint-500", "1000": "checkpoint-1000", "final": "run"},
        ),
        (
            TWO | {"top": "a"},  # one of the checkpoints
            {500: "checkpoint-500", 1000: "checkpoint-1000"},
        ),
        (
            TWO | {"best": "c"},
            {"500": "checkpoint-500", "1000": "checkpoint-1000", "best": "best"},
        ),
        ({"top": "a"}, {"run": "run"}),
        ({"top": "a", "onnx": "b"}, {"run": "run"}),
    ],
)
def test_checkpoints_are_identified_by_step_or_name(
    tmp_path: Path, weights: dict[str, str], expected: dict[object, str]
) -> None:
    names = names_of(checkpoints(tmp_path / "run", **weights))
    assert [*names.items()] == [*expected.items()]


def test_a_step_and_a_name_that_look_the_same_are_refused(tmp_path: Path) -> None:
    one = checkpoints(tmp_path / "one", checkpoint_500="a")
    with pytest.raises(InputError, match=r"500 and .*checkpoint-500 are both 500"):
        names_of(one, checkpoints(tmp_path / "500", top="b"))


SCHEMAS = schemas_of({})
SEEDS = [2**53, 2**53 + 1, MAX_SEED - 1]
"""As floating-point numbers the first two are the same, and the last is too large for 64 bits."""


def answered() -> Evaluation:
    correct = torch.tensor([[True, False]] * 4)
    subsets = np.array(["a", "a", "b", "b"], dtype=object)
    return Evaluation(torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]]), correct, subsets, "")


def tables() -> dict[str, pd.DataFrame]:
    mask = Mask.full(ModelShape(1, 4)).without("0.0")
    masks = [Subnetwork(mask, 0.2, seed, torch.zeros(1, 5)) for seed in SEEDS]
    full, answers = (
        dict.fromkeys(("id", "ood"), answered()),
        dict.fromkeys(("id", "ood"), [answered()] * 3),
    )
    return answer_tables(full, masks, answers, dict.fromkeys(full, "data"))


def test_seeds_of_tables_come_back_from_their_files(tmp_path: Path) -> None:
    known, path = tables(), tmp_path / "a.csv"
    for name in ("subnetworks", "accuracy"):
        table = known[name]
        assert table["seed"].dropna().unique().tolist() == SEEDS
        write_csv(path, table)
        back = SCHEMAS[name].read(path)
        pd.testing.assert_series_equal(back["seed"], table["seed"], check_dtype=False)
    full, grid, groups = accuracies_by_checkpoint({1: back}, {})
    made = size_tables(full, grid, groups, 0.03)
    write_csv(path, made["effective_size"])
    for table in (made["effective_size"], SCHEMAS["effective_size"].read(path)):
        assert table.loc[table["group"] == "ID", "seed"].tolist() == SEEDS
    assert set(made["mean_effective_size"]["n_seeds"]) == {3}
