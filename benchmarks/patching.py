"""Activation patching of all heads: mechcore's sweep and `transformer_lens.patching`.

The model is a random HookedTransformer of GPT-2's shape, prompts are random tokens, and the metric
is the difference of two logits at the last position. A sweep by the margin of the same answers
shows the cost of the metric. Both give a number for every head, which are compared; mechcore has
them per example, with intervals.

    python benchmarks/patching.py [--examples 8] [--tokens 15] [--rounds 3] [--json FILE]
    python benchmarks/patching.py --quick
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import shortest, spread
from transformer_lens import HookedTransformer, HookedTransformerConfig, patching

from mechcore.ablation import sets, sweep

OURS, THEIRS, MARGIN = "mechcore, logit difference", "transformer_lens.patching", "mechcore, margin"
SMALL = {"layers": 2, "heads": 2, "width": 32, "vocabulary": 100}
GPT2 = {"layers": 12, "heads": 12, "width": 768, "vocabulary": 50257}


def random_model(shape: dict[str, int]) -> Any:
    """A HookedTransformer of this shape with random weights."""
    width, heads = shape["width"], shape["heads"]
    cfg = HookedTransformerConfig(
        n_layers=shape["layers"],
        n_heads=heads,
        d_model=width,
        d_head=width // heads,
        n_ctx=1024,
        d_vocab=shape["vocabulary"],
        act_fn="gelu_new",
        normalization_type="LN",
        device="cpu",
        seed=0,
    )
    return HookedTransformer(cfg).eval()


def variants(model: Any, n_examples: int, n_tokens: int) -> dict[str, Callable[[], torch.Tensor]]:
    """The timed functions: each gives the metric with each head patched."""
    generator = torch.Generator().manual_seed(0)
    size = (2, n_examples, n_tokens)
    clean, corrupted = torch.randint(1, model.cfg.d_vocab - 1, size, generator=generator)
    right, wrong = torch.randperm(model.cfg.d_vocab, generator=generator)[: 2 * n_examples].view(
        2, -1
    )
    rows = [
        {"prompt": bad, "counterfactual": good, "correct": int(r), "wrong": int(w)}
        for bad, good, r, w in zip(corrupted, clean, right, wrong, strict=True)
    ]

    def difference(logits: torch.Tensor) -> torch.Tensor:
        every = torch.arange(n_examples)
        return (logits[every, -1, right] - logits[every, -1, wrong]).mean()

    @torch.no_grad()
    def theirs() -> torch.Tensor:
        with contextlib.redirect_stderr(io.StringIO()):
            _, cache = model.run_with_cache(clean)
            effects = patching.get_act_patch_attn_head_out_all_pos(
                model, corrupted, cache, difference
            )
        return effects.flatten()

    def ours(metric: str) -> Callable[[], torch.Tensor]:
        heads = sets.singles(model, mlps=False)
        options: dict[str, Any] = {"fill": "counterfactual", "metric": metric}
        return lambda: torch.tensor(sweep(model, heads, rows, **options)[metric].to_numpy())

    return {THEIRS: theirs, OURS: ours("logit_difference"), MARGIN: ours("margin")}


def measured(shape: dict[str, int], n_examples: int, n_tokens: int, rounds: int) -> dict[str, Any]:
    """Times of each round, and the largest difference of the numbers."""
    made = variants(random_model(shape), n_examples, n_tokens)
    values: dict[str, torch.Tensor] = {}

    def kept(name: str) -> None:
        values[name] = made[name]()

    timed = [
        {name: shortest(partial(kept, name), 1, "cpu")[0] for name in made} for _ in range(rounds)
    ]
    return {
        "shape": shape,
        "examples": n_examples,
        "tokens": n_tokens,
        "seconds of each round": timed,
        "times as fast": spread([times[THEIRS] / times[OURS] for times in timed]),
        "cost beside the margin": spread([times[OURS] / times[MARGIN] for times in timed]),
        "largest difference": float((values[THEIRS] - values[OURS]).abs().max()),
        "largest value": float(values[THEIRS].abs().max()),
    }


def main() -> None:
    """Measure, and print or save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    shape, rounds = (SMALL, 1) if args.quick else (GPT2, args.rounds)
    result = measured(shape, args.examples, args.tokens, rounds)
    text = json.dumps(result, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text)


if __name__ == "__main__":
    main()
