"""The findings of a run in plain words: formatted from its tables, and no more than they show."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.report.blocks import Tile
from mechcore.report.groups import FULL, data_sets, of_data, proper_subsets
from mechcore.report.run_folder import SINGLE, RunFolder
from mechcore.subnetworks.outliers import outliers
from mechcore.wording import (
    ALL,
    SIGNIFICANT,
    count,
    effect,
    interval,
    listed,
    p_value,
    percent,
    role_name,
    small,
    sparsity,
    whole,
)

_MOST_TOLD = 3
"""Groups whose effective size is told in words."""

_MOST_NAMED = 5
"""Checkpoints that are told by name."""


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
    summary = core_row(run)
    if summary is not None:
        note = f"of {count(summary['n_heads'], 'head')}"
        if pd.notna(summary["expected_by_chance"]) and not _are_of_one_draw(run):
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


def missing_sentences(run: RunFolder) -> Iterator[str]:
    """Which masks could not be used, and which target sparsities are without any."""
    missing, subnetworks = run.table("missing_masks"), run.filled("subnetworks")
    if missing is None or len(missing) == 0:
        return
    if subnetworks is None:
        yield (
            f"Training failed for every mask ({listed(missing['subnetwork'].tolist())}): there are "
            "no subnetworks and there is no core. Everything here is about the full model."
        )
        return
    n, names = len(missing) + len(subnetworks), listed(missing["subnetwork"].tolist())
    verb, whose = ("is", "its") if len(missing) == 1 else ("are", "their")
    text = f"{len(missing)} of {count(n, 'mask')} {verb} missing, as {whose} training failed: "
    text += f"{names}. Everything here is about the others."
    gone = sorted(set(missing["target_sparsity"]) - set(subnetworks["target_sparsity"]))
    if gone:
        text += f" No mask of target sparsity {listed([sparsity(each) for each in gone])} is left."
    yield text


def outlier_sentences(run: RunFolder) -> Iterator[str]:
    """Which subnetworks do far worse than those of other seeds."""
    subnetworks = run.filled("subnetworks")
    if subnetworks is not None:
        yield from outliers(subnetworks)


def core_row(run: RunFolder) -> pd.Series | None:
    """The one row of ``core_summary.csv``."""
    summary = run.table("core_summary")
    return None if summary is None or len(summary) == 0 else summary.iloc[0]


def _are_of_one_draw(run: RunFolder) -> bool:
    """Whether all subnetworks are of one seed or ranking, so that the core is no chance."""
    overlap = run.filled("head_overlap")
    return overlap is not None and bool(overlap["p_value"].isna().all())


def core_sentences(run: RunFolder) -> Iterator[str]:
    """Size of the core against chance."""
    summary = core_row(run)
    if summary is None:
        return
    n, size, one_draw = summary["n_subnetworks"], summary["core_size"], _are_of_one_draw(run)
    all_of = f"all {count(n, 'subnetwork')}" if n > 1 else "the one subnetwork"
    expected = (
        "If the subnetworks of each seed kept as many heads of each layer, picked at random, "
        f"{small(summary['expected_by_chance'])} would be shared by all on average"
        if pd.notna(summary["expected_by_chance"]) and not one_draw
        else ""
    )
    if size == 0:
        text = f"The heuristic core is empty: no head is in {all_of}."
        yield f"{text} {expected}." if expected else text
        return
    # The names come from core.csv, which may be absent though the summary is there.
    names = f": {', '.join(run.core)}" if run.core else ""
    verb = "is" if size == 1 else "are"
    text = f"{whole(size)} of {count(summary['n_heads'], 'head')} {verb} in {all_of}{names}."
    if expected:
        text += f" {expected} ({p_value(summary['p_value'])})."
    if one_draw:
        text += (
            " All are of one seed or ranking, so that they share heads whatever matters: take "
            "several seeds."
        )
    elif pd.notna(summary["p_value"]) and summary["p_value"] >= SIGNIFICANT:
        text += (
            " That p-value is not small: a core of this size is no evidence that the subnetworks "
            "share more heads than chance would have them share."
        )
    core = run.table("core")
    if core is not None and "rate_low" in core and len(core) and n > 1 and not one_draw:
        text += (
            f" Each core head would be kept by at least {percent(core['rate_low'].iloc[0])} of "
            "further seeds (lower bound of 95 %, for one head)."
        )
    if n == 1:
        text += " With one subnetwork, its heads are the core by definition."
    yield text


def category_sentences(run: RunFolder) -> Iterator[str]:
    """What the core heads attend to."""
    categories = run.table("head_categories")
    if categories is None:
        return
    core = categories[categories["in_core"]]
    if len(core) == 0:
        return
    counts = core["category"].value_counts()
    parts = [f"{name} ({whole(n)})" for name, n in counts.items()]
    heads = "core head is" if len(core) == 1 else f"{len(core)} core heads are"
    yield f"By what they attend to, the {heads} sorted as {listed(parts)}."


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


def _checkpoint(row: pd.Series) -> str:
    """Its name, and for how many seeds no subnetwork was small enough, each a size of 100 %."""
    without = int(row["n_seeds"] - row["n_faithful"])
    if not without:
        return str(row["checkpoint"])
    return (
        f"{row['checkpoint']} (100 % for {without} of {count(row['n_seeds'], 'seed')}, which had "
        "no faithful subnetwork)"
    )


def size_sentences(run: RunFolder) -> Iterator[str]:
    """How the effective size of every group changes from the first checkpoint to the last."""
    means = run.table("mean_effective_size")
    if means is None or len(means) == 0:
        return
    parts = []
    groups = list(dict.fromkeys(means["group"]))
    told = groups if len(groups) <= _MOST_TOLD else groups[: _MOST_TOLD - 1]
    for group, part in means[means["group"].isin(told)].groupby("group", sort=False):
        ends = [part.iloc[0], part.iloc[-1]][: len(part)]
        sizes = [f"{percent(end['effective_size'])} at {_checkpoint(end)}" for end in ends]
        parts.append(f"{' to '.join(sizes)} on {group}")
    changes = "goes, by checkpoint, from" if means["checkpoint"].nunique() > 1 else "is"
    rest = groups[len(told) :]
    further = f" The table also has {listed(rest)}." if rest else ""
    yield f"The effective size {changes} {listed(parts)}.{further}"
    yield from _bounds(run)
    missing = run.table("missing_grid_masks")
    if missing is not None and len(missing):
        named = [
            f"{listed(part['subnetwork'].tolist())} at checkpoint {checkpoint}"
            for checkpoint, part in missing.groupby("checkpoint", sort=False)
        ]
        yield (
            f"Masks are missing, as their training failed: {'; '.join(named)}. A seed's effective "
            "size is chosen among the masks that it has, so that it can be too large; a seed or "
            "checkpoint without masks has none."
        )


def _bounds(run: RunFolder) -> Iterator[str]:
    """Where even the sparsest subnetworks of the grid are faithful, so that sizes are bounds."""
    sizes, grid = run.table("effective_size"), run.table("grid")
    if sizes is None or grid is None or len(grid) == 0:
        return
    sparsest = grid["sparsity"].max()
    groups = sizes.assign(bound=sizes["sparsity"] == sparsest).groupby("group", sort=False)
    told = []
    for group, part in groups:
        bound = part.groupby("checkpoint", sort=False)["bound"].all()
        if bound.any():
            told.append(f"on {group} at {_which(bound)}")
    if told:
        yield (
            f"Even at a sparsity of {sparsity(sparsest)}, the largest of the grid, the subnetworks "
            f"of all seeds are faithful {listed(told)}. Effective sizes there are upper bounds. A "
            "model at chance has faithful subnetworks that know nothing."
        )


def _which(chosen: pd.Series) -> str:
    """Checkpoints, by name unless there are many."""
    names = [str(checkpoint) for checkpoint in chosen.index[chosen]]
    if len(names) == len(chosen):
        return "every checkpoint"
    if len(names) > _MOST_NAMED:
        return f"{len(names)} of {len(chosen)} checkpoints"
    return f"checkpoint{'s' * (len(names) > 1)} {listed(names)}"
