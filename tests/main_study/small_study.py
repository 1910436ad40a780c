"""A study that takes seconds, and what it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from mechcore.analyses.ablation import Ablation
from mechcore.analyses.heads import Heads
from mechcore.main_study.config import Analyses, Resources, StudyConfig
from mechcore.pruning import PruneSettings
from mechcore.steps.config import DataConfig

CONFIG = StudyConfig(
    data=DataConfig(max_train=16, max_id=12, max_ood=12),
    prune=PruneSettings(steps=15, warmup=2, batch_size=4, tolerance=1, save_every=1),
    seeds=(42, 43),
    target_sparsities=(0.3, 0.5),
    seeds_per_job=1,
    n_resamples=10,
    analyses=Analyses(
        heads=Heads(8),
        ablation=Ablation(max_joint=2, max_non_core=1, controls=2),
        paths=None,
        dose=None,
    ),
    resources=Resources(cpus=1),
)


def results(out: Path) -> dict[str, Any]:
    """What was found, without notes on the run; of tensors the values, as headers have no order."""
    contents: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if not path.is_file() or name.startswith("store/") or name in ("config.json", "study.json"):
            continue
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                tensors = {key: file.get_tensor(key).tolist() for key in file.keys()}  # noqa: SIM118
                contents[name] = (file.metadata(), tensors)
        elif path.suffix in (".csv", ".json"):
            contents[name] = path.read_bytes()
        else:
            contents[name] = "there"  # drawings of these tables
    return contents


def leave_out_the_report(patch: pytest.MonkeyPatch) -> None:
    """It takes longer than all the rest."""
    patch.setattr("mechcore.study.run.build_report", lambda out: out / "report.html")


def files(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*")}
