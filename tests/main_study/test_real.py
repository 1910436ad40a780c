"""A small run on a real encoder and real data, against the figures of the complete sets."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from helpers import load_inputs

from mechcore.ablation import ablate, ablation_table
from mechcore.analyses.heads import Heads
from mechcore.components import Mask
from mechcore.evaluation.evaluate import evaluate
from mechcore.main_study.config import Analyses, StudyConfig
from mechcore.masking.means import MeanActivations
from mechcore.pruning import PruneSettings
from mechcore.steps.config import TEST_SPLITS, DataConfig, ModelConfig
from mechcore.study.run import run_study

pytestmark = pytest.mark.real

MNLI, HANS_NON_ENTAILMENT = 0.7145, 0.876
"""Accuracies on the complete sets."""
N = 150
BAND = 0.13
"""Over 3.5 standard errors of an accuracy of 0.7145 measured on 150 examples."""


def config(folder: Path, n: int) -> StudyConfig:
    data = folder / "data"
    return StudyConfig(
        model=ModelConfig(source=str(folder / "models" / "minilm-nli")),
        data=DataConfig(
            train=str(data / "mnli_train_29k.tsv.gz"),
            id=str(data / "mnli_dev_matched.tsv.gz"),
            ood=str(data / "hans_validation.tsv.gz"),
            ood_label="non-entailment",
            max_train=24,
            max_id=n,
            max_ood=n,
        ),
        prune=PruneSettings(steps=2, warmup=0, batch_size=4, tolerance=1),
        seeds=(42, 43),
        target_sparsities=(0.5, 0.8),
        batch_size=32,
        n_resamples=100,
        analyses=Analyses(heads=Heads(8), ablation=None, sweep=None, paths=None, dose=None),
    )


def test_accuracies_labels_and_one_ablation(real_data: Path) -> None:
    asked = config(real_data, N)
    inputs = load_inputs(asked.model, asked.data, ("train", "id", "ood"))
    assert inputs.readout("id").mapping == (
        "contradiction -> contradiction (2); entailment -> entailment (0); neutral -> neutral (1)"
    )
    assert inputs.readout("ood").mapping == "non-entailment -> neutral (1) or contradiction (2)"
    assert set(inputs.data["ood"].examples.frame["label"]) == {"non-entailment"}
    assert len(inputs.data["ood"].examples.subset_names) == 15
    means = MeanActivations.compute(inputs.model, inputs.data["train"])
    data = inputs.data
    answers = [
        ablate(inputs.model, ["L0.H0"], data[split], means, split=split, batch_size=32)  # type: ignore[arg-type]
        for split in TEST_SPLITS
    ]
    rows = pd.concat([ablation_table(ablated, n_resamples=100) for ablated in answers])
    rows = rows.query("subset == 'all'").set_index("split")
    assert rows["n"].tolist() == [N, N]
    full = rows["accuracy"] - rows["accuracy_change"]
    assert full["id"] == pytest.approx(MNLI, abs=BAND)
    assert full["ood"] == pytest.approx(HANS_NON_ENTAILMENT, abs=BAND)
    mask = Mask.full(inputs.model).without("L0.H0")
    without = evaluate(inputs.model, inputs.data["ood"], mask=mask, means=means)
    assert rows.loc["ood", "accuracy"] == pytest.approx(without.accuracy)
    assert rows.loc["ood", "margin"] == pytest.approx(without.margin.mean(), abs=1e-3)
    assert abs(rows.loc["ood", "margin_change"]) > 1e-4


@pytest.mark.usefixtures("no_drawings")
def test_a_run(real_data: Path, tmp_path: Path) -> None:
    (report,) = run_study(config(real_data, 24), tmp_path / "run")
    assert report.is_file()
    facts = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (facts["model"]["n_layers"], facts["model"]["n_heads"]) == (6, 12)
    assert facts["model"]["class_names"] == ["entailment", "neutral", "contradiction"]
    tables = {path.stem: pd.read_csv(path) for path in (tmp_path / "run" / "tables").iterdir()}
    kept = [set(row.split()) for row in tables["subnetworks"]["kept"]]
    assert [len(names) for names in kept] == [39, 39, 16, 16]  # of 72 heads and 6 MLPs
    shared = {name for name in set.intersection(*kept) if "MLP" not in name}
    assert set(tables["core"]["heads"][0].split()) == shared
    assert len(tables["head_categories"]) == 72
    full = tables["accuracy"].query("subnetwork == 'full' and subset == 'all'")
    assert full["accuracy"].tolist() == pytest.approx([MNLI, HANS_NON_ENTAILMENT], abs=0.35)
