"""Passes that jobs cost, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import CLASSES, Cases
from study.sources import data_config, leave_out_code

from mechcore.analyses.ablation import Ablation
from mechcore.analyses.heads import Heads
from mechcore.analyses.search import Search
from mechcore.main_study.config import Analyses, StudyConfig
from mechcore.main_study.plan import make_plan
from mechcore.pruning import PruneSettings
from mechcore.steps.answers import Answers
from mechcore.steps.base import MainStep, Size
from mechcore.steps.config import ModelConfig
from mechcore.training import TrainSettings

SIZE = Size({"train": 100, "id": 30, "ood": 50}, n_heads=40, n_mlps=5)


@pytest.fixture
def config(tmp_path: Path, cases: Cases, monkeypatch: pytest.MonkeyPatch) -> StudyConfig:
    leave_out_code(monkeypatch)
    return StudyConfig(
        model=ModelConfig(source=str(cases.path("bert")), class_names=CLASSES),
        data=data_config(tmp_path / "data"),
        seeds=(1, 2, 3),
        target_sparsities=(0.5,),
        seeds_per_job=2,
        prune=PruneSettings(steps=10, steps_per_percent=2, batch_size=4, tolerance=1),
        analyses=Analyses(heads=Heads(20), ablation=Ablation(max_joint=4, max_non_core=6)),
    )


def counted(config: StudyConfig, size: Size | None) -> dict[str, list[float]]:
    """Passes of the jobs of each kind, in order; answers of masks apart.

    Without a size they are as guessed before files are read.
    """
    found: dict[str, list[float]] = {}
    for job in make_plan(config).jobs:
        step = job.step
        assert isinstance(step, MainStep)
        kind = step.kind
        if isinstance(step, Answers):
            kind = f"{'masks' if job.needs else 'full'} {step.split}"
        found.setdefault(kind, []).append(step.passes(job, size) if size else step.cost(job))
    return found


def test_passes_are_those_counted_by_hand(config: StudyConfig) -> None:
    assert counted(config, SIZE) == {
        "describe": [20],
        "means": [100, 50],  # of training and of out-of-domain texts
        # Forward and back is 3 passes; 10 + 2 * 50 steps of 4 examples, for 2 masks and for 1.
        "prune": [3 * 110 * 4 * 2, 3 * 110 * 4],
        "masks": [20, 20],
        "full id": [30],
        "full ood": [50],
        "masks id": [60, 30],
        "masks ood": [100, 50],
        "accuracy": [20],
        "smallest": [20],
        "core": [20],
        "scores": [20],  # of 30 in the data
        "heads": [20],
        "swept": [0.5 * 45 * 80],
        "ood_mean": [0.5 * 45 * 50 + 2 * 3 * 50],  # and slopes with either mean
        "sweep": [20],
        "rankings": [20],
        "roles": [20],
        "flips": [3 * 40],  # at most 3 texts for each head
        # 6 pairs of 4 and 99 controls of the core, at half a pass each; the sweep has the rest.
        "ablation": [0.5 * (6 + 99) * 80],
        # At most 6 pairs of core heads, and the core.
        "failure": [0.5 * 7 * 50],
        # Of 45 components and 8 core heads: the full model and the answers, 4 passes; what is
        # blind to the core, and 10 readers by 8 heads, at three tenths of a pass each. Out of
        # domain 20 controls beside the 10 readers.
        "paths": [80 * (4 + 0.3 * (45 + 80)) + 50 * 0.3 * (20 * 10)],
        # 6 components at 4 doses, and the answer that does not see them.
        "dose": [80 * 6 * (4 + 0.3)],
        "responses": [80],  # without the whole core
    }


def test_without_a_sweep_the_core_is_ablated_alone_too(config: StudyConfig) -> None:
    changed = replace(config, analyses=replace(config.analyses, sweep=None))
    # A fifth of 40 heads in the core, 6 pairs of 4, 6 others and 99 controls of the core.
    found = counted(changed, SIZE)
    assert found["ablation"] == [0.5 * (8 + 6 + 6 + 99) * 80]
    few = Ablation(max_joint=4, max_non_core=6, controls=7, control_examples=40)
    fewer = replace(changed, analyses=replace(changed.analyses, ablation=few))
    assert counted(fewer, SIZE)["ablation"] == [0.5 * ((8 + 6 + 6) * 80 + 7 * (30 + 40))]
    assert found["paths"] == [80 * (4 + 0.3 * (90 + 80))]  # no roles, so no controls
    named = Ablation(("mlps", "L1.H0"), sets=("L1.H0+L2.H1",), subsets=True, controls=0)
    fewer = replace(changed, analyses=replace(changed.analyses, ablation=named))
    # 5 MLPs and a head, all their subsets, 6 pairs of 4, one set and 16 others.
    assert counted(fewer, SIZE)["ablation"] == [0.5 * (6 + 2**6 + 6 + 1 + 16) * 80]


@pytest.mark.parametrize(
    ("by", "passes"),
    [
        ("screening", 3 * 46),  # forward and back, of the full model and without each of 45
        ("exact", 0.5 * (45 * 44 / 2 + 45)),
    ],
)
def test_a_search_costs_what_its_screening_does(
    config: StudyConfig, by: str, passes: float
) -> None:
    def cost(**changes: Any) -> float:
        search = replace(Search(screening_by=by, n_pairs=8), **changes)
        changed = replace(config, analyses=replace(config.analyses, search=search))
        (found,) = counted(changed, SIZE)["search"]
        return found

    # Pairs and triples on the half of 50 examples out of domain that screening sees, too; ten of
    # each with members of theirs on the other half.
    reported = 0.5 * 20 * 2 * 25
    assert cost() == 0.5 * 8 * 2 * 25 + passes * 25 + reported
    raced = cost(guarantee=0.05, largest=3)
    assert raced == 0.4 * 0.5 * 8 * 2 * 25 + passes * 25 + reported
    pairs = 0.3 * (45 * 46 / 2) + 0.5 * 8
    assert cost(all_pairs=True) == pytest.approx(0.4 * pairs * 25 + reported)


def test_passes_of_a_training_are_those_counted_by_hand(config: StudyConfig) -> None:
    training = TrainSettings(
        steps=25, batch_size=4, accumulate=2, evaluate_every=10, checkpoint_every=10
    )
    found = counted(replace(config, training=training), SIZE)
    # Forward and back for 25 steps of 8 examples; evaluations after 10, 20 and 25 steps.
    assert found["train"] == [3 * 25 * 8 + 3 * (30 + 50)]
