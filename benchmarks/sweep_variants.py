"""The sweeps that benchmarks/sweep.py times, and every variant of running them."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from full_forwards import FullForwards, Heads
from shapes import examples, save_minilm_shaped, save_qwen3_shaped
from torch import Tensor

from mechcore.ablation import Ablations, ComponentSet, ablate
from mechcore.ablation.engines import engine as engines
from mechcore.ablation.engines.restart import by_layers, evaluations
from mechcore.ablation.engines.tree import TreeRunner, Work, grow
from mechcore.components import Component, Mask, ModelShape
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.readers import read_examples
from mechcore.masking.fills import fill_of
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model, load_tokenizer
from mechcore.models.architectures.layers import stack_of
from mechcore.models.protocol import model_inputs

RAW = "raw hooks"
TREES = {"mechcore tree, float32": torch.float32, "mechcore tree, bfloat16": torch.bfloat16}
RESTART, REFERENCE = "mechcore restart", "mechcore reference"


@dataclass(frozen=True, eq=False)
class Sweep:
    """Sets of heads to ablate, and examples.

    Attributes:
        sample: the sets run by variants with a forward of the whole model per set.
    """

    name: str
    sets: Sequence[Heads]
    data: EncodedExamples
    sample: Sequence[Heads]


@dataclass(frozen=True)
class Settings:
    """What to sweep, from the command line.

    Attributes:
        examples, pair_examples: for single heads and for pairs.
        layers: of the random model.
        cpu_time: measure processor time of this process, not elapsed time.
        decoder: random weights of a decoder's shape instead of an encoder's.
        model, data: checkpoint and labelled texts instead of random ones.
    """

    examples: int
    pair_examples: int
    batch_size: int
    peer_sets: int
    layers: int
    device: str
    cpu_time: bool = False
    decoder: bool = False
    model: str | None = None
    data: str | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of benchmarks that work on a `Bench`."""
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=6, help="of the random model")
    parser.add_argument("--model", help="a real BERT classifier, with --data")
    parser.add_argument("--data", help="labelled texts in a file that mechcore reads")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="CPU time instead of elapsed time: for --threads 1 on a shared machine",
    )
    parser.add_argument("--json", type=Path, help="where to save the figures")
    parser.add_argument(
        "--quick", action="store_true", help="a small model, seconds instead of minutes"
    )


class Bench:
    """The inputs of all variants; the bridge is loaded when first needed.

    Args:
        settings: see `Settings`.
        folder: contains checkpoint and means, or will.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.device, self.batch_size = settings.device, settings.batch_size
        self.clock = time.process_time if settings.cpu_time else time.perf_counter
        self.source = settings.model or str(folder / "model")
        if settings.model is None and not (folder / "model").exists():
            save = save_qwen3_shaped if settings.decoder else save_minilm_shaped
            save(self.source, settings.layers)
        self.data = self._examples(settings)
        path = folder / "means.safetensors"
        if not path.exists():
            some = self.data.part(range(min(64, len(self.data))))
            MeanActivations.compute(self.model, some, n_samples=0).save(path)
        self.means = MeanActivations.load(path)
        n_layers, n_heads = self.means.z.shape[:2]
        heads = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
        generator = np.random.default_rng(0)
        self.sweeps = []
        for name, size, n in (
            ("all single heads", 1, settings.examples),
            ("all pairs of heads", 2, settings.pair_examples),
        ):
            sets: list[Heads] = list(itertools.combinations(heads, size))
            sample = generator.permutation(len(sets))[: settings.peer_sets]
            data = self.data.part(range(min(n, len(self.data))))
            self.sweeps.append(Sweep(name, sets, data, [sets[i] for i in sorted(sample)]))

    def _examples(self, settings: Settings) -> EncodedExamples:
        n = max(settings.examples, settings.pair_examples)
        if settings.data is None:
            return examples(n)
        tokenizer = load_tokenizer(self.source)
        texts = read_examples(settings.data).sample(n, 0)
        return encode(texts, tokenizer, max_length=min(512, tokenizer.model_max_length))

    @cached_property
    def model(self) -> Any:
        """A TransformerLens bridge."""
        return load_model(self.source, device=self.device)

    @cached_property
    def shape(self) -> ModelShape:
        return ModelShape.of(self.model)

    # -- mechcore -------------------------------------------------------------------------------

    def ablate(self, sets: Sequence[Heads], data: EncodedExamples, **options: Any) -> Ablations:
        """The sweep as a user runs it."""
        named = [component_set(heads) for heads in sets]
        options |= {"batch_size": self.batch_size, "split": "ood"}  # random weights: below chance
        return ablate(self.model, named, data, self.means, **options)

    def masks(self, sets: Sequence[Heads]) -> Tensor:
        """The full model's mask, then one for each set."""
        masks = [component_set(heads).mask(self.shape).values for heads in sets]
        return torch.stack([Mask.full(self.shape).values, *masks])

    @torch.no_grad()
    def tree_logits(
        self, sets: Sequence[Heads], data: EncodedExamples, precision: torch.dtype
    ) -> Tensor:
        """The engine's logits, [mask, example, class], the full model's first."""
        stack = stack_of(self.model).to(precision)
        masks = self.masks(sets)
        tree = grow(masks, self.shape)
        fills = fill_of(self.model, self.means, "mean", 0)
        runner = TreeRunner(stack, self.shape, fills, engines.MAX_TOKENS[self.device])
        logits = torch.empty(len(masks), len(data), len(stack.out.weight))

        def keep(index: Tensor, nodes: Sequence[Sequence[int]], x: Tensor) -> None:
            for numbers, read in zip(nodes, x, strict=True):
                rows = stack.out(stack.head(read)).float().cpu()
                logits[torch.tensor(numbers)[:, None], index] = rows

        for batch in data.batches(self.batch_size):
            inputs = model_inputs(self.model, batch)
            first = inputs["input_ids"].new_zeros(len(inputs["input_ids"]))
            runner.begin(inputs)
            runner.run(inputs, first, tree, partial(keep, batch["index"]))
        return logits

    def engine_logits(self, engine: str, sets: Sequence[Heads], data: EncodedExamples) -> Tensor:
        """Logits from the model's own layers, [set, example, class]."""
        ablations = self.ablate(sets, data, engine=engine)
        return torch.stack([torch.from_numpy(a.logits) for a in ablations.without.values()])

    def layer_evaluations(self, sets: Sequence[Heads]) -> float:
        """Layer evaluations of the tree per batch, without the last layer's, for one position."""
        return Work.of(grow(self.masks(sets), self.shape), self.shape).layers(stack_of(self.model))

    def restart_evaluations(self, sets: Sequence[Heads]) -> float:
        """Layer evaluations of the restart engine per batch; of the last layer, only attention."""
        return evaluations(self.model, grow(self.masks(sets), by_layers(self.shape)))

    def check_seconds(self, sweep: Sweep) -> float:
        """Seconds that a sweep in bfloat16 takes once to compare itself with float32."""
        took: list[float] = []
        clock, agreement = self.clock, engines.TreeEngine.agreement

        def timed(self: Any) -> float:
            start = clock()
            agreement(self)
            took.append(clock() - start)
            raise _Done

        with mock.patch.object(engines.TreeEngine, "agreement", timed), suppress(_Done):
            self.ablate(sweep.sets, sweep.data, precision="bfloat16")
        return took[0]


class _Done(Exception):
    """The wanted part of a sweep is over."""


def component_set(heads: Heads) -> ComponentSet:
    return ComponentSet.of([Component(layer, head) for layer, head in heads])


# -- variants -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Variant:
    """One way to run sweeps.

    Attributes:
        run: runs one, or the sample of its sets.
        forwards: number of whole-model forwards in that run; None if it was the whole sweep.
    """

    run: Callable[[Sweep], Any]
    forwards: Callable[[Sweep], int] | None = None

    def seconds(self, bench: Bench, sweep: Sweep) -> float:
        """Seconds of the whole sweep, including the full model."""
        start = bench.clock()
        with mock.patch.object(engines, "SAMPLE", (1, 1)):  # see `Bench.check_seconds`
            self.run(sweep)
        if bench.device == "cuda":
            torch.cuda.synchronize()
        elapsed = bench.clock() - start
        if self.forwards is None:
            return elapsed
        return elapsed * (len(sweep.sets) + 1) / self.forwards(sweep)


def full_forwards(bench: Bench, made: FullForwards) -> Variant:
    """A variant of full_forwards.py."""
    return Variant(
        lambda sweep: made.logits(sweep.sample, sweep.data, bench.batch_size),
        lambda sweep: len(sweep.sample),
    )


def mechcore_variants(bench: Bench) -> dict[str, Variant]:
    """The engines (the tree in both precisions) and the plain path."""

    def tree(precision: str, sweep: Sweep) -> None:
        bench.ablate(sweep.sets, sweep.data, engine="tree", precision=precision)

    float32, bfloat16 = TREES
    trees = {
        float32: Variant(partial(tree, "float32")),
        bfloat16: Variant(partial(tree, "bfloat16")),
    }
    return trees | layer_variants(bench)


def layer_variants(bench: Bench) -> dict[str, Variant]:
    """The engines that run any model."""

    def reference(sweep: Sweep) -> None:
        bench.ablate(sweep.sample, sweep.data, engine="reference")

    def restart(sweep: Sweep) -> None:
        bench.ablate(sweep.sets, sweep.data, engine="restart")

    return {
        RESTART: Variant(restart),
        REFERENCE: Variant(reference, lambda sweep: len(sweep.sample) + 1),
    }
