"""The findings of a run in plain words: formatted from its tables, and no more than they show."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from mechcore.evaluation.p_values import FEW_CONTROLS
from mechcore.report.blocks import Tile
from mechcore.report.groups import data_sets, of_data, proper_subsets
from mechcore.report.run_folder import SINGLE, RunFolder
from mechcore.wording import (
    ALL,
    FULL,
    count,
    effect,
    interval,
    listed,
    p_value,
    percent,
    role_name,
    small,
    whole,
    with_interval,
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


def single_ablation(run: RunFolder) -> Iterator[str]:
    """What single core heads cost."""
    ablation = run.table("ablation")
    if ablation is None:
        return
    overall = ablation[ablation["subset"] == ALL]
    singles = overall[(overall["kind"] == SINGLE) & (overall["role"] == "ood")]
    if len(singles) == 0:
        return
    several = singles["set"].nunique() > 1
    if singles["accuracy_drop"].isna().all():
        yield "What ablating a single core head does to out-of-domain accuracy is not known."
        return
    yield from _worst(worst_single(run), overall, run.table("ablation_controls"), several=several)
    gains = singles[singles["accuracy_drop_high"] < 0]  # False where there is no interval
    if len(gains):
        best = gains.iloc[int(gains["accuracy_drop"].argmin())]
        text = (
            f"Without the core head {best['set']} out-of-domain accuracy is higher: "
            f"{_change(best)} on {best['data']}, at {percent(best['accuracy'])}"
        )
        yield f"{text}{_in_domain(overall, best['set'])}."


def _worst(
    worst: pd.Series | None,
    overall: pd.DataFrame,
    controls: pd.DataFrame | None,
    *,
    several: bool,
) -> Iterator[str]:
    if worst is None:
        heads = "any core head" if several else "the core head"
        yield f"Ablating {heads} alone does not lower out-of-domain accuracy."
        return
    name, data = worst["set"], worst["data"]
    low, high = worst["accuracy_drop_low"], worst["accuracy_drop_high"]
    which, most = ("Of the core heads, ablating", " most") if several else ("Ablating", "")
    text = (
        f"{which} {name} alone lowers out-of-domain accuracy{most}: {_change(worst)} on {data}, to "
        f"{percent(worst['accuracy'])}"
    )
    text += _in_domain(overall, name)
    beside = _beside(controls, "accuracy", name)
    if beside is not None and beside["n_controls"] > 0:
        change = effect(-beside["control_drop"], "accuracy")
        heads = count(beside["n_controls"], "other head")
        text += f". Ablating one of {heads} of its layer changes it by {change} on average"
        text += f" ({p_value(beside['p_control'])} of so large a change among these)"
    text += "."
    if low <= 0 <= high:
        text += " The interval includes zero, so this change may be no effect at all."
    if not math.isfinite(low):
        text += " Its interval is not known, so this change may be no effect at all."
    if several:
        text += " (The largest of several; its interval does not allow for that choice.)"
    yield text


def _beside(controls: pd.DataFrame | None, metric: str, name: str | None) -> pd.Series | None:
    """A set out of domain beside its controls; without a name the largest set."""
    if controls is None:
        return None
    rows = controls[(controls["role"] == "ood") & (controls["subset"] == ALL)]
    rows = rows[rows["metric"] == metric]
    rows = rows[rows["set"] == name] if name else rows[rows["size"] > 1]
    return None if rows.empty else rows.iloc[0]


def whole_core(run: RunFolder) -> Iterator[str]:
    """What the whole core costs out of domain, beside as many other heads."""
    row = _beside(run.table("ablation_controls"), "margin", None)
    if row is None:
        return
    change = effect(-row["drop"], "margin")
    text = f"Without the whole core the out-of-domain margin changes by {change}"
    if row["n_controls"] == 0:
        yield f"{text}; its layers have too few other heads for sets to compare that with."
        return
    mean, low, high = (-row[f"control_{end}"] for end in ("drop", "high", "low"))
    ends = (effect(end, "margin", unit=False) for end in (low, high))
    sets = count(row["n_controls"], "set")
    most = "95 %" if row["n_controls"] >= FEW_CONTROLS else "all"
    yield (
        f"{text}, and without as many other heads of each layer by {effect(mean, 'margin')} on "
        f"average ({most} of {sets} between {' and '.join(ends)}, {p_value(row['p_control'])} of "
        f"so large a change among these; n = {whole(row['n'])})."
    )


def _in_domain(overall: pd.DataFrame, name: str) -> str:
    inside = overall[(overall["role"] == "id") & (overall["set"] == name)]
    parts = [f"{_change(row)} on {row['data']}" for _, row in inside.iterrows()]
    return f"; in-domain accuracy changes by {listed(parts)}" if parts else ""


def _change(row: pd.Series) -> str:
    drop, low, high = (-row[f"accuracy_drop{end}"] for end in ("", "_high", "_low"))
    return with_interval(drop, low, high, "accuracy", unit=True)
