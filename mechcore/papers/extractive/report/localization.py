"""The section of a study of extractive structures on what reads out what."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from mechcore.papers.extractive.localization import LOCALIZATION, LOCALIZATION_R2
from mechcore.papers.extractive.report.looks import KINDS, kind_name, sorted_parts
from mechcore.papers.extractive.report.words import CLAIMS
from mechcore.papers.extractive.results import PARTS
from mechcore.report.blocks import Block, Gallery, OverSeeds, Shown, missing, table_of
from mechcore.report.drawing import GREY, MAX_WIDTH, new_figure, styled
from mechcore.report.run_folder import RunFolder
from mechcore.report.scatter import draw_by_layer, layer_bar, layer_norm
from mechcore.report.seeds import (
    SEEDS,
    in_order,
    means_over_seeds,
    rows_of,
    seed_name,
    seeds_in,
    strongest,
)
from mechcore.wording import count, number

MOST_SEEDS = 3
"""Seeds whose components are drawn one by one."""
_TOP = 5
"""Components in a table."""


@CLAIMS.section(
    "localization", "Localisation", "", "extractive_localization", "extractive_localization_r2"
)
def learned_and_read(
    _: RunFolder, gallery: Gallery, table: pd.DataFrame | None, r2: pd.DataFrame | None
) -> Iterator[Block]:
    """Whether what learning implications changes is where facts are read out."""
    if table is None:
        yield missing("the scores of learning and of reading out")
    else:
        n = len(seeds_in(table))
        shown_seeds = f"; the first {MOST_SEEDS} of {n} seeds" if n > MOST_SEEDS else ""
        yield gallery.add(
            localization(table, r2),
            "localization",
            "Informative score of learning implications after facts (where that is stored) "
            "against downstream score of facts of test names (where they are read out), in "
            "logits, summed over tokens: a dot per component, coloured by layer. Every panel "
            f"has its own scale{shown_seeds}.",
            "Scatter plots of informative against downstream scores of components, MLPs and "
            "heads by seed; the correlations are in the table below.",
        )
    if r2 is None:
        yield missing("the correlation of the two scores")
    else:
        rows = sorted_parts(r2.sort_values("seed", kind="stable"), "kind")
        caption = "Correlation over components of the two scores"
        yield table_of(rows, LOCALIZATION_R2, caption, ["kind", "seed", "r2", "r", "p", "n"])
    if table is not None:
        scores = ["informative", "downstream"]
        means = means_over_seeds(table, ["kind", "component"], scores)
        rows = sorted_parts(strongest(means, ["kind"], scores[0], _TOP), "kind")
        caption = f"The {count(_TOP, 'component')} of each kind with the largest informative "
        caption += "score: means over seeds"
        shown: list[Shown] = [PARTS[0], "component", SEEDS]
        shown += [each for name in scores for each in (name, OverSeeds(name))]
        yield table_of(rows, LOCALIZATION, caption, shown, folded=True)


@styled
def localization(table: pd.DataFrame, r2: pd.DataFrame | None) -> Figure:
    """Informative against downstream scores, a dot per component: kinds by seeds."""
    kinds, seeds = in_order(table["kind"], list(KINDS)), seeds_in(table)[:MOST_SEEDS]
    layers = layer_norm(table["layer"])
    figure = new_figure(min(1.6 + 2.9 * len(seeds), MAX_WIDTH), 0.5 + 2.6 * len(kinds))
    axes = figure.subplots(len(kinds), len(seeds), squeeze=False)
    for row, kind in zip(axes, kinds, strict=True):
        for ax, seed in zip(row, seeds, strict=True):
            part = rows_of(table, kind=kind, seed=seed)
            ax.axvline(0, color=GREY, lw=0.9)
            ax.axhline(0, color=GREY, lw=0.9)
            draw_by_layer(ax, part["informative"], part["downstream"], part["layer"], layers)
            found = () if r2 is None else rows_of(r2, kind=kind, seed=seed)["r2"].head(1)
            told = "".join(f": r\u00b2 = {number(value)}" for value in found)
            ax.set_title(f"{kind_name(kind)}, {seed_name(seed)}{told}")
        row[0].set_ylabel("downstream")
    for ax in axes[-1]:
        ax.set_xlabel("informative")
    layer_bar(figure, axes, layers)
    return figure
