"""All figures that a GPU is to give, in one command of ten minutes at most.

    python benchmarks/gpu.py [--device cuda] [--json FILE] [--markdown FILE]
    python benchmarks/gpu.py --quick --device cpu

Classifiers of exact shapes (BERT base, GPT-2, Llama 3.2 1B, Llama 3.1 8B) with random weights, made
on the device in the precision they run in, on examples with the lengths of MNLI pairs in batches of
64:

- *sweeps*: every head and MLP ablated alone, by the tree and by restarts, beside loops with one
  forward of the whole model for each head: raw hooks as users write them (Hugging Face's model with
  the attention that transformers chooses, batches in the data's order), the same in batches sorted
  by length, and pyvene and nnsight if they are installed. Loops run a sample of the heads, and
  their time is multiplied up to all sets and the full model. All logits are compared.
- *pruning*: a step of 12 masks in one batch beside 12 steps of one, on BERT base.

Peaks are of the device's memory while a variant runs, weights included. Times are the shortest of
the rounds; ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers as hf
from full_forwards import VARIANTS, Heads
from large_models import SHAPES as DECODERS
from large_models import Shape
from measuring import forget_peak, peak, spread
from prune_step import BATCH, Ours
from shapes import CLASSES, examples
from sweep import machine
from sweep_variants import RAW
from torch import Tensor

from mechcore.ablation import ComponentSet, ablate, sets
from mechcore.components import Component, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.loading import _bridge
from mechcore.models.placing import DTYPES
from mechcore.models.running import frozen

BATCH_SIZE, MASKS = 64, 12
LOOPS = ("raw hooks, unsorted", RAW, "pyvene", "nnsight")
AS_WRITTEN = LOOPS[0]
ENGINES = ("tree", "restart")
NAMES = {
    "id2label": dict(enumerate(CLASSES)),
    "label2id": {name: i for i, name in enumerate(CLASSES)},
}
AGREEMENT = {"float32": 1e-2, "bfloat16": 0.3}
"""How far logits of random weights may be apart, times their largest; GPUs round in their ways."""


@dataclass(frozen=True)
class Case:
    """A classifier to sweep.

    Attributes:
        config: of the Hugging Face model.
        dtype: of its weights.
        examples: how many are run.
        sample: sets that the loops run.
        rounds: how often everything is timed.
    """

    config: Any
    dtype: str
    examples: int
    sample: int
    rounds: int

    def model(self, device: str, attention: str | None = None) -> Any:
        """The Hugging Face model, the same every time; None: transformers chooses its attention."""
        torch.manual_seed(0)
        with torch.device(device):
            made = hf.AutoModelForSequenceClassification.from_config(
                self.config, dtype=DTYPES[self.dtype], attn_implementation=attention
            )
        return made.eval().requires_grad_(False)

    def bridge(self, device: str) -> Any:
        """What mechcore works on."""
        made = self.model(device, "eager")
        return load_model(_bridge("random", type(made).__name__, made, None))

    def data(self) -> EncodedExamples:
        found = examples(self.examples, vocabulary=self.config.vocab_size)
        types = found.token_type_ids if self.config.model_type == "bert" else None
        return replace(found, token_type_ids=types)


def bert(**changes: Any) -> Any:
    return hf.BertConfig(**NAMES, **changes)


def gpt2(**changes: Any) -> Any:
    return hf.GPT2Config(**NAMES, pad_token_id=0, **changes)


def llama(shape: Shape) -> Any:
    config = shape.config()
    config.update({**NAMES, "pad_token_id": 0})
    return config


LLAMA_8B = Shape(32, 4096, 14336, 32, 8, 128256, tied=False, d_head=128)
SMALL = Shape(2, 32, 64, 4, 2, 1100, d_head=8)


def cases(quick: bool) -> dict[str, Case]:
    """Models by name, the one that is pruned first."""
    if quick:
        sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 1100}
        small: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 1100}
        return {
            "BERT base": Case(bert(**sizes), "float32", 4, 2, 1),
            "GPT-2": Case(gpt2(**small), "float32", 4, 2, 1),
            "Llama 3.2 1B": Case(llama(SMALL), "float32", 4, 2, 1),
            "Llama 3.1 8B": Case(llama(SMALL), "bfloat16", 4, 2, 1),
        }
    return {
        "BERT base": Case(bert(), "float32", 256, 8, 3),
        "GPT-2": Case(gpt2(), "float32", 256, 8, 3),
        "Llama 3.2 1B": Case(llama(DECODERS["Llama-3.2-1B"]), "bfloat16", 64, 6, 2),
        "Llama 3.1 8B": Case(llama(LLAMA_8B), "bfloat16", 16, 4, 1),
    }


Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Timed:
    """A variant that was run.

    Attributes:
        seconds: of every round.
        peak: of memory, MiB.
        found: what the last run returned.
    """

    seconds: list[float]
    peak: float
    found: Any


def timed(run: Callable[[], Any], rounds: int, device: str) -> Timed:
    """Run something once to warm up, and then for every round."""
    found = run()
    forget_peak(device)
    seconds = []
    for _ in range(rounds):
        finish(device)
        start = time.perf_counter()
        found = run()
        finish(device)
        seconds.append(time.perf_counter() - start)
    return Timed(seconds, peak(device), found)


def finish(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def cleared(device: str) -> None:
    """Give back what no variant holds any more."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def swept(
    model: Any,
    every: Sequence[ComponentSet],
    chosen: Sequence[Component],
    data: EncodedExamples,
    means: MeanActivations,
    engine: Any,
) -> Tensor:
    """Sweep all sets; logits without each of some heads, [head, example, class]."""
    options: dict[str, Any] = {"engine": engine, "batch_size": BATCH_SIZE, "role": "ood"}
    without = ablate(model, every, data, means, **options).without
    return torch.stack([torch.from_numpy(without[ComponentSet((h,))].logits) for h in chosen])


def sweep_rows(name: str, case: Case, device: str) -> Iterator[Row]:
    """Every component of a model alone, by every variant.

    Raises:
        SystemExit: logits differ.
    """
    model, data = case.bridge(device), case.data()
    means = MeanActivations.compute(model, data.part(range(min(4, len(data)))), n_samples=0)
    shape = ModelShape.of(model)
    every = sets.singles(shape)
    heads = list(shape.heads)
    chosen = heads[:: max(1, len(heads) // case.sample)][: case.sample]
    left_out: dict[str, str] = {}
    found = {
        f"mechcore {engine}": timed(
            partial(swept, model, every, chosen, data, means, engine), case.rounds, device
        )
        for engine in ENGINES
    }
    del model
    cleared(device)
    plain = case.model(device)
    looped: Sequence[Heads] = [((head.layer, head.head),) for head in chosen]
    for loop in LOOPS:
        try:
            made = VARIANTS[loop](plain, means, device)
            run = partial(made.logits, looped, data, BATCH_SIZE)
            one = timed(run, case.rounds, device)
        except Exception as error:  # of other packages, or of those that are not there
            if VARIANTS[loop].package is None:
                raise
            left_out[loop] = (str(error).strip() or type(error).__name__).splitlines()[0]
            continue
        share = (len(every) + 1) / len(chosen)
        found[loop] = replace(one, seconds=[share * each for each in one.seconds])
    expected = found[RAW].found.float()
    for variant, each in found.items():
        apart = float((each.found.float() - expected).abs().max() / expected.abs().max())
        if not apart < AGREEMENT[case.dtype]:
            raise SystemExit(f"{name}, {variant}: logits differ from raw hooks' by {apart:.2g}")
        ratios = zip(found[AS_WRITTEN].seconds, each.seconds, strict=True)
        yield {
            "part": "sweep",
            "model": name,
            "dtype": case.dtype,
            "variant": variant,
            "sets": len(every),
            "examples": len(data),
            "seconds": min(each.seconds),
            f"times as fast as {AS_WRITTEN}": spread([a / b for a, b in ratios]),
            "peak MiB": each.peak,
            "logits apart": apart,
        }
    for variant, why in left_out.items():
        yield {"part": "sweep", "model": name, "variant": variant, "left out": why}
    del plain
    cleared(device)


def pruning_rows(name: str, case: Case, device: str, steps: int) -> Iterator[Row]:
    """A pruning step of several masks in one batch beside one after another."""
    model = case.bridge(device)
    data = replace(case, examples=max(case.examples, 16 * BATCH)).data()
    means = MeanActivations.compute(model, data.part(range(4)), n_samples=0)

    def run(trained: Sequence[Ours]) -> None:
        for _ in range(steps):
            for each in trained:
                each.step()

    with frozen(model):
        ours = partial(Ours, model, data, means)
        variants = {
            f"{MASKS} in turn": [ours(1, "float32") for _ in range(MASKS)],
            f"{MASKS} in one batch": [ours(MASKS, "float32")],
            f"{MASKS} in one batch, bfloat16": [ours(MASKS, "bfloat16")],
        }
        found = {
            variant: timed(partial(run, trained), case.rounds, device)
            for variant, trained in variants.items()
        }
    first = next(iter(found.values()))
    for variant, each in found.items():
        ratios = zip(first.seconds, each.seconds, strict=True)
        yield {
            "part": "pruning step",
            "model": name,
            "dtype": case.dtype,
            "variant": variant,
            "seconds": min(each.seconds) / steps,
            f"times as fast as {MASKS} in turn": spread([a / b for a, b in ratios]),
            "peak MiB": each.peak,
        }
    del model
    cleared(device)


def markdown(rows: Sequence[Row]) -> str:
    """The table as text."""

    def cell(value: Any) -> str:
        if isinstance(value, (tuple, list)):
            return "{:.2f} ({:.2f}-{:.2f})".format(*value)
        if isinstance(value, float):
            return "" if value != value else f"{value:.3g}" if value < 100 else f"{value:.0f}"
        return "" if value is None else str(value)

    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns)]
    lines += [[cell(row.get(name)) for name in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", help="some of the models, by commas; all by default")
    parser.add_argument("--json", type=Path, help="where to save the figures")
    parser.add_argument("--markdown", type=Path, help="where to save the table")
    parser.add_argument(
        "--quick", action="store_true", help="toy sizes: tries every part, figures mean nothing"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    known = cases(options.quick)
    wanted = options.models.split(",") if options.models else list(known)
    rows: list[Row] = []
    for name in wanted:
        rows += sweep_rows(name, known[name], options.device)
        if name == next(iter(known)):
            steps = 1 if options.quick else 3
            rows += pruning_rows(name, known[name], options.device, steps)
        print(pd.DataFrame(row for row in rows if row["model"] == name).to_string(index=False))
    found = {"machine": machine(options.device), "quick": options.quick, "rows": rows}
    print(f"\n{found['machine']}\n\n{markdown(rows)}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.markdown:
        options.markdown.write_text(markdown(rows))


if __name__ == "__main__":
    main()
