"""The findings of a run in plain words: formatted from its tables, and no more than they show."""

from __future__ import annotations

import pandas as pd

from mechcore.report.blocks import Tile
from mechcore.report.groups import data_sets, of_data, proper_subsets
from mechcore.report.run_folder import SINGLE, RunFolder
from mechcore.wording import (
    ALL,
    FULL,
    count,
    effect,
    interval,
    percent,
    role_name,
    small,
)


def tiles(run: RunFolder) -> list[Tile]:
    """Headline numbers, as many as the run has tables for."""
    found: list[Tile] = []
    accuracy = run.table("accuracy")
    if accuracy is not None:
        full = accuracy[(accuracy["subnetwork"] == FULL) & (accuracy["subset"] == ALL)]
        for role, data in data_sets(full):
            row = of_data(full, role, data).iloc[0]
            label = f"Full model, {role_name(role)}"
            ends = interval(row["accuracy_low"], row["accuracy_high"], "accuracy", signed=False)
            note = f"{ends} on {data}{_over_subsets(accuracy, role, data)}"
            found.append(Tile(label, percent(row["accuracy"]), note))
    summaries = run.filled("core_summary")
    if summaries is not None:
        summary = summaries.iloc[0]
        note = f"of {count(summary['n_heads'], 'head')}"
        if pd.notna(summary["expected_by_chance"]) and not run.of_one_draw:
            note += f"; {small(summary['expected_by_chance'])} expected by chance"
        found.append(Tile("Heuristic core", count(summary["core_size"], "head"), note))
    worst = worst_single(run)
    if worst is not None:
        value = f"{effect(-worst['accuracy_drop'], 'accuracy', unit=False)} points"
        note = f"{worst['data']}{_over_subsets(accuracy, 'ood', worst['data'])}"
        found.append(Tile(f"Without {worst['set']}, out-of-domain", value, note))
    return found


def _over_subsets(accuracy: pd.DataFrame | None, role: str, data: str) -> str:
    if accuracy is None:
        return ""
    n = len(proper_subsets(accuracy, role, data))
    return f", all examples of {count(n, 'subset')}" if n else ""


def worst_single(run: RunFolder) -> pd.Series | None:
    """The single ablation with the largest drop over all examples of an out-of-domain set."""
    ablation = run.table("ablation")
    if ablation is None:
        return None
    chosen = (
        (ablation["kind"] == SINGLE) & (ablation["role"] == "ood") & (ablation["subset"] == ALL)
    )
    singles = ablation[chosen].dropna(subset=["accuracy_drop"])
    if len(singles) == 0 or singles["accuracy_drop"].max() <= 0:
        return None
    return singles.iloc[int(singles["accuracy_drop"].argmax())]
