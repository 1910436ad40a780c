"""All figures that a GPU is to give, in one command of ten minutes at most.

    python benchmarks/gpu.py [--device cuda] [--json FILE] [--markdown FILE]
    python benchmarks/gpu.py --quick --device cpu

Classifiers of exact shapes (BERT base, GPT-2, Llama 3.2 1B, Llama 3.1 8B) with random weights, made
on the device in the precision they run in, on examples with the lengths of MNLI pairs in batches of
64:

- *sweeps*: every head and MLP ablated alone, by the tree and by restarts, and on BERT base 1000
  pairs of heads by the tree, there also in bfloat16 and float16. Beside them loops with one forward
  of the whole model for each set: raw hooks as users write them (Hugging Face's model with the
  attention that transformers chooses, batches in the data's order), the same in batches sorted by
  length, and pyvene and nnsight if they are installed. Loops run a sample of the sets, and their
  time is multiplied up to all sets and the full model. All logits are compared.
- *pruning*: a step of 12 masks in one batch beside 12 steps of one, on BERT base, in float32 and in
  bfloat16, which the preset `fast` takes on a GPU.

Peaks are of the device's memory while a variant runs, weights included. Times are the shortest of
the rounds; ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from full_forwards import VARIANTS, Heads
from gpu_models import Case, cases
from measuring import forget_peak, peak, spread
from prune_step import BATCH, Ours
from sweep import machine
from sweep_variants import RAW, component_set
from torch import Tensor

from mechcore.ablation import ComponentSet, ablate, sets
from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.masking.means import MeanActivations
from mechcore.models.protocol import frozen

BATCH_SIZE, MASKS = 64, 12
LOOPS = ("raw hooks, unsorted", RAW, "pyvene", "nnsight")
AS_WRITTEN = LOOPS[0]
TREE, RESTART = "mechcore tree", "mechcore restart"
SINGLES = "singles"
PRECISIONS = {f"{TREE}, {dtype}": dtype for dtype in ("bfloat16", "float16")}
"""Of variants that have another than the model."""

PAIRS = 1000
AGREEMENT = {"float32": 1e-2, "bfloat16": 0.3, "float16": 0.1}
"""How far logits of random weights may be apart, times their largest; GPUs round in their ways."""


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


def timed(
    what: str,
    run: Callable[[], Any],
    rounds: int,
    device: str,
    warm_up: Callable[[], Any] | None = None,
) -> Timed:
    """Run something once to warm up, or something smaller like it, and then for every round."""
    found = (warm_up or run)()
    forget_peak(device)
    seconds = []
    for _ in range(rounds):
        finish(device)
        start = time.perf_counter()
        found = run()
        finish(device)
        seconds.append(time.perf_counter() - start)
    print(f"{what}: {min(seconds):.3g} s", flush=True)
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


def sweeps(case: Case, shape: ModelShape) -> dict[str, tuple[list[ComponentSet], list[Heads]]]:
    """Sets to ablate by name of the sweep, and those among them that loops run."""

    def sample(every: Sequence[Heads]) -> list[Heads]:
        return list(every[:: max(1, len(every) // case.sample)][: case.sample])

    heads: list[tuple[int, int]] = [(h.layer, h.head) for h in shape.heads]
    found = {SINGLES: (sets.singles(shape), sample([(head,) for head in heads]))}
    if case.in_full:
        every: list[Heads] = list(itertools.combinations(heads, 2))
        order = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))
        pairs = [every[i] for i in order[:PAIRS].tolist()]
        found[f"{len(pairs)} pairs"] = ([component_set(each) for each in pairs], sample(pairs))
    return found


def swept(
    model: Any,
    every: Sequence[ComponentSet],
    chosen: Sequence[Heads],
    means: MeanActivations,
    options: dict[str, Any],
    data: EncodedExamples,
) -> Tensor:
    """Sweep all sets; logits without some of them, [set, example, class]."""
    found = ablate(model, every, data, means, batch_size=BATCH_SIZE, split="ood", **options)
    without = found.without
    return torch.stack([torch.from_numpy(without[component_set(h)].logits) for h in chosen])


def looped(
    plain: Any,
    loop: str,
    chosen: Sequence[Heads],
    means: MeanActivations,
    device: str,
    data: EncodedExamples,
) -> Tensor:
    """Logits without some sets, one forward for each, [set, example, class]."""
    return VARIANTS[loop](plain, means, device).logits(chosen, data, BATCH_SIZE)


def sweep_rows(name: str, case: Case, device: str) -> Iterator[Row]:
    """Sweeps of a model by every variant, loops first."""
    model, data = case.bridge(device), case.data()
    means = MeanActivations.compute(model, data.part(range(min(4, len(data)))), n_samples=0)
    wanted = sweeps(case, ModelShape.of(model))
    found: dict[str, dict[str, Timed]] = {sweep: {} for sweep in wanted}
    left_out: list[Row] = []

    def note(
        sweep: str, variant: str, run: Callable[..., Tensor], some: Any, share: float = 1
    ) -> None:
        """Time a variant; ``some`` of the data are enough to warm up."""
        rounds = case.rounds if sweep == SINGLES else 1
        try:
            what = f"{name}, {sweep}, {variant}"
            each = timed(what, partial(run, data), rounds, device, partial(run, some))
        except Exception as error:  # of other packages, of those not there, of what an engine finds
            if variant in (RAW, AS_WRITTEN):
                raise
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            left_out.append({"model": name, "what": sweep, "variant": variant, "left out": why})
            return
        seconds = [share * each for each in each.seconds]
        found[sweep][variant] = replace(each, seconds=seconds)

    plain = case.model(device)
    for sweep, (every, chosen) in wanted.items():
        for loop in LOOPS:
            run = partial(looped, plain, loop, chosen, means, device)
            note(sweep, loop, run, data, (len(every) + 1) / len(chosen))
    del plain
    cleared(device)
    engines: dict[str, dict[str, Any]] = {TREE: {"engine": "tree"}, RESTART: {"engine": "restart"}}
    for variant, dtype in PRECISIONS.items() if case.in_full else ():
        engines[variant] = {"engine": "tree", "precision": dtype}
    fewer = data.part(range(-(-len(data) // 4)))
    for sweep, (every, chosen) in wanted.items():
        for variant, options in engines.items():
            if variant == RESTART and sweep != SINGLES:
                continue
            note(sweep, variant, partial(swept, model, every, chosen, means, options), fewer)
        yield from compared(name, case, sweep, len(every), len(data), found[sweep])
    yield from left_out
    del model
    cleared(device)


def compared(
    name: str, case: Case, sweep: str, n_sets: int, n: int, found: dict[str, Timed]
) -> Iterator[Row]:
    """Rows of one sweep."""
    expected = found[RAW].found.float()
    for variant, each in found.items():
        apart = float((each.found.float() - expected).abs().max() / expected.abs().max())
        dtype = PRECISIONS.get(variant, case.dtype)
        yield {
            **measured(name, sweep, variant, dtype, found, AS_WRITTEN),
            "sets": n_sets,
            "examples": n,
            "logits apart": apart,
        }


def measured(
    name: str, what: str, variant: str, dtype: str, found: dict[str, Timed], beside: str
) -> Row:
    """What was measured of a variant, with the ratio to another."""
    each = found[variant]
    ratios = zip(found[beside].seconds, each.seconds, strict=True)
    return {
        "model": name,
        "what": what,
        "variant": variant,
        "dtype": dtype,
        "seconds": min(each.seconds),
        "times as fast": spread([a / b for a, b in ratios]),
        "beside": beside,
        "peak MiB": each.peak,
    }


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
        for dtype in ("float32", "bfloat16"):
            in_turn = [ours(1, dtype) for _ in range(MASKS)]
            found: dict[str, Timed] = {}
            for variant, trained in (("in turn", in_turn), ("in one batch", [ours(MASKS, dtype)])):
                what = f"{name}, {steps} steps {variant}, {dtype}"
                each = timed(what, partial(run, trained), case.rounds, device)
                found[variant] = replace(each, seconds=[k / steps for k in each.seconds])
            for variant in found:
                yield measured(
                    name, f"pruning step, {MASKS} masks", variant, dtype, found, "in turn"
                )
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
    known_machine, rows = machine(options.device), list[Row]()
    for name in wanted:
        rows += sweep_rows(name, known[name], options.device)
        if known[name].in_full:
            steps = 1 if options.quick else 10
            rows += pruning_rows(name, known[name], options.device, steps)
        shown = pd.DataFrame(row for row in rows if row["model"] == name)
        print(shown.to_string(index=False), flush=True)
        if options.json:  # after every model, in case the time runs out
            found = {"machine": known_machine, "quick": options.quick, "rows": rows}
            options.json.write_text(json.dumps(found, indent=1))
    print(f"\n{known_machine}\n\n{markdown(rows)}")
    if options.markdown:
        options.markdown.write_text(markdown(rows))
    for row in rows:
        if not row.get("logits apart", 0.0) < AGREEMENT[row.get("dtype", "float32")]:
            raise SystemExit(f"logits differ from those of raw hooks: {row}")


if __name__ == "__main__":
    main()
