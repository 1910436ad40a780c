"""One pruning step of mechcore and a faithful one of the published recipe, in one run.

The published recipe (arXiv 2403.03942, appendix) trains one mask at a time, pads every batch to 128
tokens and reruns the full model in every step. Both prune the same random weights of MiniLM's shape
(6 layers, 12 heads, width 384) on inputs with the lengths of MNLI pairs, 32 examples per step,
without dropout and without gradients into the weights.

    python benchmarks/prune_step.py [--masks 3] [--rounds 5] [--device cuda]

Times are per step and mask; each round runs every variant once, in turn, and ratios are within
rounds. Peak memory is that of a process that runs only this variant.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from measuring import peak, peak_alone, spread
from shapes import examples, minilm_shaped

from mechcore.components import Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models.protocol import forward, frozen
from mechcore.pruning import hard_concrete, prune_settings
from mechcore.pruning.mask_training import MaskTraining
from mechcore.pruning.teacher import Teacher, example_order

BATCH = 32
PADDED = 128


class Published:
    """One mask, everything padded to 128 tokens, and the full model rerun in every step."""

    masks = 1

    def __init__(self, model: Any, data: EncodedExamples, means: MeanActivations) -> None:
        self.model, self.data, self.means = model, data, means
        shape = ModelShape.of(model)
        self.log_alpha = torch.full((shape.n_layers, shape.columns), 2.0, requires_grad=True)
        self.multipliers = torch.zeros(2, requires_grad=True)
        groups = [
            {"params": [self.log_alpha], "lr": 0.1},
            {"params": [self.multipliers], "lr": 1.0, "maximize": True},
        ]
        self.optimiser = torch.optim.AdamW(groups, weight_decay=0.0)
        generator = torch.Generator().manual_seed(0)
        self.order = iter(torch.randperm(len(data), generator=generator).split(BATCH))

    def step(self) -> None:
        batch = {
            name: torch.nn.functional.pad(rows, (0, PADDED - rows.shape[1]))
            for name, rows in self.data.rows(next(self.order).tolist()).items()
            if rows.ndim == 2
        }
        with torch.no_grad():
            wanted = forward(self.model, batch).log_softmax(-1)
        values = hard_concrete.sample(self.log_alpha, torch.rand(self.log_alpha.shape))
        with masked(self.model, Mask(values), self.means) as run:
            got = run(batch).log_softmax(-1)
        kl = torch.nn.functional.kl_div(got, wanted, reduction="batchmean", log_target=True).cpu()
        distance = 0.5 - (1 - values.mean())
        (kl + self.multipliers[0] * distance + self.multipliers[1] * distance**2).backward()
        self.optimiser.step()
        self.optimiser.zero_grad()


class Ours:
    """Several masks, batches of similar length, and cached answers of the full model."""

    def __init__(
        self, model: Any, data: EncodedExamples, means: MeanActivations, masks: int, precision: str
    ) -> None:
        self.masks, self.data, self.means = masks, data, means
        settings = prune_settings("thorough", precision=precision, masks_per_pass=masks)
        shape = ModelShape.of(model)
        self.trainings = [MaskTraining(settings, shape, 0.5, seed) for seed in range(masks)]
        self.teacher = Teacher(model, data, settings)
        self.order = example_order([len(ids) for ids in data.input_ids], BATCH, 0)

    def step(self) -> None:
        values = torch.stack([training.draw() for training in self.trainings])
        losses, gradients = self.teacher.kl_gradients(values, self.means, next(self.order))
        for training, kl, gradient in zip(self.trainings, losses.tolist(), gradients, strict=True):
            training.update(kl, gradient)


def variants(masks: int, together: int) -> dict[str, Callable[..., Any]]:
    """The variants, with the published step first."""
    return {
        "published": Published,
        f"mechcore, {masks} masks, float32": lambda *a: Ours(*a, masks, "float32"),
        f"mechcore, {masks} masks, bfloat16": lambda *a: Ours(*a, masks, "bfloat16"),
        "mechcore, 1 mask, float32": lambda *a: Ours(*a, 1, "float32"),
        f"mechcore, {together} masks, float32": lambda *a: Ours(*a, together, "float32"),
    }


def seconds(variant: Any, steps: int, device: str) -> float:
    """Seconds per step and mask, with fewer steps for more masks, so variants take equally long."""
    n = max(2, steps // variant.masks) if variant.masks > 1 else steps
    start = time.perf_counter()
    for _ in range(n):
        variant.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / (n * variant.masks)


def peak_of(name: str, arguments: argparse.Namespace) -> float:
    """Peak memory of a process that runs one variant, MiB (of the device, if there is one)."""
    options = ["--only", name, "--device", arguments.device]
    options += ["--masks", str(arguments.masks), "--together", str(arguments.together)]
    return peak_alone(__file__, options)


def set_up(device: str) -> tuple[Any, EncodedExamples, MeanActivations]:
    model = minilm_shaped(device)
    data = examples(2048)
    few = (batch for batch, _ in zip(data.batches(BATCH), range(2), strict=False))
    return model, data, MeanActivations.compute(model, list(few), n_samples=0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--masks", type=int, default=3)
    parser.add_argument("--together", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    made = variants(arguments.masks, arguments.together)
    context = set_up(arguments.device)
    with frozen(context[0]):
        if arguments.only:
            seconds(made[arguments.only](*context), arguments.steps, arguments.device)
            print(json.dumps(peak(arguments.device)))
            return
        running = {name: make(*context) for name, make in made.items()}
        for variant in running.values():
            variant.step()
        rounds = [
            {name: seconds(v, arguments.steps, arguments.device) for name, v in running.items()}
            for _ in range(arguments.rounds)
        ]
    first = next(iter(made))
    rows = []
    for name in made:
        median, lowest, highest = spread([times[first] / times[name] for times in rounds])
        rows.append(
            {
                "variant": name,
                "ms per step and mask": 1000 * statistics.median(r[name] for r in rounds),
                "times as fast": median,
                "lowest": lowest,
                "highest": highest,
                "peak MiB": peak_of(name, arguments),
            }
        )
    print(f"torch {torch.__version__}, {arguments.device}, {torch.get_num_threads()} threads")
    print(pd.DataFrame(rows).round(2).to_string(index=False))


if __name__ == "__main__":
    main()
