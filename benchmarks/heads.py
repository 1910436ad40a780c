"""Scoring what heads attend to, compared with plain forwards of the same batches.

The model is random, of MiniLM's shape (6 layers, 12 heads, width 384); the examples are pairs with
the lengths of MNLI's, and one word in three of the second text comes from the first.

    python benchmarks/heads.py [--examples 10000] [--rounds 3] [--device cuda] [--json FILE]

Each round runs both variants once, in turn, and the ratio is within rounds. Peak memory is that of
a process that runs only one variant: on all examples, or the longest batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from measuring import peak, peak_alone, spread
from shapes import examples, minilm_shaped

from mechcore import categorize_heads
from mechcore.data.encoding import EncodedExamples
from mechcore.data.tokens import SPECIAL
from mechcore.models.protocol import forward

BATCH = 64
BARE, SCORED = "forwards", "categorize_heads"


def pairs(n: int) -> EncodedExamples:
    """Two texts between [CLS] and two [SEP]; every token is a word."""
    data, rng = examples(n), np.random.default_rng(1)
    ids, segments, words, separators = [], [], [], []
    for row in data.input_ids:
        size, half = len(row), len(row) // 2
        tokens = np.array(row)
        second = np.arange(half + 1, size - 1)
        again = second[rng.random(len(second)) < 1 / 3]
        if half > 1:
            tokens[again] = rng.choice(tokens[1:half], len(again))
        is_separator = np.isin(np.arange(size), (half, size - 1))
        special = is_separator | (np.arange(size) == 0)
        ids.append(tokens.tolist())
        segments.append(np.where(special, SPECIAL, np.arange(size) > half).tolist())
        words.append(np.where(special, SPECIAL, tokens).tolist())
        separators.append(is_separator.astype(int).tolist())
    return replace(data, input_ids=ids, segments=segments, words=words, separators=separators)


@torch.no_grad()
def run_forwards(model: Any, data: EncodedExamples) -> None:
    for batch in data.batches(BATCH):
        forward(model, batch)


def run_scores(model: Any, data: EncodedExamples) -> None:
    categorize_heads(model, data, batch_size=BATCH)


VARIANTS: dict[str, Callable[[Any, EncodedExamples], None]] = {
    BARE: run_forwards,
    SCORED: run_scores,
}


def seconds(run: Callable[[], None], clock: Callable[[], float], device: str) -> float:
    start = clock()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def longest_batch(data: EncodedExamples) -> EncodedExamples:
    return data.part(next(data.batches(BATCH))["index"].tolist())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="processor time, not elapsed time")
    parser.add_argument("--json", type=Path, help="where to save the figures")
    parser.add_argument("--only", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--one-batch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model, data = minilm_shaped(options.device), pairs(options.examples)
    if options.only:
        VARIANTS[options.only](model, longest_batch(data) if options.one_batch else data)
        print(json.dumps(peak(options.device)))
        return
    clock = time.process_time if options.cpu_time else time.perf_counter
    for run in VARIANTS.values():
        run(model, longest_batch(data))  # warm up
    timed = [
        {
            n: seconds(partial(run, model, data), clock, options.device)
            for n, run in VARIANTS.items()
        }
        for _ in range(options.rounds)
    ]
    common = [f"--examples={options.examples}", f"--device={options.device}"]
    common.append(f"--threads={options.threads}")
    memory = {
        (name, scope): peak_alone(__file__, [*common, "--only", name, *flags])
        for name in VARIANTS
        for scope, flags in (("longest batch", ["--one-batch"]), ("all", []))
    }
    rows = [
        {
            "variant": name,
            "ms per example": 1000 * statistics.median(t[name] for t in timed) / len(data),
            "times the forwards": "{:.2f} ({:.2f}-{:.2f})".format(
                *spread([t[name] / t[BARE] for t in timed])
            ),
            "peak MiB, longest batch": round(memory[name, "longest batch"]),
            "peak MiB, all": round(memory[name, "all"]),
        }
        for name in VARIANTS
    ]
    print(f"{len(data)} pairs, batches of {BATCH}, {options.rounds} rounds")
    print(pd.DataFrame(rows).to_string(index=False))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
