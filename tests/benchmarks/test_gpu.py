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
    loops = {"raw hooks, unsorted", "raw hooks", "pyvene", "nnsight"}
    halves = {"mechcore tree, bfloat16", "mechcore tree, float16"}
    engines = {"mechcore tree", "mechcore restart"}
    expected = {(name, "singles"): loops | engines for name in PARAMETERS}
    expected["BERT base", "singles"] |= halves
    expected["BERT base", "28 pairs"] = loops | halves | {"mechcore tree"}
    swept = [row for row in rows if row["what"] in ("singles", "28 pairs")]
    found: dict[tuple[str, str], set[str]] = {}
    for row in swept:
        found.setdefault((row["model"], row["what"]), set()).add(row["variant"])
        if "left out" not in row:
            assert row["sets"] == {"singles": 2 * (4 + 1), "28 pairs": 28}[row["what"]]
            assert row["seconds"] > 0
            assert row["peak MiB"] > 0
            assert row["logits apart"] < (1e-4 if row["dtype"] == "float32" else 0.1)
    assert found == expected
    left_out = {row["variant"] for row in rows if "left out" in row}
    assert left_out <= {"pyvene", "nnsight"}
    steps = {(row["variant"], row["dtype"]): row for row in rows if "pruning" in row["what"]}
    dtypes = ("float32", "bfloat16")
    assert steps.keys() == {(v, d) for v in ("in turn", "in one batch") for d in dtypes}
    assert all(steps["in turn", dtype]["times as fast"] == [1, 1, 1] for dtype in dtypes)


def test_what_would_not_end_in_time_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = benchmark("gpu", monkeypatch)
    options = ["--quick", "--device", "cpu", "--threads", "1", "--minutes", "0"]
    printed = printed_by(gpu, options, monkeypatch).splitlines()
    assert [line for line in printed if "out of time" in line] == [
        f"| {name} | out of time |" for name in PARAMETERS
    ]


def test_shapes_are_those_of_the_published_models(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = benchmark("gpu", monkeypatch)
    for name, case in gpu.cases(quick=False).items():
        body = case.model("meta").base_model
        n = sum(each.numel() for each in body.parameters())
        assert n == pytest.approx(PARAMETERS[name], rel=1e-9)
