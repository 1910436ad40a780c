"""All GPU figures, in one command of six minutes.

    python benchmarks/gpu.py [--device cuda] [--minutes 6] [--json FILE] [--markdown FILE]
    python benchmarks/gpu.py --quick --device cpu

Classifiers of exact shapes (BERT base, GPT-2, Llama 3.2 1B, Llama 3.1 8B) with random weights,
built on the device in the precision of the run, on examples with the lengths of MNLI pairs in
batches of 64:

- *sweeps*: every head and MLP ablated alone, by the tree and by restarts; on BERT base also 1000
  pairs of heads by the tree, and the tree in bfloat16 and float16. They are compared with loops of
  one forward of the whole model per set: raw hooks as users write them (Hugging Face's model with
  transformers' default attention, batches in the data's order), the same with batches sorted by
  length, and pyvene and nnsight if installed. Loops run a sample of the sets, and their time is
  extrapolated to all sets and the full model. All logits are compared.
- *pruning*: one step of 12 masks in a batch against 12 steps of one, on BERT base, in float32 and
  in bfloat16, which the preset `fast` uses on a GPU.

The most important figures come first, and each is in the JSON file as soon as it is known. Runs
that would not finish in time, judged by their warm-up, are skipped and listed.

Peaks are device memory while a variant runs, weights included. Times are the shortest of the
rounds; ratios are within rounds.
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
"""Maximum difference of random models' logits, relative to the largest; GPUs round differently."""


Row = dict[str, Any]


class OutOfTime(Exception):
    """A run that would not finish in time."""


class Clock:
    """Minutes to spend, from now."""

    def __init__(self, minutes: float) -> None:
        self.end = time.perf_counter() + 60 * minutes

    @property
    def is_over(self) -> bool:
        return time.perf_counter() > self.end

    def check(self, seconds: float = 0.0) -> None:
        """Raise unless this many seconds are left."""
        if seconds > (left := self.end - time.perf_counter()):
            raise OutOfTime(f"out of time: about {seconds:.0f} s of work, {left:.0f} s left")


@dataclass(frozen=True, eq=False)
class Timed:
    """A finished run of a variant.

    Attributes:
        seconds: of every round.
        peak: of memory, MiB.
        result: what the last run returned.
    """

    seconds: list[float]
    peak: float
    result: Any


def timed(
    what: str,
    run: Callable[[], Any],
    rounds: int,
    device: str,
    clock: Clock,
    warm_up: Callable[[], Any] | None = None,
    times: float = 1,
) -> Timed:
    """Warm up with one run, or with ``warm_up``, which is ``times`` shorter, and run every round.

    Raises:
        OutOfTime: it would not finish in time.
    """
    clock.check()
    start = time.perf_counter()
    result = (warm_up or run)()
    finish(device)
    clock.check(times * rounds * (time.perf_counter() - start))
    forget_peak(device)
    seconds = []
    for _ in range(rounds):
        finish(device)
        start = time.perf_counter()
        result = run()
        finish(device)
        seconds.append(time.perf_counter() - start)
    print(f"{what}: {min(seconds):.3g} s", flush=True)
    return Timed(seconds, peak(device), result)


def finish(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def cleared(device: str) -> None:
    """Free memory that no variant holds any more."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def sweeps(case: Case, shape: ModelShape) -> dict[str, tuple[list[ComponentSet], list[Heads]]]:
    """Sets to ablate by name of the sweep, and those among them that loops run."""

    def sample(every: Sequence[Heads]) -> list[Heads]:
        return list(every[:: max(1, len(every) // case.sample)][: case.sample])

    heads: list[tuple[int, int]] = [(h.layer, h.head) for h in shape.heads]
    wanted = {SINGLES: (sets.singles(shape), sample([(head,) for head in heads]))}
    if case.in_full:
        every: list[Heads] = list(itertools.combinations(heads, 2))
        order = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))
        pairs = [every[i] for i in order[:PAIRS].tolist()]
        wanted[f"{len(pairs)} pairs"] = ([component_set(pair) for pair in pairs], sample(pairs))
    return wanted


def swept(
    model: Any,
    every: Sequence[ComponentSet],
    chosen: Sequence[Heads],
    means: MeanActivations,
    options: dict[str, Any],
    data: EncodedExamples,
) -> Tensor:
    """Sweep all sets; logits without some of them, [set, example, class]."""
    ablations = ablate(model, every, data, means, batch_size=BATCH_SIZE, split="ood", **options)
    without = ablations.without
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


def sweep_rows(name: str, case: Case, device: str, clock: Clock) -> Iterator[Row]:
    """Sweeps of a model by every variant: by all loops, then by the engines."""
    model, data = case.bridge(device), case.data()
    means = MeanActivations.compute(model, data.part(range(min(4, len(data)))), n_samples=0)
    wanted, fewer = sweeps(case, ModelShape.of(model)), data.part(range(-(-len(data) // 4)))
    timings: dict[str, dict[str, Timed]] = {sweep: {} for sweep in wanted}

    def row(sweep: str, variant: str, run: Callable[..., Tensor], some: Any, share: float) -> Row:
        """Time a variant; ``some`` of the data suffice for warm-up."""
        every, rounds = wanted[sweep][0], case.rounds if sweep == SINGLES else 1
        runs, times = (partial(run, data), partial(run, some)), len(data) / len(some)
        try:
            what = f"{name}, {sweep}, {variant}"
            timing = timed(what, runs[0], rounds, device, clock, runs[1], times)
        except Exception as error:  # out of time, or from other packages or an engine
            if variant in (RAW, AS_WRITTEN) and not isinstance(error, OutOfTime):
                raise
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            return {"model": name, "what": sweep, "variant": variant, "left out": why}
        seconds = [share * taken for taken in timing.seconds]
        timings[sweep][variant] = replace(timing, seconds=seconds)
        dtype = PRECISIONS.get(variant, case.dtype)
        return {
            **measured(name, sweep, variant, dtype, timings[sweep], AS_WRITTEN),
            "sets": len(every),
            "examples": len(data),
            "logits apart": apart(timing.result, timings[sweep][AS_WRITTEN].result),
        }

    plain = case.model(device)
    for sweep, (every, chosen) in wanted.items():
        for loop in LOOPS:
            run = partial(looped, plain, loop, chosen, means, device)
            yield row(sweep, loop, run, data, (len(every) + 1) / len(chosen))
    del plain
    cleared(device)
    engines: dict[str, dict[str, Any]] = {TREE: {"engine": "tree"}, RESTART: {"engine": "restart"}}
    for variant, dtype in PRECISIONS.items() if case.in_full else ():
        engines[variant] = {"engine": "tree", "precision": dtype}
    for sweep, (every, chosen) in wanted.items():
        if AS_WRITTEN not in timings[sweep]:  # out of time
            continue
        for variant, options in engines.items():
            if variant != RESTART or sweep == SINGLES:
                run = partial(swept, model, every, chosen, means, options)
                yield row(sweep, variant, run, fewer, 1)
    del model
    cleared(device)


def apart(got: Tensor, expected: Tensor) -> float:
    """The largest difference of logits, relative to the largest of them."""
    return float((got.float() - expected.float()).abs().max() / expected.float().abs().max())


def measured(
    name: str, what: str, variant: str, dtype: str, timings: dict[str, Timed], beside: str
) -> Row:
    """The measurements of a variant, with the ratio to another."""
    own = timings[variant]
    ratios = zip(timings[beside].seconds, own.seconds, strict=True)
    return {
        "model": name,
        "what": what,
        "variant": variant,
        "dtype": dtype,
        "seconds": min(own.seconds),
        "times as fast": spread([a / b for a, b in ratios]),
        "beside": beside,
        "peak MiB": own.peak,
    }


def pruning_rows(name: str, case: Case, device: str, steps: int, clock: Clock) -> Iterator[Row]:
    """A pruning step of several masks in one batch, and of one after another."""
    model = case.bridge(device)
    data = replace(case, examples=max(case.examples, 16 * BATCH)).data()
    means = MeanActivations.compute(model, data.part(range(4)), n_samples=0)

    def run(trained: Sequence[Ours]) -> None:
        for _ in range(steps):
            for training in trained:
                training.step()

    with frozen(model):
        ours = partial(Ours, model, data, means)
        for dtype in ("float32", "bfloat16"):
            in_turn = [ours(1, dtype) for _ in range(MASKS)]
            timings: dict[str, Timed] = {}
            for variant, trained in (("in turn", in_turn), ("in one batch", [ours(MASKS, dtype)])):
                what = f"pruning step, {MASKS} masks"
                label = f"{name}, {steps} steps {variant}, {dtype}"
                try:
                    timing = timed(label, partial(run, trained), case.rounds, device, clock)
                except OutOfTime as error:
                    yield {"model": name, "what": what, "variant": variant, "left out": str(error)}
                    break
                timings[variant] = replace(timing, seconds=[k / steps for k in timing.seconds])
                yield measured(name, what, variant, dtype, timings, "in turn")
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
    parser.add_argument("--minutes", type=float, default=6, help="after which nothing is started")
    parser.add_argument("--models", help="some of the models, separated by commas; all by default")
    parser.add_argument("--json", type=Path, help="where to save the figures")
    parser.add_argument("--markdown", type=Path, help="where to save the table")
    parser.add_argument(
        "--quick", action="store_true", help="toy sizes: tries every part, figures mean nothing"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    clock, known = Clock(options.minutes), cases(options.quick)
    wanted = options.models.split(",") if options.models else list(known)
    known_machine, rows = machine(options.device), list[Row]()
    steps = 1 if options.quick else 10
    for name in wanted:
        case = known[name]
        if clock.is_over:
            rows.append({"model": name, "left out": "out of time"})
            continue
        parts = [sweep_rows(name, case, options.device, clock)]
        if case.in_full:
            parts.append(pruning_rows(name, case, options.device, steps, clock))
        for row in itertools.chain.from_iterable(parts):
            rows.append(row)
            if options.json:
                figures = {"machine": known_machine, "quick": options.quick, "rows": rows}
                options.json.write_text(json.dumps(figures, indent=1))
    print(f"\n{known_machine}\n\n{markdown(rows)}")
    if options.markdown:
        options.markdown.write_text(markdown(rows))
    for row in rows:
        if not row.get("logits apart", 0.0) < AGREEMENT[row.get("dtype", "float32")]:
            raise SystemExit(f"logits differ from those of raw hooks: {row}")


if __name__ == "__main__":
    main()
