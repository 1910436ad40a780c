"""The benchmark of large models: sizes of published ones, arithmetic checked by hand."""

import json
from pathlib import Path

import pytest
import torch
import transformers as hf
from benchmarks.in_process import benchmark, printed_by

PARAMETERS = {
    "SmolLM2-135M": 134_515_008,
    "SmolLM2-360M": 361_821_120,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "Llama-2-7B": 6_738_415_616,
}
"""Of the published checkpoints."""


def test_shapes_have_the_published_numbers_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmark("large_models", monkeypatch)
    assert {name: shape.parameters for name, shape in module.SHAPES.items()} == PARAMETERS
    for shape in (*module.QUICK.values(), module.SHAPES["SmolLM2-135M"]):
        with torch.device("meta"):
            model = hf.AutoModelForCausalLM.from_config(shape.config())
        assert sum(weights.numel() for weights in model.parameters()) == shape.parameters


def test_flops_are_those_that_torch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    module = benchmark("large_models", monkeypatch)
    for shape in module.QUICK.values():
        model = hf.AutoModelForCausalLM.from_config(shape.config(), attn_implementation="eager")
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            model(torch.ones(3, 40, dtype=torch.long), use_cache=False)
        norms = (2 * shape.layers + 1) * shape.d_model  # counted as multiplied, and are few
        found = shape.flops(3 * 40, 40) - 3 * 40 * 2 * norms
        assert found == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_the_bytes_a_layer_keeps_are_those_of_its_activations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What must be kept at least: gate, up and their product, scores, and z before masking."""
    module = benchmark("large_models", monkeypatch)
    shape = module.Shape(2, 32, 64, 2, 2, 1100, d_head=16)
    kept = module.kept_bytes(shape, "float32")
    least = 4 * (2 * shape.d_mlp + shape.heads * module.PAIR + 4 * shape.d_model)
    assert least < kept < 3 * least
    wider = module.kept_bytes(module.replace(shape, d_mlp=128), "float32")
    assert wider - kept == pytest.approx(3 * 4 * 64, abs=1)  # gate, its activation, and up
    assert 0.5 < module.kept_bytes(shape, "bfloat16") / kept < 0.8


def test_arithmetic_gives_back_what_it_was_fitted_to(monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmark("large_models", monkeypatch)
    small, large = module.SHAPES["SmolLM2-135M"], module.SHAPES["Llama-2-7B"]
    cost, rows = module.Cost(0.5, 2.0, 6.0, 1.25, 4.0), (25, 32)
    rates = module.Rates.of(small, "float32", cost, 36_000.0, rows)
    again = rates.cost(small, "float32", 36_000.0, rows)
    for name in ("forward_s", "step_s", "forward_gib", "step_gib"):
        assert getattr(again, name) == pytest.approx(getattr(cost, name))
    other = rates.cost(large, "bfloat16", 200_000.0, rows)
    assert other.forward_s == pytest.approx(2.0 * large.flops(1, 40) / small.flops(1, 40))
    assert other.step_gib > 0.5 + 6_738_415_616 * 2 / 2**30 + 32 * 1280 * 200_000 / 2**30


def test_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmark("large_models", monkeypatch)
    options = ["--quick", "--repeats", "1", "--dtypes", "bfloat16"]
    printed = printed_by(module, [*options, "--json", str(tmp_path / "figures.json")], monkeypatch)
    found = json.loads((tmp_path / "figures.json").read_text())
    ways = {row["model"]: row["how"] for row in found["models"]}
    assert ways == {"toy-2": "measured", "toy-4": "measured", "toy-large": "computed"}
    assert [(row["model"], row["from"]) for row in found["checks"]] == [("toy-4", "toy-2")]
    assert "bfloat16: GFLOP/s of forward and step: toy-2 " in printed
    again = printed_by(module, [*options, "--most-gib", "0.001", "--flops", "1e6"], monkeypatch)
    lines = [line.split() for line in again.splitlines() if line.strip().startswith("toy")]
    assert [line[-1] for line in lines] == ["measured", "computed", "computed"]
    shape = module.QUICK["toy-large"]
    assert float(lines[-1][4]) == pytest.approx(shape.flops(2 * 40, 40) / 1e6, abs=0.001)
