"""Cost of decoders of up to 7 billion parameters: measured where they fit here, else computed.

Models of exact shapes with random weights, built directly in the measured precision, each in its
own process: a forward of 1000 tokens (25 x 40), and a pruning step of one mask (32 x 40 tokens),
read at two answer tokens. SmolLM2 135M and 360M and Llama 3.2 1B are measured; Llama 3.2
3B and Llama 2 7B, and whatever would need more than ``--most-gib``, are computed:

    FLOPs of a forward   2 per token and weight that is multiplied (all but an untied input
                         embedding), and 4 x positions x width of all heads per token and layer
    of a pruning step    twice as many: the gradient goes through activations, and into no weight
    seconds              FLOPs / (FLOP/s of the largest measured model in this precision)
    peak of a forward    what the process holds without a model + weights + logits of all
                         positions, times a factor fitted to the smallest measured model
    peak of a step       the same with a factor of its own, and the activations kept for the
                         gradient: tokens x layers x bytes, where the bytes per token and layer are
                         counted by running one layer and two of the exact widths

    python benchmarks/large_models.py [--repeats 3] [--threads 1] [--flops 2e14] [--json FILE]

The first table states for every figure whether it was measured. The second predicts each measured
model from the next smaller one, and gives the error. For other hardware, give its FLOP/s with
``--flops``: computed seconds are then for it, measured ones remain those of this machine. Times are
the shortest of the repeats: CPU seconds with one thread, wall-clock seconds with more. ``--quick``
runs everything at toy size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers as hf
from exact_shapes import pruning_step
from measuring import peak, shortest
from shapes import of_lengths
from transformer_lens.model_bridge.sources import build_bridge_from_module

from mechcore.components import Mask
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.devices import DTYPES
from mechcore.models.protocol import forward
from mechcore.pruning import prune_settings

ALL = "all"
FORWARD, STEP, PAIR = 25, 32, 40
"""Rows of a forward and of a pruning step, and tokens of a row."""


@dataclass(frozen=True)
class Shape:
    """A Llama-like decoder."""

    layers: int
    d_model: int
    d_mlp: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = True
    d_head: int = 64

    def config(self) -> Any:
        """The configuration for transformers."""
        return hf.LlamaConfig(
            num_hidden_layers=self.layers,
            hidden_size=self.d_model,
            intermediate_size=self.d_mlp,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.d_head,
            vocab_size=self.vocabulary,
            tie_word_embeddings=self.tied,
            max_position_embeddings=2048,
        )

    @property
    def parameters(self) -> int:
        """All weights; tied embeddings count once."""
        attention = 2 * self.d_model * self.d_head * (self.heads + self.kv_heads)
        layer = attention + 3 * self.d_model * self.d_mlp + 2 * self.d_model
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.d_model
        return self.layers * layer + embeddings + self.d_model

    def flops(self, tokens: int, positions: int) -> float:
        """FLOPs of a forward of some tokens in rows of some positions."""
        multiplied = self.parameters - (0 if self.tied else self.vocabulary * self.d_model)
        attention = 4 * positions * self.heads * self.d_head * self.layers
        return tokens * (2.0 * multiplied + attention)


SHAPES = {
    "SmolLM2-135M": Shape(30, 576, 1536, 9, 3, 49152),
    "SmolLM2-360M": Shape(32, 960, 2560, 15, 5, 49152),
    "Llama-3.2-1B": Shape(16, 2048, 8192, 32, 8, 128256),
    "Llama-3.2-3B": Shape(28, 3072, 8192, 24, 8, 128256, d_head=128),
    "Llama-2-7B": Shape(32, 4096, 11008, 32, 32, 32000, tied=False, d_head=128),
}
QUICK = {
    "toy-2": Shape(2, 32, 64, 2, 1, 1100, d_head=16),
    "toy-4": Shape(4, 32, 64, 2, 1, 1100, d_head=16),
    "toy-large": Shape(8, 64, 128, 2, 1, 1100, tied=False, d_head=32),
}
MEASURED = {
    "float32": ("SmolLM2-135M", "SmolLM2-360M"),
    "bfloat16": ("SmolLM2-135M", "SmolLM2-360M", "Llama-3.2-1B"),
}


@dataclass(frozen=True)
class Cost:
    """Seconds and peak memory, GiB, of a forward and of a pruning step.

    Attributes:
        base: memory of the process without a model, GiB.
    """

    base: float
    forward_s: float
    step_s: float
    forward_gib: float
    step_gib: float


# -- measuring ------------------------------------------------------------------------------------


def build(shape: Shape, dtype: torch.dtype, device: str) -> Any:
    """A model with random weights, built in its precision."""
    torch.manual_seed(0)
    with torch.device(device):
        hf_model = hf.AutoModelForCausalLM.from_config(
            shape.config(), dtype=dtype, attn_implementation="eager"
        )
    hf_model.requires_grad_(False)
    return load_model(
        build_bridge_from_module(
            hf_model, type(hf_model).__name__, hf_config=hf_model.config, model_name="random"
        )
    )


def measure(shape: Shape, dtype: str, repeats: int, device: str, rows: Sequence[int]) -> Cost:
    """Run everything; rows of a forward and of a step."""
    base = 0.0 if device == "cuda" else peak(device) / 1024
    model = build(shape, DTYPES[dtype], device)
    rng = np.random.default_rng(0)
    few, many = (of_lengths([PAIR] * n, rng, ("yes", "no"), shape.vocabulary) for n in rows)
    batch = next(few.batches(len(few)))

    def run_forward() -> None:
        with torch.no_grad():
            forward(model, batch)

    forward_s, forward_mib = shortest(run_forward, repeats, device)
    answered = replace(many, answers={"yes": (5,), "no": (7,)})
    means = MeanActivations.compute(model, many.part([0]), n_samples=0)
    settings = prune_settings("fast", precision="float32", masks_per_pass=1, batch_size=rows[1])
    step = pruning_step(model, answered, means, settings)
    step_s, step_mib = shortest(step, repeats, device)
    return Cost(base, forward_s, step_s, forward_mib / 1024, step_mib / 1024)


def kept_bytes(shape: Shape, dtype: str) -> float:
    """What a layer keeps of every token for a mask's gradient: that of two less that of one."""
    kept = []
    for layers in (1, 2):
        small = replace(shape, layers=layers, vocabulary=8)
        model = build(small, DTYPES[dtype], "cpu")
        batch = {"input_ids": torch.ones(1, PAIR, dtype=torch.long)}
        means = MeanActivations.compute(model, batch, n_samples=0)
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        sizes: dict[int, int] = {}

        def keep(tensor: Any, weights: Any = weights, sizes: Any = sizes) -> Any:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        values = torch.full_like(Mask.full(model).values, 0.5).requires_grad_()
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            masked(model, Mask(values), means) as run,
        ):
            logits = run(batch)
        kept.append(sum(sizes.values()))
        del logits
    return (kept[1] - kept[0]) / PAIR


# -- computing ------------------------------------------------------------------------------------


def logits_gib(shape: Shape, dtype: str, rows: int) -> float:
    """Logits of all positions."""
    return rows * PAIR * shape.vocabulary * DTYPES[dtype].itemsize / 2**30


def weights_gib(shape: Shape, dtype: str) -> float:
    return shape.parameters * DTYPES[dtype].itemsize / 2**30


@dataclass(frozen=True)
class Rates:
    """Predictions from a measured model for others in the same precision.

    Attributes:
        forward_flops, step_flops: FLOP/s that a forward and a pruning step reach.
        base: memory of the process without a model, GiB.
        forward_logits, step_logits: multiples of the memory of the logits that are needed.
    """

    forward_flops: float
    step_flops: float
    base: float
    forward_logits: float
    step_logits: float

    @classmethod
    def of(cls, shape: Shape, dtype: str, cost: Cost, kept: float, rows: Sequence[int]) -> Rates:
        forward_flops, step_flops = work(shape, rows)
        bare = cost.base + weights_gib(shape, dtype)
        of_forward, of_step = (logits_gib(shape, dtype, n) for n in rows)
        activations = activations_gib(shape, kept, rows)
        return cls(
            forward_flops / cost.forward_s,
            step_flops / cost.step_s,
            cost.base,
            (cost.forward_gib - bare) / of_forward,
            (cost.step_gib - bare - activations) / of_step,
        )

    def cost(self, shape: Shape, dtype: str, kept: float, rows: Sequence[int]) -> Cost:
        """The arithmetic in the module's docstring."""
        forward_flops, step_flops = work(shape, rows)
        bare = self.base + weights_gib(shape, dtype)
        of_forward, of_step = (logits_gib(shape, dtype, n) for n in rows)
        activations = activations_gib(shape, kept, rows)
        return Cost(
            self.base,
            forward_flops / self.forward_flops,
            step_flops / self.step_flops,
            bare + self.forward_logits * of_forward,
            bare + activations + self.step_logits * of_step,
        )


def work(shape: Shape, rows: Sequence[int]) -> tuple[float, float]:
    """FLOPs of a forward and of a pruning step."""
    of_forward, of_step = (shape.flops(n * PAIR, PAIR) for n in rows)
    return of_forward, 2 * of_step


def activations_gib(shape: Shape, kept: float, rows: Sequence[int]) -> float:
    """Memory that a step keeps for the gradient."""
    return shape.layers * rows[1] * PAIR * kept / 2**30


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--most-gib", type=float, default=8.0)
    parser.add_argument(
        "--flops", type=float, help="FLOP/s of other hardware, for what is computed"
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shapes = QUICK if arguments.quick else SHAPES
    rows = (2, 3) if arguments.quick else (FORWARD, STEP)
    if arguments.only:
        dtype, name = arguments.only.split(",")
        if name == ALL:
            print(json.dumps({name: kept_bytes(shape, dtype) for name, shape in shapes.items()}))
            return
        measured = measure(shapes[name], dtype, arguments.repeats, arguments.device, rows)
        print(json.dumps(asdict(measured)))
        return
    table: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    for dtype in arguments.dtypes.split(","):
        kept = alone(dtype, ALL)
        costs: dict[str, Cost] = {}
        rates: dict[str, Rates] = {}
        for name in list(QUICK)[:2] if arguments.quick else MEASURED[dtype]:
            shape = shapes[name]
            predicted = None
            if rates:
                predicted = rates[list(rates)[-1]].cost(shape, dtype, kept[name], rows)
                if predicted.step_gib > arguments.most_gib:
                    continue
            costs[name] = Cost(**alone(dtype, name))
            rates[name] = Rates.of(shape, dtype, costs[name], kept[name], rows)
            if predicted is not None:
                checks.append(check(name, dtype, list(costs)[-2], costs[name], predicted))
        smallest, largest = (rates[list(rates)[i]] for i in (0, -1))
        fitted = replace(
            largest,
            forward_logits=smallest.forward_logits,
            step_logits=smallest.step_logits,
            **(
                {f"{k}_flops": arguments.flops for k in ("forward", "step")}
                if arguments.flops
                else {}
            ),
        )
        for name, shape in shapes.items():
            cost = costs.get(name) or fitted.cost(shape, dtype, kept[name], rows)
            table.append(described(name, shape, dtype, cost, name in costs, kept[name]))
        reached = {name: [rate.forward_flops, rate.step_flops] for name, rate in rates.items()}
        print(f"{dtype}: GFLOP/s of forward and step:", end=" ")
        print("; ".join(f"{k} {a / 1e9:.0f}, {b / 1e9:.0f}" for k, (a, b) in reached.items()))
    print(f"torch {torch.__version__}, {arguments.device}, {arguments.threads} threads\n")
    print(pd.DataFrame(table).to_string(index=False), "\n")
    print(pd.DataFrame(checks).to_string(index=False))
    if arguments.json:
        arguments.json.write_text(json.dumps({"models": table, "checks": checks}, indent=1))


def alone(dtype: str, name: str) -> dict[str, float]:
    """Another process's measurements of a model, or the bytes that it keeps."""
    command = [sys.executable, __file__, *sys.argv[1:], "--only", f"{dtype},{name}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def described(
    name: str, shape: Shape, dtype: str, cost: Cost, is_measured: bool, kept: float
) -> dict[str, Any]:
    """A row of the first table."""
    return {
        "model": name,
        "parameters": shape.parameters,
        "dtype": dtype,
        "weights GiB": round(weights_gib(shape, dtype), 2),
        "forward s": round(cost.forward_s, 3),
        "step s": round(cost.step_s, 3),
        "forward GiB": round(cost.forward_gib, 2),
        "step GiB": round(cost.step_gib, 2),
        "kB per token and layer": round(kept / 1000, 1),
        "how": "measured" if is_measured else "computed",
    }


def check(name: str, dtype: str, smaller: str, cost: Cost, predicted: Cost) -> dict[str, Any]:
    """A row of the second table: predicted figures, and their errors."""
    row: dict[str, Any] = {"model": name, "dtype": dtype, "from": smaller}
    for key in ("forward_s", "step_s", "forward_gib", "step_gib"):
        value, wanted = getattr(predicted, key), getattr(cost, key)
        row[key.replace("_", " ")] = f"{value:.3g} ({value / wanted - 1:+.0%})"
    return row


if __name__ == "__main__":
    main()
