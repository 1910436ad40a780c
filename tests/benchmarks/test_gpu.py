"""The benchmark of GPUs runs on the processor, and all variants give the same logits."""

import json
from pathlib import Path

import pytest
from benchmarks.in_process import benchmark, printed_by

PARAMETERS = {
    "BERT base": 109_482_240,
    "GPT-2": 124_439_808,
    "Llama 3.2 1B": 1_235_814_400,
    "Llama 3.1 8B": 8_030_261_248 - 128_256 * 4096,
}
"""Of the published checkpoints, without their heads."""


def test_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = benchmark("gpu", monkeypatch)
    files = ["--json", str(tmp_path / "figures"), "--markdown", str(tmp_path / "table")]
    options = ["--quick", "--device", "cpu", "--threads", "1", *files]
    printed = printed_by(gpu, options, monkeypatch)
    rows = json.loads((tmp_path / "figures").read_text())["rows"]
    table = (tmp_path / "table").read_text()
    assert table in printed
    assert len(table.splitlines()) == 2 + len(rows)
    swept = [row for row in rows if row["part"] == "sweep"]
    variants = {"mechcore tree", "mechcore restart", "raw hooks, unsorted", "raw hooks"}
    variants |= {"pyvene", "nnsight"}
    for name in PARAMETERS:
        of_model = [row for row in swept if row["model"] == name]
        assert {row["variant"] for row in of_model} == variants
        for row in of_model:
            if "left out" not in row:
                assert row["sets"] == 2 * (4 + 1)
                assert row["seconds"] > 0
                assert row["peak MiB"] > 0
                assert row["logits apart"] < (1e-4 if row["dtype"] == "float32" else 0.1)
    steps = {row["variant"]: row for row in rows if row["part"] == "pruning step"}
    assert steps.keys() == {"12 in turn", "12 in one batch", "12 in one batch, bfloat16"}
    assert steps["12 in turn"]["times as fast as 12 in turn"] == [1, 1, 1]


def test_shapes_are_those_of_the_published_models(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = benchmark("gpu", monkeypatch)
    for name, case in gpu.cases(quick=False).items():
        body = case.model("meta").base_model
        n = sum(each.numel() for each in body.parameters())
        assert n == pytest.approx(PARAMETERS[name], rel=1e-9)
