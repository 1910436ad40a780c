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
from mechcore.papers.cognitive.attention import ATTENTION, ATTENTION_CHANGE
from mechcore.papers.cognitive.report.arms import (
    arm_look,
    arm_name,
    arms_of,
    basis,
    by_arm,
    by_model,
    fills_of,
    model_name,
    models_of,
    of_models,
    over_seeds,
)
from mechcore.papers.cognitive.report.words import CLAIMS
from mechcore.papers.cognitive.svm import SVM
from mechcore.report.blocks import (
    Block,
    Drawing,
    OverSeeds,
    Paragraph,
    Shown,
    Table,
    missing,
    table_of,
)
from mechcore.report.drawing import (
    BLACK,
    GREY,
    MAX_WIDTH,
    SERIES_MARKERS,
    around_zero,
    cell_text,
    dots_of,
    draw_by_layer,
    draw_dots,
    draw_grids,
    layer_bar,
    layer_norm,
    legend_below,
    new_figure,
    offsets,
    shorten,
    styled,
)
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import SEEDS, in_order, ordered, rows_of, seeds_in, strongest
from mechcore.tables import COMPONENT, Column
from mechcore.wording import ALL, NOT_AVAILABLE

TARGETS = ("choice", "correct", "congruent", "condition")
SURE = "centre_significant"
"""The column with the centre of those heads alone whose change is surely below 0."""
_HEAD = COMPONENT.called("head")
_TOP = 5
"""Heads of an arm in a table."""
_SMALLEST_CELL = 0.06


# -- ablation -----------------------------------------------------------------------------------


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
        "Change of accuracy without each head alone, in points, mean over seeds. Red: the model is "
        f"worse without the head; {basis(ablation)}",
        "Heatmaps, layer by head, of the change of accuracy without each head, by arm and "
        "way of ablating; the largest are in the table below.",
    )
    if len(seeds_in(ablation)) > 1:
        yield Paragraph(
            "Heads of a layer have no order: from scratch, the same head of two seeds need not be "
            "alike, so means over seeds tell more of layers than of heads."
        )
    for i, fill in enumerate(fills_of(ablation)):
        yield _strongest(rows_of(ablation, fill=fill), fill, folded=i > 0)
    keys = ["fill", "arm", "seed"]
    rows = by_model(strongest(ablation, keys, "change", _TOP, lowest=True))
    caption = f"The {_TOP} heads of every seed with the lowest change, with intervals"
    shown: list[Shown] = ["arm", "seed", "fill", _HEAD]
    shown += ["change", "incongruent_change", "margin_change"]
    rows = ordered(rows, fill=fills_of(ablation))
    yield table_of(rows, of_models(ABLATION), caption, shown, folded=True)


def _strongest(of_fill: pd.DataFrame, fill: str, *, folded: bool) -> Table:
    values = ["change", "incongruent_change", "margin_change", "sure"]
    means = over_seeds(of_fill.astype({"sure": float}), ["component"], values)
    best = by_arm(strongest(means, ["arm"], "change", _TOP, lowest=True))
    sure = [f"{share * n:.0f} of {n}" for share, n in zip(best["sure"], best["seeds"], strict=True)]
    caption = f"The {_TOP} heads of each arm with the lowest change under {fill} ablation: means "
    caption += "over seeds; in how many seeds the change is surely below 0, corrected for the "
    caption += "number of heads (Bonferroni)"
    shown: list[Shown] = ["arm", _HEAD, "change", OverSeeds("change"), ("surely below 0", sure)]
    shown += ["incongruent_change", "margin_change"]
    return table_of(best, of_models(ABLATION), caption, shown, folded=folded)


def _centres(mass: pd.DataFrame, n_layers: int | None) -> Iterator[Block]:
    yield Drawing(
        centres(mass, n_layers),
        "ablation-centres",
        "Centre of mass of the changes over layers, counted from 0, with its interval over trials. "
        "Noise gives many heads a small negative change and pulls centres to the middle layer, so "
        "the panel on the right is of those heads alone whose change is surely below 0; it is "
        f"empty where there is none; {basis(mass)}",
        "Dot plot of the centre of mass of the changes, a row per model; the numbers are in the "
        "tables below.",
    )
    keys = ["fill", "subset"]
    means = over_seeds(mass, keys, ["centre", SURE, "first_layer_share", "total_change"])
    caption = "Centre of mass of the changes (layers from 0), the same of those heads alone whose "
    caption += (
        "change is surely below 0, and the share of changes in the first layer: means over the "
    )
    caption += "seeds that have one, in brackets how many where not all do"
    shown: list[Shown] = ["arm", *keys, SEEDS, "centre", OverSeeds("centre")]
    shown += [SURE, OverSeeds(SURE), "first_layer_share", "total_change"]
    yield table_of(means, of_models(MASS), caption, shown)
    caption = "Every seed: centre with its interval; in how many resamples there is none; the "
    caption += "same of those heads alone whose change is surely below 0, and how many they are"
    shown = ["arm", "seed", *keys, "centre", "undefined", SURE, "n_significant"]
    shown += ["first_layer_share", "strongest"]
    rows = mass.assign(strongest=mass["strongest"].replace("", NOT_AVAILABLE))
    yield table_of(rows, of_models(MASS), caption, shown, folded=True)


@styled
def centres(mass: pd.DataFrame, n_layers: int | None = None) -> Figure:
    """Centre of mass over layers with its interval: a row per model, a panel per subset.

    The last panel is of heads alone whose change is surely below 0.
    """
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
        sure = "\nonly heads surely below 0" if column == SURE else ""
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


# -- attention to the numbers ---------------------------------------------------------------------


@CLAIMS.section(
    "number-attention",
    "Attention to the numbers",
    "the measure of attention to number tokens",
    "cognitive_attention",
    "cognitive_attention_change",
)
def number_attention(
    run: RunFolder, attention: pd.DataFrame, change: pd.DataFrame | None
) -> Iterator[Block]:
    """How much heads attend to numbers, and whether those are the heads that matter."""
    ablation, counts = run.filled("cognitive_ablation"), basis(attention, None)
    if ablation is not None:
        fill = fills_of(ablation)[0]
        yield Drawing(
            attention_and_change(attention, rows_of(ablation, fill=fill)),
            "attention-change",
            "A dot per head and seed: attention to number tokens, as a multiple of what a uniform "
            f"head would give, and the change of accuracy without the head ({fill} ablation). "
            f"{counts}",
            "Scatter plots, one per arm, of attention to numbers against the change without each "
            "head, coloured by layer; correlations are in the table below.",
        )
    if change is None:
        yield missing("the correlation of attention with changes")
    else:
        caption = "Correlation over heads of attention to numbers with the change, and attention "
        caption += "to numbers (times uniform): mean of the first layer, of all others, and of all "
        caption += "heads weighted by what they cost"
        columns = ["arm", "seed", "fill", "n_heads", "rho", "p"]
        columns += ["first_layer_ratio", "other_ratio", "top_ratio"]
        yield table_of(by_arm(change), of_models(ATTENTION_CHANGE), caption, columns)
    caption = f"The {_TOP} heads of every seed that attend to numbers most, with intervals"
    rows = by_model(strongest(attention, ["arm", "seed"], "ratio", _TOP))
    shown: list[Shown] = ["arm", "seed", COMPONENT.called("head"), "mass", "uniform", "ratio"]
    yield table_of(rows, of_models(ATTENTION), caption, shown, folded=True)


@styled
def attention_and_change(attention: pd.DataFrame, changes: pd.DataFrame) -> Figure:
    """Attention to numbers against the change without the head, a dot per head and seed by arm.

    ``changes`` are the rows of one way of ablating.
    """
    head = ["arm", "seed", "component"]
    both = attention.merge(changes[[*head, "change"]], on=head)
    arms, layers = arms_of(both), layer_norm(both["layer"])
    figure = new_figure(min(1.6 + 2.9 * len(arms), MAX_WIDTH), 3.5)
    axes = figure.subplots(1, len(arms), sharex=True, sharey=True, squeeze=False)[0]
    for ax, arm in zip(axes, arms, strict=True):
        part = rows_of(both, arm=arm)
        ax.axvline(1, color=GREY, lw=0.9, ls=(0, (5, 2)))
        ax.axhline(0, color=GREY, lw=0.9)
        draw_by_layer(ax, part["ratio"], 100 * part["change"], part["layer"], layers)
        ax.set_title(arm_name(arm))
        ax.set_xlabel("attention to numbers (times uniform)")
    axes[0].set_ylabel("change without the head (points)")
    axes[0].set_xlim(left=0)
    layer_bar(figure, axes, layers)
    return figure


# -- decoding from heads ------------------------------------------------------------------------


@CLAIMS.section(
    "head-decoding",
    "Decoding from single heads",
    "the support vector machines on outputs of heads",
    "cognitive_svm",
)
def decoding_from_heads(_: RunFolder, svm: pd.DataFrame) -> Iterator[Block]:
    """What the output of a single head says of the trial and of the response."""
    yield _best_heads(svm)
    best = by_model(strongest(svm, ["target", "arm", "seed"], "accuracy", _TOP))
    caption = f"The {_TOP} best heads of every seed, with intervals"
    shown = ["target", "arm", "seed", "component", "n", "accuracy", "shuffled_high", "p"]
    yield table_of(ordered(best, target=TARGETS), of_models(SVM), caption, shown, folded=True)


def _best_heads(svm: pd.DataFrame) -> Table:
    """Of every arm and target, means over seeds of what the best head of each seed reaches."""
    known = svm.assign(floor=svm.get("floor", svm["chance"])).dropna(subset=["accuracy"])
    best = strongest(known, ["target", "arm", "seed"], "accuracy", 1)
    keys = ["target", "arm"]
    means = over_seeds(best, ["target"], ["accuracy", "floor", "shuffled_high"])
    names = best.sort_values("seed").groupby(keys)["component"].agg(", ".join).rename("heads")
    every = svm.groupby(keys).agg(chance=("chance", "mean"), n_seeds=("seed", "nunique"))
    rows = every.reset_index().merge(means, how="left", on=keys).merge(names, how="left", on=keys)
    rows = ordered(by_arm(rows), target=TARGETS).fillna({"heads": NOT_AVAILABLE, "seeds": 0})
    seeds = [f"{n:.0f} of {of}" for n, of in zip(rows["seeds"], rows["n_seeds"], strict=True)]
    caption = "The best head of each seed, mean over seeds (the best of many is above chance by "
    caption += "chance alone); the floor is what the answer or the congruence alone gives away"
    schema = of_models(SVM)
    shown: list[Shown] = ["target", "arm", ("seeds", seeds), schema["accuracy"].called("best head")]
    shown += [OverSeeds("accuracy"), "chance", "floor", "shuffled_high"]
    shown += [Column("heads", "text", header="heads, by seed")]
    return table_of(rows, schema, caption, shown)


# -- maps of heads ------------------------------------------------------------------------------


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
