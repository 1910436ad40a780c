"""The section on accuracy: of the full model and of subnetworks, by subset and by group of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from mechcore.report import figures
from mechcore.report.blocks import Block, Drawing, Paragraph, Section, Table, not_run
from mechcore.report.groups import FULL, data_sets, most_frequent, of_data, subsets_of
from mechcore.report.run_folder import RunFolder
from mechcore.subnetworks.core import BOTH_LABELS
from mechcore.wording import (
    ALL,
    DASH,
    NOT_AVAILABLE,
    SPACE,
    count,
    interval,
    listed,
    number,
    number_range,
    percent,
    percent_range,
    role_name,
    sparsity,
    whole,
)


def accuracy_section(run: RunFolder) -> Section:
    """How often the full model and every subnetwork are right."""
    accuracy = run.table("accuracy")
    if accuracy is None or len(accuracy) == 0:
        return not_run("accuracy", "Accuracy", "the accuracy of the full model and subnetworks")
    majority = _majorities(run, accuracy)
    ticks = " A grey stroke is the share of the most frequent label." if majority else ""
    beside = "; most frequent label: accuracy of always answering it" if majority else ""
    inside = (accuracy["role"] == "id") & (accuracy["subset"] != ALL)
    parts = [(accuracy[~inside], "accuracy", "")]
    parts += [
        (of_data(accuracy[inside], role, data), f"accuracy-subsets-{i}", f" on subsets of {data}")
        for i, (role, data) in enumerate(data_sets(accuracy[inside]), start=1)
    ]
    blocks: list[Block] = [
        Drawing(
            figures.accuracy_by_subset(part, majority),
            name,
            f"Accuracy of the full model and of every subnetwork{on}. The line through the dots of "
            f"one target sparsity joins its lowest and highest seed.{ticks}",
            f"Dot plot of accuracy by data set and subset{on}; its numbers are in a table below.",
            fold=f"Accuracy{on} (in-domain)" if on else "",
        )
        for part, name, on in parts
    ]
    blocks += [
        *_by_subset(
            accuracy,
            f"Accuracy (%); for subnetworks the lowest and highest over seeds{beside}",
            "accuracy",
            majority,
        ),
        *_by_subset(
            accuracy,
            "Margin (nats): mean log-odds of the correct classes; over seeds as above",
            "margin",
        ),
    ]
    groups = run.table("group_accuracy")
    if groups is not None and len(groups):
        blocks += _groups(groups)
    return Section("accuracy", "Accuracy", blocks, ["accuracy.csv", "group_accuracy.csv"])


def subnetwork_sentences(run: RunFolder) -> Iterator[str]:
    """How accurate the subnetworks of each sparsity are, and how far apart on both labels."""
    accuracy = run.table("accuracy")
    if accuracy is None:
        return
    pruned = accuracy[(accuracy["subnetwork"] != FULL) & (accuracy["subset"] == ALL)]
    for target, part in pruned.groupby("target_sparsity"):
        parts = []
        for role, data in data_sets(part):
            found = of_data(part, role, data)
            where = ", ".join(filter(None, [data, _apart(found)]))
            parts.append(f"{percent_range(found['accuracy'])} {role_name(role)} ({where})")
        seeds = count(part["subnetwork"].nunique(), "seed")
        yield (
            f"Subnetworks pruned to a target of {sparsity(float(str(target)))} ({seeds}) have an "
            f"accuracy of {listed(parts)}."
        )


def _apart(found: pd.DataFrame) -> str:
    """How far subnetworks are apart, in what a moved threshold changes and in what it does not."""
    if len(found) < 2:
        return ""
    names = [name for name in ("accuracy", *BOTH_LABELS) if name in found]
    known = found[names].dropna(axis="columns")
    text, *both = (f"{number(100 * p, 1)}{SPACE}points" for p in known.max() - known.min())
    if len(known.columns) < len(names):
        return f"{text} apart, perhaps by a moved threshold alone: too few examples of some label"
    also = f", {both[0]} with labels weighed alike, {both[1]} in information" if both else ""
    return f"{text} apart{also}"


def _majorities(run: RunFolder, accuracy: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    """Share of the most frequent label by role, data and subset, where it is known."""
    table = run.table("data")
    if table is None:
        return {}
    found = {
        (role, data, subset): most_frequent(table, role, data, subset)
        for role, data in data_sets(accuracy)
        for subset in subsets_of(accuracy, role, data)
    }
    return {place: share[1] for place, share in found.items() if share is not None}


def _by_subset(
    accuracy: pd.DataFrame,
    caption: str,
    metric: str,
    majority: dict[tuple[str, str, str], float] | None = None,
) -> Iterator[Table]:
    """All data sets, and folded below it the subsets of those in domain, if there are any."""
    inside = (accuracy["role"] == "id") & (accuracy["subset"] != ALL)
    yield _table(accuracy[~inside], caption, metric, majority)
    if inside.any():
        folded = f"{caption.partition(';')[0]}: subsets of in-domain data"
        yield replace(_table(accuracy[inside], folded, metric, majority), folded=True)


def _table(
    accuracy: pd.DataFrame,
    caption: str,
    metric: str,
    majority: dict[tuple[str, str, str], float] | None,
) -> Table:
    targets = sorted(accuracy["target_sparsity"].dropna().unique())
    header = ["data", "subset", "n", *(["most frequent label"] if majority else [])]
    header += ["full model", *(f"at {sparsity(t)}" for t in targets)]
    rows = []
    for role, data in data_sets(accuracy):
        for subset in subsets_of(accuracy, role, data):
            part = of_data(accuracy, role, data, subset)
            full = part[part["subnetwork"] == FULL]
            cells = [f"{data} ({role_name(role)})", subset, whole(part["n"].iloc[0])]
            if majority:
                share = majority.get((role, data, subset))
                cells.append(DASH if share is None else percent(share))
            cells.append(_full_cell(full.iloc[0], metric) if len(full) else "")
            for target in targets:
                values = part.loc[part["target_sparsity"] == target, metric]
                over_seeds = percent_range if metric == "accuracy" else number_range
                cells.append(over_seeds(values))
            rows.append(cells)
    folded = metric == "margin"
    return Table(caption, header, rows, text_columns=frozenset({0, 1}), folded=folded)


def _full_cell(row: pd.Series, metric: str) -> str:
    if metric == "margin":
        return number(row["margin"])
    ends = interval(row["accuracy_low"], row["accuracy_high"], "accuracy", signed=False)
    return f"{percent(row['accuracy'])} {ends}"


# -- means over groups of subsets ---------------------------------------------------------------


def _groups(groups: pd.DataFrame) -> Iterator[Block]:
    """Means of the full model, and mean and range over the subnetworks of each sparsity."""
    targets = sorted(groups["target_sparsity"].dropna().unique())
    rows = []
    for group, part in groups.groupby("group", sort=False):
        first = part.iloc[0]
        if first["missing"]:
            yield Paragraph(
                f"No mean for {group}: the data have no example of {_names(first['missing'])}.",
                note=True,
            )
        full = part.loc[part["subnetwork"] == FULL, "accuracy"]
        cells = [str(group), percent(full.iloc[0]) if len(full) else ""]
        cells += [_over_seeds(part[part["target_sparsity"] == target]) for target in targets]
        rows.append([*cells, whole(first["n_subsets"]), _names(first["subsets"])])
    header = ["group", "full model", *(f"at {sparsity(t)}" for t in targets)]
    yield Table(
        "Means over groups of subsets (accuracy, every subset counting the same); for subnetworks "
        "the mean, lowest and highest over seeds",
        [*header, "subsets", "which"],
        rows,
        frozenset({0, len(header) + 1}),
    )


def _over_seeds(part: pd.DataFrame) -> str:
    values = part["accuracy"].dropna()
    if len(values) == 0:
        return NOT_AVAILABLE
    mean, ends = percent(values.mean()), percent_range(values)
    return mean if mean == ends else f"{mean} ({ends})"


def _names(subsets: str) -> str:
    """Subsets as ``group_accuracy.csv`` joins them."""
    return "all examples" if subsets == ALL else subsets.replace("; ", ", ")
