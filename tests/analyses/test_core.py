"""The core of subnetworks: what is compared is named."""

from __future__ import annotations

import pytest

from mechcore.components import ModelShape
from mechcore.pruning import random_subnetworks
from mechcore.steps.tables import core_tables


def test_the_sparsities_whose_frequencies_are_compared_are_named() -> None:
    shape = ModelShape(3, 4, has_mlps=True)
    subnetworks = random_subnetworks(shape, sparsity=[0.6, 0.2, 0.4], seeds=range(6))
    _, tables = core_tables(subnetworks)
    summary = tables["core_summary"].iloc[0]
    assert (summary["low_sparsity"], summary["high_sparsity"]) == (0.2, 0.6)
    frequency = tables["head_frequency"].dropna(subset=["head"])
    counts = frequency.pivot(index="component", columns="target_sparsity", values="count")
    rho = counts[0.2].corr(counts[0.6], method="spearman")
    assert summary["spearman_rho"] == pytest.approx(rho)
    assert counts[0.2].corr(counts[0.4], method="spearman") != pytest.approx(rho)
