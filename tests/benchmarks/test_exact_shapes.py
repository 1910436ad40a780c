"""The benchmark of published shapes builds these shapes, and runs."""

import json
from pathlib import Path

import pytest
import torch
import transformers as hf
from benchmarks.in_process import benchmark, printed_by

HEAD = 3 * 768 + 3
PARAMETERS = {
    "bert-base-cased": 108_310_272 + HEAD,
    "roberta-base": 124_055_040 + (768 * 768 + 768) + HEAD,
    "gpt2": 124_439_808 + 3 * 768,
}
"""The published models' weights (RoBERTa's without its pooler), and those of the heads."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_shapes_are_those_of_the_published_models(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = benchmark("exact_shapes", monkeypatch).configuration(name)
    with torch.device("meta"):
        model = hf.AutoModelForSequenceClassification.from_config(config)
    assert sum(weights.numel() for weights in model.parameters()) == PARAMETERS[name]
    assert config.num_labels == 3


def test_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmark("exact_shapes", monkeypatch)
    options = ["--quick", "--repeats", "1", "--json", str(tmp_path / "figures.json")]
    printed = printed_by(module, options, monkeypatch)
    rows = json.loads((tmp_path / "figures.json").read_text())
    steps = ["load", "forward", "means", "evaluate"]
    steps += [f"prune, {n} x {p}" for p in ("float32", "bfloat16") for n in (1, 3)]
    steps.append("train")
    found = [(row["model"], row["step"]) for row in rows]
    assert found == [(model, step) for model in PARAMETERS for step in steps]
    assert all(row["seconds"] >= 0 and row["peak GiB"] > 0.1 for row in rows)
    assert all(f"{model} " in printed for model in PARAMETERS)
