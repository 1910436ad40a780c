"""How well the full model and every subnetwork do, on every subset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

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
    subsets_named,
    whole,
)

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.report.blocks import Block, Section, Table, Tile
    from mechcore.report.run_folder import RunFolder
    from mechcore.tables import Column


@dataclass(frozen=True)
class Accuracy(Analysis):
    """Accuracies of the full model and of subnetworks, and the masks that are missing."""

    kind: ClassVar[str] = "accuracy"
    title: ClassVar[str] = "Accuracy"
    label: ClassVar[str] = "accuracies"
    always: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("answers",)
    schemas = tables_in(
        "mechcore.steps.groups:ACCURACY",
        "mechcore.steps.groups:GROUP_ACCURACY",
        "mechcore.steps.tables:SUBNETWORKS",
        "mechcore.subnetworks.core:ACCURACY_SPREAD",
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
    def sections(cls, run: RunFolder) -> Iterator[Section]:
        """Accuracy, and the subnetworks that it is measured of."""
        from mechcore.report.blocks import Section

        for section, title, blocks, tables in (
            (cls.kind, cls.title, cls.blocks(run), ("accuracy", "group_accuracy")),
            ("subnetworks", "Subnetworks", _subnetworks(run), _OF_SUBNETWORKS),
        ):
            files = [f"{name}.csv" for name in tables if run.table(name) is not None]
            yield Section(section, title, [*blocks], files)

    @classmethod
    def blocks(cls, run: RunFolder) -> Iterator[Block]:
        """Accuracy and margin on every subset, and means over groups of subsets."""
        from mechcore.report import figures
        from mechcore.report.blocks import Drawing, missing
        from mechcore.report.groups import data_sets, most_frequent, of_data, places

        accuracy, labels = run.filled("accuracy"), run.table("data")
        if accuracy is None:
            yield missing("the accuracy of the full model and subnetworks")
            return
        counted = {} if labels is None else {p: most_frequent(labels, *p) for p in places(accuracy)}
        majority = {place: label[1] for place, label in counted.items() if label is not None}
        stroke = " A grey stroke is the share of the most frequent label." if majority else ""
        beside = "; most frequent label: accuracy of always answering it" if majority else ""
        inside = (accuracy["split"] == "id") & (accuracy["subset"] != ALL)
        outer, inner = accuracy[~inside], accuracy[inside]
        parts = [(outer, "accuracy", "")]
        for i, (split, data) in enumerate(data_sets(inner), start=1):
            name = f"accuracy-subsets-{i}"
            parts.append((of_data(inner, split, data), name, f" on subsets of {data}"))
        for part, name, on in parts:
            yield Drawing(
                figures.accuracy_by_subset(part, majority),
                name,
                f"Accuracy of the full model and of every subnetwork{on}. The line through the "
                f"dots of one target sparsity joins its lowest and highest seed.{stroke}",
                f"Dot plot of accuracy by data set and subset{on}; its numbers are in a table "
                "below.",
                fold=f"Accuracy{on} (in-domain)" if on else "",
            )
        for metric, what, more, shares in (
            ("accuracy", "Accuracy (%)", f"{_OVER_SEEDS}{beside}", majority),
            ("margin", "Margin (nats): mean log-odds of the correct classes", _AS_ABOVE, {}),
        ):
            yield _table(outer, metric, f"{what}; {more}", shares, folded=metric == "margin")
            if inside.any():
                caption = f"{what}: subsets of in-domain data"
                yield _table(inner, metric, caption, shares, folded=True)
        yield from _groups(run)

    @classmethod
    def headlines(cls, run: RunFolder) -> Iterator[str]:
        """Of the full model over groups of subsets, of subnetworks, and what is odd about these."""
        yield from _group_sentences(run)
        yield from _subnetwork_sentences(run)
        yield from _notes(run)

    @classmethod
    def tiles(cls, run: RunFolder) -> Iterator[Tile]:
        """Accuracy of the full model on each kind of test data."""
        from mechcore.report.blocks import Tile
        from mechcore.report.groups import data_sets, of_data, over_subsets

        accuracy = run.table("accuracy")
        if accuracy is None:
            return
        full = accuracy[(accuracy["subnetwork"] == FULL) & (accuracy["subset"] == ALL)]
        for split, data in data_sets(full):
            row = of_data(full, split, data).iloc[0]
            ends = interval(row["accuracy_low"], row["accuracy_high"], "accuracy", signed=False)
            note = f"{ends} on {data}{over_subsets(accuracy, split, data)}"
            yield Tile(f"Full model, {split_name(split)}", percent(row["accuracy"]), note)


_OVER_SEEDS = "for subnetworks the lowest and highest over seeds"
_AS_ABOVE = "over seeds as above"
_OF_SUBNETWORKS = ("subnetworks", "missing_masks", "accuracy_spread")


def _table(
    accuracy: pd.DataFrame,
    metric: str,
    caption: str,
    majority: Mapping[tuple[str, str, str], float],
    *,
    folded: bool,
) -> Table:
    from mechcore.report.blocks import Table
    from mechcore.report.groups import of_data, places
    from mechcore.steps.groups import ACCURACY

    targets = sorted(accuracy["target_sparsity"].dropna().unique())
    header = ["data", "subset", "n", *(["most frequent label"] if majority else [])]
    rows = []
    for split, data, subset in places(accuracy):
        part = of_data(accuracy, split, data, subset)
        cells = [f"{data} ({split_name(split)})", subset, whole(part["n"].iloc[0])]
        if majority:
            share = majority.get((split, data, subset))
            cells.append(DASH if share is None else percent(share))
        rows.append([*cells, *_cells(part, ACCURACY[metric], targets)])
    return Table(caption, [*header, *_models(targets)], rows, frozenset({0, 1}), folded)


def _groups(run: RunFolder) -> Iterator[Block]:
    """Means of the full model, and mean and range over the subnetworks of each sparsity."""
    from mechcore.report.blocks import Paragraph, Table
    from mechcore.steps.groups import GROUP_ACCURACY

    groups = run.filled("group_accuracy")
    if groups is None:
        return
    targets = sorted(groups["target_sparsity"].dropna().unique())
    rows = []
    for group, part in groups.groupby("group", sort=False):
        first = part.iloc[0]
        if first["missing"]:
            lacking = _names(first["missing"])
            yield Paragraph(
                f"No mean for {group}: the data have no example of {lacking}.", note=True
            )
        cells = _cells(part, GROUP_ACCURACY["accuracy"], targets, mean=True)
        rows.append([str(group), *cells, whole(first["n_subsets"]), _names(first["subsets"])])
    header = ["group", *_models(targets), "subsets", "which"]
    caption = "Means over groups of subsets (accuracy, every subset counting the same); for "
    caption += "subnetworks the mean, lowest and highest over seeds"
    yield Table(caption, header, rows, frozenset({0, len(header) - 1}))


def _models(targets: Sequence[float]) -> list[str]:
    return ["full model", *(f"at {sparsity(target)}" for target in targets)]


def _cells(
    part: pd.DataFrame, column: Column, targets: Sequence[float], *, mean: bool = False
) -> list[str]:
    """The full model, and the range, with its mean, over the subnetworks of each sparsity."""
    cells = column.texts(part[part["subnetwork"] == FULL])[:1] or [""]
    for target in targets:
        values = part.loc[part["target_sparsity"] == target, column.name]
        ends, middle = column.between(values.min(), values.max()), column.show(values.mean())
        cells.append(f"{middle} ({ends})" if mean and middle != ends else ends)
    return cells


def _names(subsets: str) -> str:
    """Subsets as ``group_accuracy.csv`` joins them."""
    return "all examples" if subsets == ALL else subsets.replace("; ", ", ")


def _subnetworks(run: RunFolder) -> Iterator[Block]:
    """Each subnetwork, those that are missing, and how far seeds agree."""
    from mechcore.report.blocks import Paragraph, missing, table_of
    from mechcore.report.groups import PLACED, placed

    subnetworks, without = run.filled("subnetworks"), run.filled("missing_masks")
    spread = run.filled("accuracy_spread")
    for text in _notes(run):
        yield Paragraph(text, note=True)
    if subnetworks is not None:
        caption = "Every subnetwork: what it keeps, its divergence from the full model's answers "
        caption += f"(KL), and its accuracy over all examples{_of_which(run)}"
        columns = ["subnetwork", "target_sparsity", "seed", "sparsity", "head_sparsity"]
        columns += ["heads_kept", "mlps_kept", "kl", "id_accuracy", "ood_accuracy"]
        schema = run.schemas["subnetworks"]
        yield table_of(subnetworks, schema, caption, columns)
        yield table_of(subnetworks, schema, "Components kept", ["subnetwork", "kept"], folded=True)
    elif without is None:
        yield missing("pruning, so there are no subnetworks")
    if without is not None:
        caption, schema = "Masks that are missing, and why", run.schemas["missing_masks"]
        yield table_of(without, schema, caption, ["subnetwork", "reason"])
    if spread is not None:
        caption = "How far the accuracy of subnetworks of equal sparsity differs between seeds"
        columns = ["subset", "target_sparsity", "n_seeds", "full", "low", "mean", "high", "spread"]
        columns += ["balanced_accuracy_spread", "information_spread"]
        schema = run.schemas["accuracy_spread"]
        yield table_of(placed(spread), schema, caption, [PLACED, *columns], folded=True)


def _of_which(run: RunFolder) -> str:
    """Which subsets the out-of-domain examples are from."""
    from mechcore.report.groups import data_sets, proper_subsets

    accuracy = run.filled("accuracy")
    if accuracy is None:
        return ""
    outside = accuracy[accuracy["split"] == "ood"]
    named = [(data, proper_subsets(outside, split, data)) for split, data in data_sets(outside)]
    parts = [f"{data}, {subsets_named(names)}" for data, names in named if names]
    return f" (out-of-domain: {'; '.join(parts)})" if parts else ""


def _group_sentences(run: RunFolder) -> Iterator[str]:
    """Means of the full model over the groups of subsets, and over which subsets they are."""
    from mechcore.report.groups import members

    table = run.filled("group_accuracy")
    full = [] if table is None else table[table["subnetwork"] == FULL].to_dict("records")
    means, without = [], []
    for row in full:
        if row["missing"]:
            without.append(f"{row['group']} (no example of {_names(row['missing'])})")
        else:
            means.append(f"{percent(row['accuracy'])} on {row['group']} ({members(row)})")
    texts = []
    if means:
        begin = "Macro-averaged over subsets, the full model's accuracy is"
        texts.append(f"{begin} {listed(means)}.")
    if without:
        texts.append(f"There is no mean for {listed(without)}.")
    if texts:
        yield " ".join(texts)


def _subnetwork_sentences(run: RunFolder) -> Iterator[str]:
    """How accurate the subnetworks of each sparsity are, and how far apart on both labels."""
    from mechcore.report.groups import data_sets, of_data

    accuracy = run.filled("accuracy")
    if accuracy is None:
        return
    pruned = accuracy[(accuracy["subnetwork"] != FULL) & (accuracy["subset"] == ALL)]
    for target, part in pruned.groupby("target_sparsity"):
        parts = []
        for split, data in data_sets(part):
            rows = of_data(part, split, data)
            where = ", ".join(filter(None, [data, _apart(rows)]))
            parts.append(f"{percent_range(rows['accuracy'])} {split_name(split)} ({where})")
        seeds = count(part["subnetwork"].nunique(), "seed")
        yield (
            f"Subnetworks pruned to a target of {sparsity(float(str(target)))} ({seeds}) have an "
            f"accuracy of {listed(parts)}."
        )


def _apart(rows: pd.DataFrame) -> str:
    """How far subnetworks are apart, in what a moved threshold changes and in what it does not."""
    from mechcore.subnetworks.core import BOTH_LABELS

    if len(rows) < 2:
        return ""
    names = [name for name in ("accuracy", *BOTH_LABELS) if name in rows]
    known = rows[names].dropna(axis="columns")
    text, *both = (f"{number(100 * p, 1)}{SPACE}points" for p in known.max() - known.min())
    if len(known.columns) < len(names):
        return f"{text} apart, perhaps by a moved threshold alone: too few examples of some label"
    also = f", {both[0]} with labels weighed alike, {both[1]} in information" if both else ""
    return f"{text} apart{also}"


def _notes(run: RunFolder) -> Iterator[str]:
    """Which masks are missing, and which subnetworks do far worse than those of other seeds."""
    from mechcore.subnetworks.outliers import outliers

    subnetworks, missing = run.filled("subnetworks"), run.filled("missing_masks")
    if missing is not None:
        names = listed(missing["subnetwork"].tolist())
        if subnetworks is None:
            yield (
                f"Training failed for every mask ({names}): there are no subnetworks and there is "
                "no core. Everything here is about the full model."
            )
            return
        of = count(len(missing) + len(subnetworks), "mask")
        verb, whose = ("is", "its") if len(missing) == 1 else ("are", "their")
        text = f"{len(missing)} of {of} {verb} missing, as {whose} training failed: {names}. "
        text += "Everything here is about the others."
        gone = sorted(set(missing["target_sparsity"]) - set(subnetworks["target_sparsity"]))
        if gone:
            text += f" No mask of target sparsity {listed([*map(sparsity, gone)])} is left."
        yield text
    if subnetworks is not None:
        yield from outliers(subnetworks)
