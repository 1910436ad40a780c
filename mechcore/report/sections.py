"""The sections of the page, each from the tables of its step."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from mechcore.attention.labels import HEAD_CATEGORIES
from mechcore.report import figures, subnetwork_figures
from mechcore.report.attention_views import attention_view
from mechcore.report.blocks import (
    AS_FIGURE,
    Block,
    Drawing,
    Paragraph,
    Section,
    Shown,
    Table,
    View,
    not_run,
    table_of,
)
from mechcore.report.groups import PLACED, data_sets, missing_table, placed, proper_subsets
from mechcore.report.run_folder import RunFolder
from mechcore.report.summary import (
    core_row,
    core_sentences,
    missing_sentences,
    outlier_sentences,
)
from mechcore.tables import COMPONENT, Column
from mechcore.wording import (
    SIGNIFICANT,
    count,
    number,
    p_value,
    sparsity,
    subsets_named,
    whole,
)

HEADS_PER_FIGURE = 6


# -- subnetworks and core -----------------------------------------------------------------------


def subnetworks(run: RunFolder) -> Section:
    """The subnetworks, and how far seeds agree."""
    title = "Subnetworks"
    subnetworks, frequency = run.table("subnetworks"), run.table("head_frequency")
    notes = [*missing_sentences(run), *outlier_sentences(run)]
    blocks: list[Block] = [Paragraph(text, note=True) for text in notes]
    if subnetworks is None or len(subnetworks) == 0:
        if not blocks:
            return not_run("subnetworks", title, "pruning, so there are no subnetworks")
        blocks.append(missing_table(run, "missing_masks"))
        return Section("subnetworks", title, blocks, ["missing_masks.csv"])
    if frequency is not None and len(frequency):
        picture = Drawing(
            figures.head_frequency(frequency, run.core),
            "head-frequency",
            "In how many seeds each component is kept"
            + ("; core heads are outlined." if run.core else "."),
            "Heatmap, layer by head, of how many seeds keep each component; the numbers are in "
            "head_frequency.csv.",
            fold=f"How many seeds keep each component{AS_FIGURE}",
        )
        blocks.append(picture)
    caption = "Every subnetwork: what it keeps, its divergence from the full model's answers (KL), "
    caption += f"and its accuracy over all examples{_of_which(run)}"
    shown = ["subnetwork", "target_sparsity", "seed", "sparsity", "head_sparsity", "heads_kept"]
    shown += ["mlps_kept", "kl", "id_accuracy", "ood_accuracy"]
    schema = run.schemas["subnetworks"]
    blocks += [
        table_of(subnetworks, schema, caption, shown),
        table_of(subnetworks, schema, "Components kept", ["subnetwork", "kept"], folded=True),
    ]
    missing = run.table("missing_masks")
    if missing is not None and len(missing):
        blocks.append(missing_table(run, "missing_masks"))
    blocks += _seeds(run)
    names: tuple[str, ...] = ("subnetworks", "missing_masks", "head_frequency")
    names += ("head_overlap", "accuracy_spread")
    files = [f"{name}.csv" for name in names if run.table(name) is not None]
    return Section("subnetworks", title, blocks, files)


def _of_which(run: RunFolder) -> str:
    """Which subsets the out-of-domain examples are from."""
    accuracy = run.table("accuracy")
    if accuracy is None:
        return ""
    pairs = [pair for pair in data_sets(accuracy) if pair[0] == "ood"]
    named = [(data, proper_subsets(accuracy, role, data)) for role, data in pairs]
    parts = [f"{data}, {subsets_named(names)}" for data, names in named if names]
    return f" (out-of-domain: {'; '.join(parts)})" if parts else ""


def _seeds(run: RunFolder) -> Iterator[Block]:
    """How alike the subnetworks of different seeds are, in heads and in accuracy."""
    overlap = run.table("head_overlap")
    if overlap is not None and len(overlap):
        yield Drawing(
            subnetwork_figures.head_overlap(overlap),
            "head-overlap",
            "Overlap of the heads of every two subnetworks (Jaccard index: shared heads as a share "
            f"of the heads of either).{_by_chance(overlap)}",
            "Heatmap of the Jaccard index of every two subnetworks; the numbers are in "
            "head_overlap.csv.",
        )
    spread = run.table("accuracy_spread")
    if spread is not None and len(spread):
        caption = "How far the accuracy of subnetworks of equal sparsity differs between seeds"
        shown: list[Shown] = [PLACED, "subset", "target_sparsity", "n_seeds", "full", "low"]
        shown += ["mean", "high", "spread", "balanced_accuracy_spread", "information_spread"]
        yield table_of(placed(spread), run.schemas["accuracy_spread"], caption, shown, folded=True)


def _by_chance(overlap: pd.DataFrame) -> str:
    """How far pairs of subnetworks are alike beside random ones."""
    apart = overlap[overlap["p_value"].notna()]
    alike = len(overlap) - len(apart)
    text = ""
    if len(apart):
        mean, chance = map(number, apart[["jaccard", "expected"]].mean())
        beyond = int((apart["p_value"] < SIGNIFICANT).sum())
        text = (
            f" On average {mean}; as many random heads of each layer would share {chance}. Of "
            f"{count(len(apart), 'pair')}, {whole(beyond)} share more than by that chance "
            f"(p < {SIGNIFICANT:g}, not corrected for how many pairs there are)."
        )
    if alike:
        text += (
            f" {count(alike, 'pair')} of one seed or ranking, which are alike whatever matters, "
            "cannot be compared with chance."
        )
    return text


def core(run: RunFolder) -> Section:
    """The heads that all subnetworks keep."""
    title = "Heuristic core"
    summary = core_row(run)
    if summary is None and (without := [*missing_sentences(run)]):
        return Section("core", title, [Paragraph(text, note=True) for text in without])
    if summary is None:
        return not_run("core", title, "the comparison of subnetworks that gives the core")
    blocks: list[Block] = [Paragraph(text) for text in core_sentences(run)]
    if pd.notna(summary["spearman_rho"]):
        rho, p = number(summary["spearman_rho"]), summary["spearman_p"]
        # Tables of earlier versions do not name them.
        low, high = (
            f" ({sparsity(summary[name])})" if pd.notna(summary.get(name)) else ""
            for name in ("low_sparsity", "high_sparsity")
        )
        text = (
            f"How often each head is kept at the lowest target sparsity{low} and at the highest"
            f"{high} correlates with Spearman's rho = {rho}"
        )
        none = ". It has no p-value, since the two share seeds or a ranking."
        text += f" ({p_value(p)})." if pd.notna(p) else none
        if pd.notna(p) and p >= SIGNIFICANT:
            text += " That p-value is not small: the two need not be related."
        blocks.append(Paragraph(text))
    core = run.table("core")
    if core is not None and len(core):
        categories = run.table("head_categories")
        if categories is not None:
            core = core.merge(categories[["component", "category"]], how="left", on="component")
            core = core.fillna({"category": ""})
        attends = Column("category", "text", header="attends to", optional=True)
        shown: list[Shown] = ["component", "n_subnetworks", "rate_low", attends]
        blocks.append(table_of(core, run.schemas["core"], "The core heads", shown))
    return Section("core", title, blocks, ["core.csv", "core_summary.csv"])


# -- what heads attend to -----------------------------------------------------------------------


def categories(run: RunFolder) -> Section:
    """What heads attend to."""
    title = "What heads attend to"
    categories = run.table("head_categories")
    if categories is None or len(categories) == 0:
        return not_run("categories", title, "the sorting of heads by what they attend to")
    some = categories["in_core"].any()
    blocks: list[Block] = [
        Drawing(
            figures.head_categories(categories),
            "head-categories",
            "The category that each head attends to most, among those with a large enough mass "
            "that is also clearly more than under uniform attention; mixed where none has both."
            + (" Core heads are outlined." if some else ""),
            "Grid, layer by head, of attention categories; the categories are in the table below.",
            fold=f"The category of every head{AS_FIGURE}",
        )
    ]
    if some:
        core = categories[categories["in_core"]]
        blocks.append(mass_table(core, "Attention mass of the core heads"))
    else:
        text = f"{run.no_core.capitalize()}, so no head is outlined."
        blocks.append(Paragraph(text, note=True))
    blocks.append(mass_table(categories, f"All {len(categories)} heads", folded=True))
    examples = run.attention_examples
    parts = [
        examples[start : start + HEADS_PER_FIGURE]
        for start in range(0, len(examples), HEADS_PER_FIGURE)
    ]
    for i, part in enumerate(parts, start=1):
        names = ", ".join(example.component for example in part)
        picture = Drawing(
            figures.attention_patterns(part),
            "attention" if len(parts) == 1 else f"attention-{i}",
            f"Attention of {names} on an example each: rows are queries, columns keys; lines mark "
            "where a segment begins or ends. Colours follow the square root of the weight.",
            f"Heatmaps of the attention of {names} between the tokens of one example each.",
            fold=f"Attention of {names}{AS_FIGURE}",
        )
        blocks.append(picture)
    if examples:
        titles = [example.component for example in examples]  # small boxes hold no more
        view = attention_view(examples, titles=titles).html("attention")
        blocks.append(
            View("Attention on an example each: choose a head, and point at a weight.", view)
        )
    return Section("categories", title, blocks, ["head_categories.csv"])


def mass_table(categories: pd.DataFrame, caption: str, folded: bool = False) -> Table:
    """Category, masses with their ratios, and entropy of heads."""
    names = [
        column.removeprefix("mass_")
        for column in map(str, categories.columns)
        if column.startswith("mass_")
    ]
    unknown = pd.Series(math.nan, categories.index)
    masses = [
        (name, list(map(_mass_cell, categories[f"mass_{name}"], ratios)))
        for name in names
        for ratios in [categories.get(f"ratio_{name}", unknown)]
    ]
    n = whole(categories["n_examples"].max())
    unit = "mass in % of attention (times the mass under uniform attention)"
    shown: list[Shown] = [COMPONENT.called("head"), "category", *masses, "entropy"]
    title = f"{caption}, over {n} examples: {unit}"
    return table_of(categories, HEAD_CATEGORIES, title, shown, folded=folded)


def _mass_cell(mass: float, ratio: float) -> str:
    times = f" ({number(ratio, 1)}\u00d7)" if pd.notna(ratio) else ""
    return number(100 * mass, 1) + times
