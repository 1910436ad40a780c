"""The benchmark of ways to predict interactions runs, and exact ones are found by themselves."""

from pathlib import Path

import pandas as pd
import pytest
from benchmarks.in_process import benchmark, printed_by

from mechcore.ablation import ComponentSet
from mechcore.ablation.predicting import INTERACTION_METHODS, Predictions
from mechcore.evaluation.cost import Cost


def test_every_method_has_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmark("interaction_methods", monkeypatch)
    names = "L0.H0,L0.H1,L1.H2,L3.H0,L3.MLP"
    options = ["--examples", "4", "--train", "20", "--top", "2", "--sets", "300"]
    options += ["--components", names, "--csv", str(tmp_path / "found.csv")]
    printed = printed_by(module, options, monkeypatch)
    assert "10 pairs, 4 examples, recall at 2" in printed
    table = pd.read_csv(tmp_path / "found.csv").set_index("method")
    assert set(table.index) == set(INTERACTION_METHODS)
    assert table.loc["exact", ["rho", "recall"]].tolist() == pytest.approx([1, 1])
    assert table["rho"].between(-1, 1).all()
    assert table["recall"].isin([0, 0.5, 1]).all()
    assert table["forwards"].drop("proxy").to_dict() == {
        "exact": 16, "screening": 6, "hessian": 1, "integrated-hessian": 4, "co-ablation": 16,
    }  # fmt: skip
    assert table["fit"].notna().tolist() == [name == "proxy" for name in table.index]


def test_rank_correlation_and_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmark("interaction_methods", monkeypatch)
    pairs = [ComponentSet.of(["L0.H0", f"L1.H{i}"]) for i in range(4)]
    exact = dict(zip(pairs, [4.0, 3.0, 2.0, 1.0], strict=True))
    found = Predictions(dict(zip(pairs, [0.3, 0.1, 0.2, 0.0], strict=True)), Cost(1, 2), 0.5)
    row = module.row("mine", found, exact, 2)
    # One swap of neighbours: 1 - 6 * 2 / (4 * 15).
    assert row == pytest.approx(
        {"method": "mine", "rho": 0.8, "recall": 0.5, "forwards": 1, "backwards": 2, "fit": 0.5}
    )
