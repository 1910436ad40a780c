"""The benchmark of loading loads the same model in every way, each beside Hugging Face."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.in_process import benchmark, printed_by

SHAPES = ["MiniLM", "BERT base", "Qwen3"]
VARIANTS = ["Hugging Face", "TransformerLens", "mechcore"]


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = benchmark("loading", monkeypatch)
    monkeypatch.setattr("shapes.VOCABULARY", 1100)
    return module


@torch.no_grad()
def test_every_variant_loads_the_same_model(loading: Any, tmp_path: Path) -> None:
    folders = loading.save_shapes(tmp_path, layers=1, quick=True)
    assert [folder.name for folder in folders] == SHAPES
    for folder in folders:
        found = [loading.VARIANTS[name](folder)(loading.IDS) for name in reversed(VARIANTS)]
        expected = found.pop().logits
        assert expected.shape == (2, 3)
        for logits in found:
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_table(loading: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tmp_path / "figures.json"
    printed = printed_by(loading, ["--quick", "--rounds", "1", "--json", str(saved)], monkeypatch)
    rows = json.loads(saved.read_text())
    assert [(row["shape"], row["variant"]) for row in rows] == [
        (shape, variant) for shape in SHAPES for variant in VARIANTS
    ]
    assert all(row["with an answer"] > row["seconds"] > 0 for row in rows)
    assert all(row["times Hugging Face"] == row["times that"] == 1 for row in rows[::3])
    assert all(f"{shape} " in printed for shape in SHAPES)


def test_ratios_are_those_of_the_shortest_rounds(
    loading: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = {"load_plain": (0.5, 1.0), "load_bridge": (1.0, 1.25), "load_model": (1.5, 4.0)}
    slower = iter([1.0] * 3 + [2.0] * 3)
    monkeypatch.setattr(loading, "load_model", lambda folder: None)

    def seconds(load: Any, folder: Path) -> tuple[float, ...]:
        factor = next(slower)
        return tuple(factor * each for each in took[load.__name__])

    monkeypatch.setattr(loading, "seconds", seconds)
    rows = loading.measure(tmp_path, rounds=2)
    assert [row["variant"] for row in rows] == VARIANTS
    assert [row["seconds"] for row in rows] == [0.5, 1.0, 1.5]
    assert [row["times Hugging Face"] for row in rows] == [1, 2, 3]
    assert [row["with an answer"] for row in rows] == [1, 1.25, 4]
    assert [row["times that"] for row in rows] == [1, 1.25, 4]
