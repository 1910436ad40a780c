"""Sections of a run on the cognitive task on heads: what is lost without them, what they say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mechcore.papers.cognitive.ablation import ABLATION, MASS
from mechcore.papers.cognitive.decoding import SVM
from mechcore.papers.cognitive.report.arms import (
    CLAIMS,
    arm_look,
    arm_name,
    arms_of,
    basis,
    by_model,
    fills_of,
    model_name,
    models_of,
    of_models,
    over_seeds,
)
from mechcore.papers.pages import TOP, seed_tables
from mechcore.papers.seeds import in_order, ordered, rows_of, seeds_in, strongest
from mechcore.report.blocks import Block, Drawing, Paragraph, missing
from mechcore.report.drawing import (
    BLACK,
    MAX_WIDTH,
    SERIES_MARKERS,
    around_zero,
    cell_text,
    dots_of,
    draw_dots,
    draw_grids,
    legend_below,
    new_figure,
    offsets,
    shorten,
    styled,
)
from mechcore.report.run_folder import RunFolder
from mechcore.wording import ALL, NOT_AVAILABLE

TARGETS = ("choice", "correct", "congruent", "condition")
SURE = "centre_significant"
"""The column with the centre of those heads alone whose change is surely below 0."""
_SMALLEST_CELL = 0.06


@CLAIMS.section("head-ablation", "Ablation of heads", "", "cognitive_ablation", "cognitive_mass")
def head_ablation(
    _: RunFolder, ablation: pd.DataFrame | None, mass: pd.DataFrame | None
) -> Iterator[Block]:
    """What the model loses without each head, and in which layers."""
    if ablation is None and mass is None:
        yield missing("the ablation of single heads")
        return
    n_layers = None
    if ablation is not None:
        n_layers = int(ablation["layer"].max()) + 1
        yield from _changes(ablation)
    if mass is None:
        yield missing("the centres of mass over layers")
    else:
        yield from _centres(mass, n_layers)


def _changes(ablation: pd.DataFrame) -> Iterator[Block]:
    yield Drawing(
        head_changes(ablation),
        "head-changes",
        "Change in accuracy without each single head, in points, mean over seeds. Red: the model "
        f"is worse without the head; {basis(ablation)}",
        "Heatmaps, layer by head, of the change in accuracy without each head, by arm and "
        "fill; the largest are in the table below.",
    )
    if len(seeds_in(ablation)) > 1:
        yield Paragraph(
            "Heads of a layer have no order: in models from scratch, the same head of two seeds "
            "may differ, so means over seeds are more informative for layers than for heads."
        )
    yield from seed_tables(
        ordered(by_model(ablation), fill=fills_of(ablation)),
        of_models(ABLATION),
        ["fill", "arm", "component"],
        ["change", "incongruent_change", "margin_change"],
        f"The {TOP} heads of each arm with the lowest change",
        largest_of=["fill", "arm"],
        by=lambda rows: -rows["change"],
    )


def _centres(mass: pd.DataFrame, n_layers: int | None) -> Iterator[Block]:
    yield Drawing(
        centres(mass, n_layers),
        "ablation-centres",
        "Centre of mass of the changes over layers, counted from 0, with its interval over trials. "
        "Noise gives many heads a small negative change and pulls centres to the middle layer, so "
        "the panel on the right uses only heads whose interval is below 0, if there are "
        f"any; {basis(mass)}",
        "Dot plot of the centre of mass of the changes, a row per model; the numbers are in the "
        "tables below.",
    )
    yield from seed_tables(
        by_model(mass.assign(strongest=mass["strongest"].replace("", NOT_AVAILABLE))),
        of_models(MASS),
        ["arm", "fill", "subset"],
        ["centre", SURE, "first_layer_share", "total_change"],
        "Centre of mass of the changes (layers from 0), and of only those heads whose interval is "
        "below 0",
    )


@styled
def centres(mass: pd.DataFrame, n_layers: int | None = None) -> Figure:
    """Centre of mass over layers with its interval: a row per model, a panel per subset."""
    models, fills = models_of(mass), fills_of(mass)
    subsets = in_order(mass["subset"], [ALL])
    row_of = {model: i for i, model in enumerate(models)}
    mass = mass.assign(row=[row_of[pair] for pair in zip(mass["arm"], mass["seed"], strict=True)])
    figure = new_figure(min(2.2 + 2.6 * (len(subsets) + 1), MAX_WIDTH), 1.35 + 0.3 * len(models))
    axes = figure.subplots(1, len(subsets) + 1, sharex=True, sharey=True)
    labels = [model_name(*model) for model in models]
    panels = [(subset, "centre") for subset in subsets] + [(subsets[0], SURE)]
    for ax, (subset, column) in zip(axes, panels, strict=True):
        part = rows_of(mass, subset=subset)
        ends = ("significant_low", "significant_high") if column == SURE else ("low", "high")
        series = [
            dots_of(
                rows,
                ("", arm_look(arm)[0], SERIES_MARKERS[j]),
                (column, *ends),
                hollow=np.full(len(rows), j > 0),
                offset=shift,
            )
            for arm in arms_of(mass)
            for j, (fill, shift) in enumerate(zip(fills, offsets(len(fills), 0.3), strict=True))
            for rows in [rows_of(part, arm=arm, fill=fill)]
        ]
        draw_dots(ax, series, labels if ax is axes[0] else None)
        sure = "\nonly intervals below 0" if column == SURE else ""
        ax.set_title(f"{shorten(subset, 24)} trials{sure}")
        ax.set_xlabel("layer")
        ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    if n_layers is not None:
        axes[0].set_xlim(-0.04 * n_layers - 0.05, (n_layers - 1) + 0.04 * n_layers + 0.05)
    look: dict[str, Any] = {"ls": "none", "color": BLACK}
    handles = [
        Line2D([], [], marker=SERIES_MARKERS[j], mfc="white" if j else BLACK, label=name, **look)
        for j, name in enumerate(f"{shorten(fill, 24)} ablation" for fill in fills)
    ]
    legend_below(figure, handles)
    return figure


@CLAIMS.section(
    "head-decoding",
    "Decoding from single heads",
    "the support vector machines on outputs of heads",
    "cognitive_svm",
)
def decoding_from_heads(_: RunFolder, svm: pd.DataFrame) -> Iterator[Block]:
    """What the output of a single head says of the trial and of the response."""
    best = strongest(svm, ["target", "arm", "seed"], "accuracy", 1)
    yield from seed_tables(
        ordered(by_model(best), target=TARGETS),
        of_models(SVM),
        ["target", "arm"],
        ["accuracy", "chance", "floor", "shuffled_high"],
        "The best head of each seed (the best of many can exceed chance by selection); the floor "
        "is the accuracy from the answer or the congruence alone",
    )


@styled
def head_changes(ablation: pd.DataFrame) -> Figure:
    """Change without each head, mean over seeds: layer x head by arm and way of ablating."""
    arms = arms_of(ablation)
    means = over_seeds(ablation, ["fill", "component", "layer", "head"], ["change"])
    means = means.assign(value=100 * means["change"])
    scale = around_zero(means["value"])
    texts = [cell_text(value, scale) if np.isfinite(value) else "" for value in means["value"]]
    means["text"] = texts
    parts = {
        f"{arm_name(arm)}, {shorten(fill, 12)} ablation": rows_of(means, fill=fill, arm=arm)
        for fill in fills_of(ablation)
        for arm in arms
    }
    return draw_grids(parts, len(arms), scale, "change (points)", {}, smallest=_SMALLEST_CELL)
