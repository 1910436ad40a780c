"""Extractive scores against the number of counterfactual prompts of every point.

    python benchmarks/extractive_scores.py [--layers 4] [--points 20] [--rounds 1] [--json FILE]

The model is random, of GPT-2's shape; the points are implications of the 20 cities, one token per
word. It compares `mechcore.papers.extractive.scores.extractive_scores` in batches and point by
point with plain torch hooks on Hugging Face's model, which like the published code rerun everything
for every counterfactual (for the first points only). Each round runs all of them once, in turn;
ratios are within rounds. The scores must agree.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from measuring import spread
from plain_extractive import matrices, plain_scores
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from mechcore.models import load_model
from mechcore.models.checkpoint_files import without_bars
from mechcore.models.protocol import named_weights
from mechcore.papers.extractive.encoded import EncodedFacts, encode_facts
from mechcore.papers.extractive.facts import Facts, city_tasks
from mechcore.papers.extractive.scores import BATCH_SIZE, extractive_scores
from mechcore.papers.extractive.weights import WeightDelta, trainable_names

BATCHES, SINGLE, PLAIN = "mechcore, in batches", "mechcore, point by point", "plain hooks"
COUNTS = (1, 2, 5, 10)
STEP = 1e-3


def points(n: int, vocabulary: int) -> EncodedFacts:
    """The first implications of the first-hop task, with words spread over the vocabulary."""
    facts = city_tasks(0)[0].implications
    return encode_facts(facts, words_of(facts, vocabulary)).first(n)


def words_of(facts: Facts, vocabulary: int) -> PreTrainedTokenizerFast:
    texts = " ".join((*facts.prompts, *facts.options))
    words = sorted({word for word, _ in Whitespace().pre_tokenize_str(texts)})
    ids = {word: 1 + i * (vocabulary // (len(words) + 1)) for i, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(ids | {"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def models(layers: int, quick: bool) -> tuple[Any, dict[str, torch.Tensor], Any, WeightDelta]:
    """Hugging Face's model and a change of its matrices, and the same for a bridge."""
    torch.manual_seed(0)
    sizes = {"n_embd": 48, "n_head": 12, "vocab_size": 500} if quick else {}
    config = GPT2Config(n_layer=layers, attn_implementation="eager", **sizes)
    plain = GPT2LMHeadModel(config).eval()
    delta = {n: STEP * torch.randn(plain.get_parameter(n).shape) for n in matrices(plain)}
    after = copy.deepcopy(plain)
    with torch.no_grad():
        for name, change in delta.items():
            after.get_parameter(name).add_(change)
    with tempfile.TemporaryDirectory() as folder, without_bars():
        loaded = []
        for name, model in (("before", plain), ("after", after)):
            model.save_pretrained(Path(folder, name))
            loaded.append(load_model(Path(folder, name)))
    before, now = (named_weights(model) for model in loaded)
    names = trainable_names(loaded[0])
    return plain, delta, loaded[0], WeightDelta({n: now[n] - before[n] for n in names})


def counterfactuals(data: EncodedFacts, count: int) -> list[list[int]]:
    """The next points after each, cyclically."""
    return [[(row + 1 + i) % len(data) for i in range(count)] for row in range(len(data))]


def run_plain(
    plain: Any, delta: dict[str, torch.Tensor], data: EncodedFacts, n: int, count: int
) -> dict[str, torch.Tensor]:
    """Means over counterfactuals of the first points."""
    rows = []
    for row, others in enumerate(counterfactuals(data, count)[:n]):
        right = int(data.answers[row])
        scores = [
            plain_scores(
                plain, delta, data.prompt_ids[row], data.prompt_ids[other], data.option_ids, right
            )
            for other in others
        ]
        rows.append({name: torch.stack([s[name] for s in scores]).mean(0) for name in scores[0]})
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def run_mechcore(
    model: Any, delta: WeightDelta, data: EncodedFacts, batch_size: int, count: int
) -> dict[str, torch.Tensor]:
    scores = extractive_scores(
        model,
        data,
        delta,
        counterfactuals=counterfactuals(data, count),
        check=False,
        batch_size=batch_size,
    )
    return {
        f"{kind} {which}": getattr(getattr(scores, kind), which)
        for kind in ("informative", "upstream", "downstream")
        for which in ("heads", "mlps")
    }


def difference(scores: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest difference of a score, as a share of the largest score of its kind."""
    return max(
        float((scores[name][: len(plain)] - plain).abs().max() / plain.abs().max())
        for name, plain in expected.items()
    )


def seconds(run: Callable[[], Any], clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return clock() - start


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--points", type=int, default=20, help="2 to 20")
    parser.add_argument("--plain-points", type=int, default=1, help="points of the plain hooks")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a narrow model")
    parser.add_argument("--json", type=Path, help="where to save the figures")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    # CPU time for one thread, since other processes do not inflate it.
    clock = time.process_time if options.threads == 1 else time.perf_counter
    plain, plain_delta, model, delta = models(options.layers, options.quick)
    data = points(options.points, plain.config.vocab_size)
    n_plain = min(options.plain_points, len(data))
    few = {BATCHES: len(data), SINGLE: len(data), PLAIN: n_plain}
    runs: dict[str, Callable[[int], Any]] = {
        BATCHES: partial(run_mechcore, model, delta, data, BATCH_SIZE),
        SINGLE: partial(run_mechcore, model, delta, data, 1),
        PLAIN: partial(run_plain, plain, plain_delta, data, n_plain),
    }
    expected = runs[PLAIN](2)
    worst = max(difference(runs[name](2), expected) for name in (BATCHES, SINGLE))
    rounds = [
        {
            (name, count): seconds(partial(run, count), clock) / few[name]
            for count in options.counts
            for name, run in runs.items()
        }
        for _ in range(options.rounds)
    ]
    first = options.counts[0]
    rows = [
        {
            "variant": name,
            "counterfactuals": count,
            "seconds per point": statistics.median(times[name, count] for times in rounds),
            f"times {first}": "{:.2f} ({:.2f}-{:.2f})".format(
                *spread([times[name, count] / times[name, first] for times in rounds])
            ),
            "plain hooks take": "{:.1f} ({:.1f}-{:.1f})".format(
                *spread([times[PLAIN, count] / times[name, count] for times in rounds])
            ),
        }
        for name in runs
        for count in options.counts
    ]
    shape = f"{options.layers} layers of width {plain.config.n_embd}"
    print(f"{len(data)} points, {shape}, {options.rounds} rounds, {options.threads} threads")
    print(f"largest difference of scores, of the largest score: {worst:.1e}")
    print(pd.DataFrame(rows).round(4).to_string(index=False))
    if options.json:
        saved = {"largest difference": worst, "rows": rows}
        options.json.write_text(json.dumps(saved, indent=1))


if __name__ == "__main__":
    main()
