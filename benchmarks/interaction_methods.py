"""How well each way to predict interactions ranks all pairs, beside ablating them all.

    python benchmarks/interaction_methods.py [--examples 100] [--components all] [--csv FILE]

On the embedded encoder and its out-of-domain examples: Spearman's rho with the exact interactions
on the margin, over all pairs; how many of the pairs with the largest interactions are among as many
that are predicted to be largest; passes per example; and seconds of the processor. Exact ones are
of the same examples, so nothing here is about other data.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch
from scipy import stats

from mechcore.ablation import ComponentSet
from mechcore.ablation.predicting import INTERACTION_METHODS, PairRequest, Predictions
from mechcore.ablation.settings import SCREENING_SETS
from mechcore.components import KINDS, ModelShape, parse_components
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.encoded import as_encoded
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import tiny_encoder_dir

EXACT = "exact"


def row(name: str, found: Predictions, exact: Mapping[ComponentSet, float], top: int) -> dict:
    """How a method does beside the exact interactions."""
    pairs = list(exact)
    table = pd.DataFrame(
        {"exact": [exact[p] for p in pairs], "predicted": [found.interactions[p] for p in pairs]}
    )
    largest, wanted = (set(table[column].nlargest(top).index) for column in ("predicted", "exact"))
    return {
        "method": name,
        "rho": stats.spearmanr(table["exact"], table["predicted"]).statistic,
        "recall": len(largest & wanted) / len(wanted),
        "forwards": found.cost.forwards,
        "backwards": found.cost.backwards,
        "fit": float("nan") if found.fit is None else found.fit,
    }


def compared(request: PairRequest, methods: Sequence[str], top: int) -> pd.DataFrame:
    """A row for each method, the exact one first."""
    rows, exact = [], {}
    for name in [EXACT, *(each for each in methods if each != EXACT)]:
        start = time.process_time()
        found = INTERACTION_METHODS[name](request)
        seconds = time.process_time() - start
        if name == EXACT:
            exact = dict(found.interactions)
        rows.append(row(name, found, exact, top) | {"seconds": seconds})
        print(f"{name}: {seconds:.0f} s", flush=True)
    return pd.DataFrame(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--components", default="all", help="heads, mlps, all, or names by commas")
    parser.add_argument("--methods", default=",".join(INTERACTION_METHODS), help="by commas")
    parser.add_argument("--sets", type=int, default=SCREENING_SETS, help="that proxy is fitted on")
    parser.add_argument("--top", type=int, default=20, help="how many pairs to recall")
    parser.add_argument("--train", type=int, default=1000, help="examples that means are taken of")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--csv", type=Path, help="file for the table")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model = load_model(tiny_encoder_dir())
    train = as_encoded(model, tiny_world.generate("train", options.train, options.seed))
    data = as_encoded(model, tiny_world.generate("ood", options.examples, options.seed), role="ood")
    kind = options.components
    named = ModelShape.of(model).kind(kind) if kind in KINDS else parse_components(kind.split(","))
    request = PairRequest(
        model,
        data,
        MeanActivations.compute(model, train, n_samples=0),
        sorted(named),
        n_examples=options.examples,
        n_sets=options.sets,
        seed=options.seed,
        sweep={"role": "ood"},
    )
    table = compared(request, options.methods.split(","), options.top)
    print(f"{len(request.pairs)} pairs, {len(data)} examples, recall at {options.top}")
    print(table.round(2).to_string(index=False))
    if options.csv:
        table.to_csv(options.csv, index=False)


if __name__ == "__main__":
    main()
