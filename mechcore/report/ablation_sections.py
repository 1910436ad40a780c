"""The sections on ablated sets: what each costs, and what sets cost beyond their members."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.report import ablation_figures, figures
from mechcore.report.blocks import Block, Gallery, Paragraph, Section, Table, not_run
from mechcore.report.figures import data_sets, subsets_of
from mechcore.report.run_folder import SINGLE, RunFolder
from mechcore.report.summary import interaction_sentences
from mechcore.report.wording import (
    ALL,
    effect,
    number,
    percent,
    role_name,
    whole,
    with_interval,
)

INTERACTION_HEADER = (
    "set",
    "data",
    "metric",
    "joint drop",
    "sum of single drops",
    "interaction",
    "interval says",
)
INTERACTION_WORDS = frozenset({0, 1, 2, 6})
DROP_HEADER = ("accuracy", "accuracy drop (points)", "margin (nats)", "margin drop (nats)")

_METRICS = {"accuracy": "accuracy (points)", "margin": "margin (nats)"}


def ablation_section(run: RunFolder, gallery: Gallery) -> Section:
    """Drops without core heads, alone and together, and without every component alone."""
    title, files = "Ablation", ["ablation.csv", "sweep.csv"]
    ablation, sweep = run.table("ablation"), run.table("sweep")
    blocks: list[Block] = []
    if ablation is not None:
        blocks += _sets(ablation, gallery)
    if sweep is not None and len(sweep):
        blocks += _every_component(sweep, gallery)
    if not blocks:
        return not_run("ablation", title, "the ablation of core heads from the full model")
    return Section("ablation", title, blocks, files)


def _sets(ablation: pd.DataFrame, gallery: Gallery) -> Iterator[Block]:
    if len(ablation) == 0:
        yield Paragraph("There was no head to ablate: the core is empty.", note=True)
        return
    n_sets = ablation["set"].nunique()
    drawn = len(figures.sets_to_draw(ablation))
    left_out = (
        f" Of {n_sets} sets, {drawn} are drawn: all but the joint sets with the smaller drops."
        if drawn < n_sets
        else ""
    )
    how = "A drop is full minus ablated, so to the right of zero ablation hurts. "
    lines = "Lines are bootstrap intervals over examples." + left_out
    if (ablation["kind"] == SINGLE).any():
        yield Paragraph(
            "Heads are replaced by their mean output in the full model, alone and together."
        )
    else:
        yield Paragraph(
            "The core is empty, so no core head was ablated; the other heads show what is usual.",
            note=True,
        )
    for metric in ("accuracy", "margin"):
        yield gallery.add(
            figures.ablation_drops(ablation, metric),
            f"ablation-{metric}",
            f"Drop of {metric} over all examples when a set of heads is ablated. {how}{lines}",
            f"Dot plot of the drop of {metric} by ablated set; its numbers are in the table below.",
        )
    for i, (role, data) in enumerate(data_sets(ablation)):
        if len(subsets_of(ablation, role, data)) > 2:
            yield gallery.add(
                figures.ablation_by_subset(ablation, role, data),
                f"ablation-subsets-{i + 1}",
                f"Accuracy drop in points by subset of {data} ({role_name(role)}).{left_out}",
                f"Heatmap of accuracy drops, ablated sets by subsets of {data}; the numbers are "
                "in ablation.csv.",
            )
    caption = "Ablation over all examples, with intervals; every subset is in ablation.csv"
    yield _ablation_table(ablation, caption, folded=n_sets > 20)


def _every_component(sweep: pd.DataFrame, gallery: Gallery) -> Iterator[Block]:
    overall = sweep[sweep["subset"] == ALL]
    n = overall["set"].nunique()
    yield Paragraph(f"Each of {n} components was also ablated alone.")
    if len(ablation_figures.by_components(overall, 1)):
        for metric in ("accuracy", "margin"):
            yield gallery.add(
                ablation_figures.single_drops(overall, metric),
                f"single-drops-{metric}",
                f"Drop of {metric} over all examples without each single component. Red: ablation "
                "hurts; blue: it helps.",
                f"Grid, layer by head, of the drop of {metric}; its numbers are in the table.",
            )
    caption = f"All {n} components, each ablated alone; every subset is in sweep.csv"
    yield _ablation_table(sweep, caption, folded=True)


def _ablation_table(ablation: pd.DataFrame, caption: str, folded: bool) -> Table:
    overall = ablation[ablation["subset"] == ALL]
    rows = [
        [row["set"], place(row), whole(row["n"]), *drop_cells(row)] for _, row in overall.iterrows()
    ]
    return Table(caption, ["ablated", "data", "n", *DROP_HEADER], rows, frozenset({0, 1}), folded)


def place(row: pd.Series) -> str:
    """The data set of a row."""
    return f"{row['data']} ({role_name(row['role'])})"


def drop_cells(row: pd.Series) -> list[str]:
    """Accuracy, its drop, margin and its drop, as in `DROP_HEADER`."""
    return [
        percent(row["accuracy"]),
        _drop(row, "accuracy"),
        number(row["margin"]),
        _drop(row, "margin"),
    ]


def _drop(row: pd.Series, metric: str) -> str:
    drop, low, high = (row[f"{metric}_drop{end}"] for end in ("", "_low", "_high"))
    return with_interval(drop, low, high, metric)


# -- interactions -------------------------------------------------------------------------------


def interactions_section(run: RunFolder, gallery: Gallery) -> Section:
    """What sets cost beyond their members: those of the core, and those that a search found."""
    title, files = "Interactions", ["interactions.csv", "superadditive.csv"]
    table, found = run.table("interactions"), run.table("superadditive")
    blocks: list[Block] = []
    if table is not None:
        blocks += _interactions(run, table, gallery)
    if found is not None and len(found):
        blocks += _found(found, gallery)
    if not blocks:
        return not_run("interactions", title, "the joint ablation of sets of core heads")
    return Section("interactions", title, blocks, files)


def _interactions(run: RunFolder, table: pd.DataFrame, gallery: Gallery) -> Iterator[Block]:
    if len(table) == 0:
        text = "There is no interaction to report: the core has fewer than two heads."
        yield Paragraph(text, note=True)
        return
    for sentence in interaction_sentences(run):
        yield Paragraph(sentence)
    overall = table[table["subset"] == ALL]
    drawn = _largest_interactions(overall)
    n_sets = overall["set"].nunique()
    left_out = (
        f" Of {n_sets} sets the {len(drawn)} with the largest interaction on a margin, in either "
        "direction, are drawn."
        if len(drawn) < n_sets
        else ""
    )
    floor = (
        " Hollow marks: accuracy has so little left to lose that the joint drop saturates; go by "
        "the margin there."
        if table["floor"].any()
        else ""
    )
    yield gallery.add(
        figures.interactions(table, drawn),
        "interactions",
        "Interaction of jointly ablated heads: the joint drop less the sum of the single "
        f"drops. To the right of zero the set is superadditive.{floor}{left_out}",
        "Dot plot of interactions on accuracy and margin; the numbers are in the table below.",
    )
    largest = str(overall["set"].iloc[int(overall["size"].argmax())])
    if (table["subset"] != ALL).any():
        yield gallery.add(
            figures.interactions_by_subset(table, largest),
            "interactions-subsets",
            f"The interaction of {largest}, the largest set, on every subset.",
            "Dot plot of one set's interaction by subset; its numbers are in interactions.csv.",
        )
    caption = "Interactions over all examples, with intervals; every subset is in interactions.csv"
    yield _interaction_table(overall, caption, folded=len(overall) > 40)


def _found(found: pd.DataFrame, gallery: Gallery) -> Iterator[Block]:
    n = found["set"].nunique()
    yield Paragraph(
        f"A search among components found {n} sets with large interactions. The numbers are from "
        "examples that the search did not see."
    )
    drawn = _largest_interactions(found)
    yield gallery.add(
        figures.interactions(found, drawn),
        "superadditive",
        "Interaction of the sets that the search found, largest first.",
        "Dot plot of interactions on accuracy and margin; the numbers are in the table below.",
    )
    overall = found[found["subset"] == ALL]
    caption = "Sets that the search found, over all examples; every subset is in superadditive.csv"
    yield _interaction_table(overall, caption, folded=len(overall) > 40)


def _interaction_table(overall: pd.DataFrame, caption: str, folded: bool) -> Table:
    rows = [interaction_cells(row) for _, row in overall.iterrows()]
    return Table(caption, INTERACTION_HEADER, rows, INTERACTION_WORDS, folded)


def interaction_cells(row: pd.Series) -> list[str]:
    """A row of a table of interactions, as in `INTERACTION_HEADER`."""
    metric = row["metric"]
    return [
        row["set"],
        place(row),
        _METRICS.get(metric, metric),
        effect(row["joint_drop"], metric, unit=False),
        effect(row["sum_of_single_drops"], metric, unit=False),
        with_interval(row["interaction"], row["low"], row["high"], metric),
        _verdict(row),
    ]


def _largest_interactions(overall: pd.DataFrame, limit: int = 30) -> list[str]:
    names = list(dict.fromkeys(overall["set"]))
    if len(names) <= limit:
        return names
    margin = overall[overall["metric"] == "margin"]
    size = margin["interaction"].abs().groupby(margin["set"]).max()
    keep = set(size.nlargest(limit).index)
    return [name for name in names if name in keep]


def _verdict(row: pd.Series) -> str:
    verdict = "includes zero"
    if row["low"] > 0:
        verdict = "superadditive"
    elif row["high"] < 0:
        verdict = "subadditive"
    saturated = row["floor"] and row["metric"] == "accuracy"
    return f"{verdict}; drop saturates" if saturated else verdict
