"""Forward passes that jobs are estimated to cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers import CLASSES, Cases
from study.sources import data_config, leave_out_code

from mechcore.analyses.heads import Heads
from mechcore.main_study.config import Analyses, StudyConfig
from mechcore.main_study.plan import make_plan
from mechcore.pruning import PruneSettings
from mechcore.steps.config import ModelConfig
from mechcore.training import TrainSettings


def test_costs_follow_texts_and_training_steps(
    tmp_path: Path, cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_code(monkeypatch)
    data = replace(data_config(tmp_path / "data"), max_train=100, max_id=30, max_ood=50)
    config = StudyConfig(
        model=ModelConfig(source=str(cases.path("bert")), class_names=CLASSES),
        data=data,
        seeds=(1, 2, 3),
        target_sparsities=(0.5,),
        seeds_per_job=2,
        prune=PruneSettings(steps=10, steps_per_percent=2, batch_size=4, tolerance=1),
        analyses=Analyses(heads=Heads(20)),
    )
    trained = replace(config, training=TrainSettings(steps=25, batch_size=4, accumulate=2))
    costs: dict[str, list[float]] = {}
    for job in (*make_plan(config).jobs, *make_plan(trained).jobs[:1]):
        costs.setdefault(job.step.kind, []).append(job.step.cost(job))
    assert costs["means"] == [20 + 100, 20 + 50]  # of training and of out-of-domain texts
    assert costs["scores"] == [20 + 20]  # at most
    assert costs["swept"] == [20 + 80 * (30 + 50)]
    many = replace(config, data=replace(config.data, max_ood=5000))
    swept = [job.step.cost(job) for job in make_plan(many).jobs if job.step.kind == "swept"]
    assert swept == [20 + 80 * (30 + 5000)]
    # Forward and back is 3 passes; 10 + 2 * 50 steps of 4 examples, for 2 masks and for 1.
    assert costs["prune"] == [3 * 110 * 4 * 2, 3 * 110 * 4]
    assert costs["train"] == [3 * 25 * 4 * 2]
