"""How well the full model and every subnetwork do, on every subset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mechcore import report
from mechcore.analyses.base import Analysis, of_study, tables_in
from mechcore.study.step import Work
from mechcore.wording import (
    ALL,
    DASH,
    FULL,
    SPACE,
    count,
    interval,
    listed,
    number,
    percent,
    percent_range,
    sparsity,
    split_name,
    whole,
)

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.tables import Column


@dataclass(frozen=True)
class Accuracy(Analysis):
    """How accurate the full model and its subnetworks are."""

    kind = "accuracy"
    title = "Accuracy"
    label = "accuracies"
    always = True
    shows = ("accuracy",)
    needs = ("answers",)
    schemas = tables_in(
        "mechcore.steps.tables:ACCURACY",
        "mechcore.steps.tables:SUBNETWORKS",
        "mechcore.steps.masks:MISSING_MASKS",
    )

    names: Mapping[str, str] = of_study()
    groups: Mapping[str, tuple[str, ...]] = of_study()

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.steps.answers import answers_of
        from mechcore.steps.masks import missing_in
        from mechcore.steps.tables import answer_tables

        answered = answers_of(work)
        tables = answer_tables(
            answered.full, answered.subnetworks, answered.masked, self.names, self.groups
        )
        missing = missing_in(answered.folders)
        return {**tables, "missing_masks": missing} if len(missing) else tables

    @classmethod
    def sections(cls, run: report.RunFolder) -> Iterator[report.Section]:
        """The accuracy section and the section on subnetworks."""
        yield from super().sections(run)
        names = ("subnetworks", "missing_masks")
        files = [f"{name}.csv" for name in names if run.table(name) is not None]
        yield report.Section("subnetworks", "Subnetworks", [*_subnetworks(run)], files)

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """Accuracy and margin on every subset, and means over groups of subsets."""
        accuracy, labels = run.accuracy, run.table("data")
        if accuracy is None:
            yield report.missing("the accuracy of the full model and subnetworks")
            return
        majority = {
            place: label[1]
            for place in report.groups.places(accuracy)
            if labels is not None and (label := report.groups.most_frequent(labels, *place))
        }
        stroke = " A grey stroke marks the majority baseline." if majority else ""
        beside = "; most frequent label: majority baseline" if majority else ""
        inside = (accuracy["split"] == "id") & (accuracy["subset"] != ALL)
        outer, inner = accuracy[~inside], accuracy[inside]
        parts = [(outer, "accuracy", "")]
        for i, (split, data) in enumerate(report.groups.data_sets(inner), start=1):
            part = report.groups.of_data(inner, split, data)
            parts.append((part, f"accuracy-subsets-{i}", f" on subsets of {data}"))
        for part, name, on in parts:
            yield report.Drawing(
                report.figures.accuracy_by_subset(part, majority),
                name,
                f"Accuracy of the full model and of every subnetwork{on}. A line through the "
                f"dots of one target sparsity spans its seeds.{stroke}",
                f"Dot plot of accuracy by data set and subset{on}; its numbers are in a table "
                "below.",
                fold=f"Accuracy{on} (in-domain)" if on else "",
            )
        over = "for subnetworks, the range over seeds"
        yield _table(accuracy, "accuracy", f"Accuracy (%); {over}{beside}", majority)
        caption = f"Margin (nats): mean log-odds of the correct classes; {over}"
        yield _table(accuracy, "margin", caption, {})
        if (groups := run.group_accuracy) is not None:
            yield _groups(groups)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """Accuracy of the full model by group of subsets, of subnetworks, and what looks odd."""
        yield from _group_sentence(run)
        yield from _subnetwork_sentences(run)
        yield from _notes(run)

    @classmethod
    def tiles(cls, run: report.RunFolder) -> Iterator[report.Tile]:
        """Accuracy of the full model on each kind of test data."""
        if (accuracy := run.accuracy) is None:
            return
        full = accuracy[(accuracy["subnetwork"] == FULL) & (accuracy["subset"] == ALL)]
        for split, data in report.groups.data_sets(full):
            row = report.groups.of_data(full, split, data).iloc[0]
            ends = interval(row["accuracy_low"], row["accuracy_high"], "accuracy", signed=False)
            note = f"{ends} on {data}{report.groups.over_subsets(accuracy, split, data)}"
            yield report.Tile(f"Full model, {split_name(split)}", percent(row["accuracy"]), note)


def _table(
    accuracy: pd.DataFrame,
    metric: str,
    caption: str,
    majority: Mapping[tuple[str, str, str], float],
) -> report.Table:
    from mechcore.steps.tables import ACCURACY

    target_sparsities = sorted(accuracy["target_sparsity"].dropna().unique())
    header = ["data", "subset", "n", *(["most frequent label"] if majority else [])]
    header += ["full model", *(f"at {sparsity(target)}" for target in target_sparsities)]
    rows = []
    for split, data, subset in report.groups.places(accuracy):
        part = report.groups.of_data(accuracy, split, data, subset)
        cells = [f"{data} ({split_name(split)})", subset, whole(part["n"].iloc[0])]
        if majority:
            share = majority.get((split, data, subset))
            cells.append(DASH if share is None else percent(share))
        rows.append([*cells, *_cells(part, ACCURACY[metric], target_sparsities)])
    return report.Table(caption, header, rows, frozenset({0, 1}), folded=metric != "accuracy")


def _groups(groups: pd.DataFrame) -> report.Table:
    """Means of the full model, and mean and range over the subnetworks of each sparsity."""
    from mechcore.steps.tables import ACCURACY

    target_sparsities = sorted(groups["target_sparsity"].dropna().unique())
    rows = []
    for group, part in groups.groupby("subset", sort=False):
        first = part.iloc[0]
        cells = _cells(part, ACCURACY["accuracy"], target_sparsities, mean=True)
        rows.append([str(group), *cells, whole(first["n_subsets"]), _names(first["subsets"])])
    at_each = [f"at {sparsity(target)}" for target in target_sparsities]
    header = ["group", "full model", *at_each, "subsets", "which"]
    caption = "Accuracy macro-averaged over groups of subsets; for subnetworks, mean and range"
    return report.Table(caption, header, rows, frozenset({0, len(header) - 1}))


def _cells(
    part: pd.DataFrame, column: Column, target_sparsities: Sequence[float], *, mean: bool = False
) -> list[str]:
    """The full model, and the range, with its mean, over the subnetworks of each sparsity."""
    cells = column.texts(part[part["subnetwork"] == FULL])[:1] or [""]
    for target_sparsity in target_sparsities:
        values = part.loc[part["target_sparsity"] == target_sparsity, column.name]
        ends, middle = column.between(values.min(), values.max()), column.show(values.mean())
        cells.append(f"{middle} ({ends})" if mean and middle != ends else ends)
    return cells


def _names(subsets: str) -> str:
    """Subsets as ``accuracy.csv`` joins them."""
    return "all examples" if subsets == ALL else subsets.replace("; ", ", ")


def _subnetworks(run: report.RunFolder) -> Iterator[report.Block]:
    """Each subnetwork, and those that are missing."""
    subnetworks = run.filled("subnetworks")
    without = run.filled("missing_masks") is not None
    for text in _notes(run):
        yield report.Paragraph(text, note=True)
    if subnetworks is not None:
        caption = "Every subnetwork: what it keeps, KL from the full model, and accuracy"
        columns = ["subnetwork", "target_sparsity", "seed", "sparsity", "head_sparsity"]
        columns += ["heads_kept", "mlps_kept", "kl", "id_accuracy", "ood_accuracy"]
        schema = run.schemas["subnetworks"]
        yield report.table_of(subnetworks, schema, caption, columns)
        kept = ["subnetwork", "kept"]
        yield report.table_of(subnetworks, schema, "Components kept", kept, folded=True)
    elif not without:
        yield report.missing("pruning, so there are no subnetworks")
    if without:
        yield report.groups.missing_table(run, "missing_masks")


def _group_sentence(run: report.RunFolder) -> Iterator[str]:
    """The full model's mean accuracy over each group of subsets, with the group's members."""
    if (table := run.group_accuracy) is None:
        return
    full = table[table["subnetwork"] == FULL]
    means = [
        f"{percent(row['accuracy'])} on {row['subset']} ({report.groups.members(row)})"
        for row in full[full["missing"] == ""].to_dict("records")
    ]
    without = [
        f"{row['subset']} (no example of {_names(row['missing'])})"
        for row in full[full["missing"] != ""].to_dict("records")
    ]
    text = f"Macro-averaged over subsets, the full model's accuracy is {listed(means)}."
    text += f" There is no mean for {listed(without)}." if without else ""
    yield text


def _subnetwork_sentences(run: report.RunFolder) -> Iterator[str]:
    """Accuracy of the subnetworks of each sparsity, and how much seeds differ."""
    if (accuracy := run.accuracy) is None:
        return
    pruned = accuracy[(accuracy["subnetwork"] != FULL) & (accuracy["subset"] == ALL)]
    for target_sparsity, part in pruned.groupby("target_sparsity"):
        parts = []
        for split, data in report.groups.data_sets(part):
            rows = report.groups.of_data(part, split, data)
            shares = percent_range(rows["accuracy"])
            parts.append(f"{shares} {split_name(split)} ({data}{_apart(rows)})")
        seeds = count(part["subnetwork"].nunique(), "seed")
        yield (
            f"Subnetworks with a target sparsity of {sparsity(float(str(target_sparsity)))} "
            f"({seeds}) reach an accuracy of {listed(parts)}."
        )


def _apart(rows: pd.DataFrame) -> str:
    """How much subnetworks differ, in accuracy and in information, which no threshold changes."""
    from mechcore.subnetworks.core import BOTH_LABELS

    if len(rows) < 2:
        return ""
    names = [name for name in ("accuracy", *BOTH_LABELS) if name in rows]
    known = rows[names].dropna(axis="columns")
    text, *both = (f"{number(100 * p, 1)}{SPACE}points" for p in known.max() - known.min())
    if len(known.columns) < len(names):
        return (
            f", a spread of {text}, perhaps only a shifted threshold: a label has too few examples"
        )
    also = f", {both[0]} in balanced accuracy, {both[1]} in information" if both else ""
    return f", a spread of {text}{also}"


def _notes(run: report.RunFolder) -> Iterator[str]:
    """Missing masks, and subnetworks that do far worse than those of other seeds."""
    from mechcore.subnetworks.core import outliers

    subnetworks, missing = run.filled("subnetworks"), run.filled("missing_masks")
    if missing is not None:
        names, n = listed(missing["subnetwork"].tolist()), len(missing)
        left = [] if subnetworks is None else subnetworks["target_sparsity"].tolist()
        text = f"Training failed for {n} of {count(n + len(left), 'mask')} ({names}); this report "
        text += f"covers {'the others' if left else 'only the full model'}."
        if gone := sorted({*missing["target_sparsity"]} - {*left}):
            text += f" No mask of target sparsity {listed([*map(sparsity, gone)])} is left."
        yield text
    if subnetworks is not None:
        yield from outliers(subnetworks)
