"""Seeds are the same number from the mask to the report, up to the largest that is allowed."""

from __future__ import annotations

from pathlib import Path

import made_up_run
import numpy as np
import pandas as pd
import pytest
import torch

from mechcore.components import Mask, ModelShape
from mechcore.evaluation.evaluate import Evaluation
from mechcore.files import write_csv
from mechcore.pruning import Subnetwork
from mechcore.pruning.settings import MAX_SEED
from mechcore.report import build_report
from mechcore.report.kinds import schemas_of
from mechcore.steps.sizes import accuracies_by_checkpoint, size_tables
from mechcore.steps.tables import answer_tables
from mechcore.wording import number, whole

SCHEMAS = schemas_of({})
SEEDS = [2**53, 2**53 + 1, MAX_SEED - 1]
"""As floating-point numbers the first two are the same, and the last is too large for 64 bits."""


def answered() -> Evaluation:
    correct = torch.tensor([[True, False]] * 4)
    subsets = np.array(["a", "a", "b", "b"], dtype=object)
    return Evaluation(torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]]), correct, subsets, "")


def tables() -> dict[str, pd.DataFrame]:
    mask = Mask.full(ModelShape(1, 4)).without("0.0")
    found = [Subnetwork(mask, 0.2, seed, torch.zeros(1, 5)) for seed in SEEDS]
    splits = ("id", "ood")
    return answer_tables(
        {split: answered() for split in splits},
        found,
        {split: [answered()] * len(found) for split in splits},
        dict.fromkeys(splits, "data"),
    )


@pytest.mark.parametrize("name", ["accuracy", "group_accuracy", "subnetworks"])
def test_seeds_of_tables_come_back_from_their_files(tmp_path: Path, name: str) -> None:
    table = tables()[name]
    assert table["seed"].dropna().unique().tolist() == SEEDS
    write_csv(tmp_path / "a.csv", table)
    back = SCHEMAS[name].read(tmp_path / "a.csv")
    assert back["seed"].dropna().tolist() == table["seed"].dropna().tolist()
    assert back["seed"].isna().tolist() == table["seed"].isna().tolist()


def test_seeds_of_effective_sizes(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", tables()["accuracy"])
    accuracy = SCHEMAS["accuracy"].read(tmp_path / "a.csv")
    full, grid, groups = accuracies_by_checkpoint({1: accuracy}, {})
    made = size_tables(full, grid, groups, 0.03)
    write_csv(tmp_path / "size.csv", made["effective_size"])
    back = SCHEMAS["effective_size"].read(tmp_path / "size.csv")
    for table in (made["effective_size"], back):
        assert table.loc[table["group"] == "ID", "seed"].tolist() == SEEDS
    assert set(made["mean_effective_size"]["n_seeds"]) == {3}


def test_seeds_in_the_report(tmp_path: Path) -> None:
    made_up_run.write_run(tmp_path / "run", made_up_run.World(seeds=SEEDS))
    page = build_report(tmp_path / "run").read_text(encoding="utf-8")
    for seed in SEEDS:
        assert str(seed) in page
        assert f"{seed:,}" not in page  # the same text everywhere, to be searched for
    assert str(MAX_SEED) not in page
    assert number(SEEDS[1], 0) == "9007199254740993"
    assert whole(SEEDS[2]) == "9,223,372,036,854,775,807"
