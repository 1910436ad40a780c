"""`mechcore core`: what is compared is named."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from mechcore.cli import main
from mechcore.components import ModelShape
from mechcore.pruning import random_subnetworks


def test_the_sparsities_whose_frequencies_are_compared_are_named(tmp_path: Path) -> None:
    shape = ModelShape(3, 4, has_mlps=True)
    for each in random_subnetworks(shape, sparsity=[0.6, 0.2, 0.4], seeds=range(6)):
        each.save(tmp_path / "masks" / f"{each.name}.safetensors")
    with pytest.raises(SystemExit) as end:
        main(["core", str(tmp_path / "masks"), "--out", str(tmp_path / "out")])
    assert end.value.code == 0
    summary = pd.read_csv(tmp_path / "out" / "core_summary.csv").iloc[0]
    assert (summary["low_sparsity"], summary["high_sparsity"]) == (0.2, 0.6)
    frequency = pd.read_csv(tmp_path / "out" / "head_frequency.csv").dropna(subset=["head"])
    counts = frequency.pivot(index="component", columns="target_sparsity", values="count")
    rho = counts[0.2].corr(counts[0.6], method="spearman")
    assert summary["spearman_rho"] == pytest.approx(rho)
    assert counts[0.2].corr(counts[0.4], method="spearman") != pytest.approx(rho)
