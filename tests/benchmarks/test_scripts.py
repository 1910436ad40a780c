"""Benchmarks of speed run in small, and what they compare gives the same numbers."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import transformers as hf
from benchmarks.in_process import benchmark, printed_by
from browsing import MISSING, executable

QUICK = "--quick --threads 1"
SCRIPTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "exact_shapes": ("--quick --repeats 1 --models bert-base-cased", len),
    "extractive_scores": (
        "--quick --layers 2 --points 4 --counts 1 3 --plain-points 2 --rounds 1",
        lambda figures: figures["largest difference"] < 1e-4,
    ),
    "gpu": (
        f"{QUICK} --device cpu --models 'BERT base,Llama 3.1 8B'",
        lambda figures: all(
            row["logits apart"] < (1e-4 if row["dtype"] == "float32" else 0.1)
            for row in figures["rows"]
            if row["what"] in ("singles", "28 pairs") and "left out" not in row
        ),
    ),
    "heads": ("--examples 2 --rounds 1 --threads 1", lambda figures: len(figures) == 2),
    "knockout_sweep": (QUICK, lambda figures: figures["largest difference"] < 1e-4),
    "large_models": (
        "--quick --repeats 1 --dtypes bfloat16",
        lambda figures: (
            [row["how"] for row in figures["models"]] == ["measured", "measured", "computed"]
        ),
    ),
    "loading": ("--quick --rounds 1", len),
    "paths": (
        f"{QUICK} --layers 2",
        # Behind two heads of layer 0: its MLP, the 13 components of layer 1, and the answer. Heads
        # of layer 0 to 14 each, its MLP to 13, heads of layer 1 to its MLP; pairs of 26.
        lambda figures: (
            [(row["paths"], row["sets"]) for row in figures["comparisons"]]
            == [(15, 26), (12 * 14 + 13 + 12, 325)]
            and max(row["largest logit difference to raw hooks"] for row in figures["comparisons"])
            < 1e-4
        ),
    ),
    "patching": (QUICK, lambda figures: figures["largest difference"] < 1e-6),
    "sweep": (f"{QUICK} --scaling", lambda figures: len(figures["scaling"])),
}


SMALLER: dict[str, dict[str, Any]] = {
    "sweep_scaling": {"QUICK_COUNTS": {"examples": (2,), "sets": (16,), "layers": (2,)}},
    "gpu": {"MASKS": 2, "BATCH": 4},
    "prune_step": {"BATCH": 4},
}
"""Constants of scripts, by module, as they are enough to see that these run."""


def figures_of(name: str, options: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a script saves."""
    saved = folder / "figures.json"
    arguments = [*shlex.split(options), "--json", str(saved)]
    assert printed_by(benchmark(name, monkeypatch), arguments, monkeypatch)
    return json.loads(saved.read_text())


HOOKED = {"patching": pytest.mark.hooked}
"""Those that need HookedTransformer."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=HOOKED.get(n, ())) for n in SCRIPTS])
def test_a_script_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, holds = SCRIPTS[name]
    for module, constants in SMALLER.items():
        for constant, value in constants.items():
            monkeypatch.setattr(benchmark(module, monkeypatch), constant, value)
    assert holds(figures_of(name, options, tmp_path, monkeypatch))


def test_engines_give_logits_of_raw_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    singles, pairs = figures_of("sweep", QUICK, tmp_path, monkeypatch)["sweeps"]
    for sweep in (singles, pairs):
        differences = sweep["largest logit difference to raw hooks"]
        assert 0 < differences.pop("mechcore tree, bfloat16") < 0.1
        assert max(differences.values()) < 1e-4 < sweep["largest effect of a set on a logit"]
    # 2 layers of 12 heads: every layer evaluation but the first attention is of layer 0, whose
    # MLP runs for the full model and every head of layer 0; weights of an MLP are 2/3 of a layer.
    assert singles["layer evaluations"] == pytest.approx(1 / 3 + 2 / 3 * 13)
    assert pairs["layer evaluations"] == pytest.approx(1 / 3 + 2 / 3 * (13 + 66))
    # Restarts run layer 0 whole for the same sets; all of its streams attend in layer 1.
    assert singles["layer evaluations of restarts"] == pytest.approx(13 * 4 / 3, rel=1e-2)
    assert pairs["layer evaluations of restarts"] == pytest.approx((13 + 66) * 4 / 3, rel=1e-2)


def test_a_large_report_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if executable() is None:
        pytest.skip(MISSING)
    figures = figures_of("report", "--rounds 1", tmp_path, monkeypatch)
    assert 150 * 10 < figures["elements"] < 20_000
    assert 2 < figures["size (MB)"] < 8


HEAD = 3 * 768 + 3
PUBLISHED = {
    "bert-base-cased": 108_310_272 + HEAD,
    "roberta-base": 124_055_040 + (768 * 768 + 768) + HEAD,
    "gpt2": 124_439_808 + 3 * 768,
}
"""The published models' weights (RoBERTa's without its pooler), and those of the heads."""
DECODERS = {"SmolLM2-135M": 134_515_008, "Llama-3.2-1B": 1_235_814_400, "Llama-2-7B": 6_738_415_616}


def test_shapes_and_flops_are_those_of_published_models_and_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, n_parameters in PUBLISHED.items():
        config = benchmark("exact_shapes", monkeypatch).configuration(name)
        with torch.device("meta"):
            model = hf.AutoModelForSequenceClassification.from_config(config)
        assert sum(weights.numel() for weights in model.parameters()) == n_parameters
    shapes = benchmark("large_models", monkeypatch).SHAPES
    assert {name: shapes[name].parameters for name in DECODERS} == DECODERS
    from torch.utils.flop_counter import FlopCounterMode

    for shape in benchmark("large_models", monkeypatch).QUICK.values():
        model = hf.AutoModelForCausalLM.from_config(shape.config(), attn_implementation="eager")
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            model(torch.ones(3, 40, dtype=torch.long), use_cache=False)
        norms = (2 * shape.layers + 1) * shape.d_model  # counted as multiplied, and are few
        flops = shape.flops(3 * 40, 40) - 3 * 40 * 2 * norms
        assert flops == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_the_interval_of_presets_is_of_paired_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences 0.01, 0.03 and 0.02: mean 0.02, standard error 0.01 / sqrt(3), t(2) = 4.303."""
    values = {"thorough": [0.1, 0.2, 0.3], "fast": [0.11, 0.23, 0.32]}
    rows = pd.DataFrame(
        {"preset": preset, "seed": seed, "sparsity": 0.5, "kl": kl}
        for preset, of_preset in values.items()
        for seed, kl in enumerate(of_preset)
    )
    [row] = benchmark("presets", monkeypatch).summary(rows).to_dict("records")
    assert (row["thorough"], row["fast"]) == (pytest.approx(0.2), pytest.approx(0.22))
    assert row["low"] == pytest.approx(0.02 - 4.303 * 0.01 / 3**0.5, abs=1e-5)
    assert row["high"] == pytest.approx(0.02 + 4.303 * 0.01 / 3**0.5, abs=1e-5)
