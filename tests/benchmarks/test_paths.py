"""The benchmark of paths runs, and its logits are those of a loop of raw hooks."""

import json
from pathlib import Path

import pytest
from benchmarks.in_process import benchmark, printed_by


def test_paths_beside_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = benchmark("paths", monkeypatch)
    options = ["--quick", "--threads", "1", "--layers", "2", "--json", str(tmp_path / "found")]
    printed = printed_by(paths, options, monkeypatch)
    one, every = json.loads((tmp_path / "found").read_text())["comparisons"]
    # Behind two heads of layer 0: its MLP, the 13 components of layer 1, and the answer.
    assert (one["paths"], one["sets"]) == (15, 26)
    # Heads of layer 0 to 14 each, its MLP to 13, heads of layer 1 to its MLP; pairs of 26.
    assert (every["paths"], every["sets"]) == (12 * 14 + 13 + 12, 325)
    for each in (one, every):
        assert each["largest logit difference to raw hooks"] < 1e-4
        assert each["times the sweep"][0] > 0
    assert "wanted: at most 1.3" in printed
