"""Attention knockouts of all heads by all categories, beside ablations and a loop of raw hooks.

The model is random, of MiniLM's shape (6 layers, 12 heads, width 384); the examples are pairs with
the lengths of MNLI's, whose words are known. The loop hides a category from the scores of one head
in whole forwards, of every eighth head; its time is that of all. Logits are compared.

    python benchmarks/knockout_sweep.py [--examples 64] [--rounds 3] [--json FILE]
    python benchmarks/knockout_sweep.py --quick
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from heads import BATCH, pairs
from measuring import shortest, spread
from shapes import minilm_shaped

from mechcore.ablation import Ablations, ComponentSet, ablate, sets
from mechcore.attention.categories import TokenInfo, claims
from mechcore.attention.knockouts import knockout
from mechcore.components import Component
from mechcore.data.encoding import EncodedExamples
from mechcore.masking.means import MeanActivations
from mechcore.models.hooks import hooked
from mechcore.models.protocol import forward

SINGLES, OURS, RAW = "ablations", "knockouts", "raw hooks"


def hidden_from(scores: torch.Tensor, hook: Any, head: int, keys: torch.Tensor) -> torch.Tensor:
    """Scores of minus infinity for some keys of a head."""
    out = scores.clone()
    out[:, head] = out[:, head].masked_fill(keys, -torch.inf)
    return out


@torch.no_grad()
def looped(
    model: Any, data: EncodedExamples, heads: Sequence[Component], categories: Sequence[str]
) -> dict[tuple[str, str], np.ndarray]:
    """The logits of whole forwards by head and category."""
    logits: dict[tuple[str, str], np.ndarray] = {}
    for batch in data.batches(BATCH):
        keys = claims(TokenInfo.of(batch, causal=False))
        for head in heads:
            name = f"blocks.{head.layer}.attn.hook_attn_scores"
            for category in categories:
                hook = partial(hidden_from, head=head.head, keys=keys[category])
                with hooked(model, [(name, hook)]):
                    out = forward(model, batch)
                of = logits.setdefault((str(head), category), np.empty((len(data), out.shape[1])))
                of[batch["index"].numpy()] = out.numpy()
    return logits


def measured(n: int, rounds: int, every: int, only: int | None) -> dict[str, Any]:
    """Ratios of times within rounds, and the largest difference between logits."""
    model, data = minilm_shaped("cpu"), pairs(n)
    categories = list(claims(TokenInfo.of(next(data.batches(BATCH)), causal=False)))[:only]
    means = MeanActivations.compute(model, data)
    alone = sets.singles(model, mlps=False)
    looped_over = [c for one in alone[::every] for c in one.components]
    found: dict[str, Ablations] = {}
    raw: dict[tuple[str, str], np.ndarray] = {}

    def ours() -> None:
        for category in categories:
            found[category] = ablate(model, alone, data, means, fill=knockout(category))

    runs = {
        SINGLES: lambda: ablate(model, alone, data, means),
        OURS: ours,
        RAW: lambda: raw.update(looped(model, data, looped_over, categories)),
    }
    timed = [
        {name: shortest(run, 1, "cpu")[0] for name, run in runs.items()} for _ in range(rounds)
    ]
    apart = [
        np.abs(found[category].without[ComponentSet.of([head])].logits - logits).max()
        for (head, category), logits in raw.items()
    ]
    n_times, scale = len(categories), len(alone) / len(looped_over)
    return {
        "examples": n,
        "heads": len(alone),
        "categories": categories,
        "seconds of each round": timed,
        "cost of a category, in sweeps": spread([t[OURS] / (n_times * t[SINGLES]) for t in timed]),
        "times as fast as raw hooks": spread([t[RAW] * scale / t[OURS] for t in timed]),
        "largest difference": float(max(apart)),
    }


def main() -> None:
    """Measure, and print or save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=int, default=8, help="heads of the loop: one in so many")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes = (4, 1, 36, 2) if args.quick else (args.examples, args.rounds, args.every, None)
    text = json.dumps(measured(*sizes), indent=1)
    print(text)
    if args.json:
        args.json.write_text(text)


if __name__ == "__main__":
    main()
