"""Sections of a run on the cognitive task on what is lost without heads, and what they say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mechcore.papers.cognitive.ablation import ABLATION, MASS
from mechcore.papers.cognitive.report.arms import (
    arm_look,
    arm_name,
    arms_of,
    basis,
    by_arm,
    by_model,
    fills_of,
    in_percent,
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
    LIGHT_GREY,
    MAX_WIDTH,
    SERIES_MARKERS,
    Dots,
    GridShape,
    draw_dots,
    draw_grid,
    intervals,
    legend_below,
    new_figure,
    offsets,
    shorten,
    styled,
)
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import SEEDS, in_order, ordered, rows_of, seeds_in, strongest
from mechcore.tables import COMPONENT, Column
from mechcore.wording import ALL, NOT_AVAILABLE, number

TARGETS = ("choice", "correct", "congruent", "condition")
SURE = "centre_significant"
"""The column with the centre of those heads alone whose change is surely below 0."""
_HEAD = COMPONENT.called("head")
_TOP = 5
"""Heads of an arm in a table."""
_SMALLEST_CELL = 0.06
_MAP = 0.45
"""Room for the labels of a map beside others, in inches."""


# -- ablation -----------------------------------------------------------------------------------


@CLAIMS.section("head-ablation", "Ablation of heads", "", "cognitive_ablation", "cognitive_mass")
def head_ablation(
    run: RunFolder, ablation: pd.DataFrame | None, mass: pd.DataFrame | None
) -> Iterator[Block]:
    """What the model loses without each head, and in which layers."""
    if ablation is None and mass is None:
        yield missing("the ablation of single heads")
        return
    n_layers = (run.config.get("model") or {}).get("n_layers")
    if ablation is not None:
        n_layers = int(ablation["layer"].max()) + 1
        yield from _changes(ablation)
    if mass is None:
        yield missing("the centres of mass over layers")
    else:
        yield from _centres(mass, n_layers if isinstance(n_layers, int) else None)


def _changes(ablation: pd.DataFrame) -> Iterator[Block]:
    yield Drawing(
        head_changes(ablation),
        "head-changes",
        "Change of accuracy without each head alone, in points, mean over seeds. Red: the model is "
        f"worse without the head. Every row of panels has its own scale; {basis(ablation)}",
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
        series = [
            _centre_dots(rows_of(part, arm=arm, fill=fill), arm_look(arm)[0], j, shift, column)
            for arm in arms_of(mass)
            for j, (fill, shift) in enumerate(zip(fills, offsets(len(fills), 0.3), strict=True))
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
        Line2D([], [], marker=_marker(j), mfc="white" if j else BLACK, label=name, **look)
        for j, name in enumerate(f"{shorten(fill, 24)} ablation" for fill in fills)
    ]
    legend_below(figure, handles)
    return figure


def _marker(j: int) -> str:
    return SERIES_MARKERS[j % len(SERIES_MARKERS)]


def _centre_dots(part: pd.DataFrame, colour: str, j: int, shift: float, column: str) -> Dots:
    ends = ("significant_low", "significant_high") if column == SURE else ("low", "high")
    low, high = (part.get(end, part[column]).where(part[column].notna()) for end in ends)
    rows, hollow = part["row"].to_numpy(), np.full(len(part), j > 0)
    lines = intervals(rows, low, high)
    return Dots("", colour, _marker(j), rows, part[column].to_numpy(), lines, hollow, shift)


# -- decoding from heads ------------------------------------------------------------------------


@CLAIMS.section(
    "head-decoding",
    "Decoding from single heads",
    "the support vector machines on outputs of heads",
    "cognitive_svm",
)
def decoding_from_heads(_: RunFolder, svm: pd.DataFrame) -> Iterator[Block]:
    """What the output of a single head says of the trial and of the response."""
    grey = " Grey: too few examples of a class." if svm["accuracy"].isna().any() else ""
    yield Drawing(
        head_decoding(svm),
        "head-decoding",
        "Cross-validated accuracy of a linear support vector machine on the output of each head at "
        f"the last token, mean over seeds. Colours go from chance to the best head of a "
        f"column.{grey} Here {basis(svm)}",
        "Heatmaps, layer by head, of the accuracy of decoding from each head, by arm and by what "
        "is decoded; the best heads are in the table below.",
    )
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
    arms, fills = arms_of(ablation), fills_of(ablation)
    means = over_seeds(ablation, ["fill", "component", "layer", "head"], ["change"])
    means, palette = in_percent(means, "change"), matplotlib.colormaps["RdBu"]
    shape, figure, axes = _maps(ablation, len(fills), len(arms), bars_below=False)
    for row, fill in zip(axes, fills, strict=True):
        of_fill = rows_of(means, fill=fill)
        most = float(of_fill["change"].abs().max())
        scale = ScalarMappable(Normalize(-(most or 1.0), most or 1.0), palette)
        for ax, arm in zip(row, arms, strict=True):
            part = rows_of(of_fill, arm=arm)
            _draw_map(ax, shape, part, "change", scale, 0 if most >= 10 else 1)
        row[0].set_ylabel(f"{shorten(fill, 12)} ablation\n\nlayer")
        figure.colorbar(scale, ax=row, label="change (points)", fraction=0.04, aspect=18)
    _name_maps(axes, [arm_name(arm) for arm in arms])
    return figure


@styled
def head_decoding(svm: pd.DataFrame) -> Figure:
    """Accuracy of decoding from each head, mean over seeds: layer x head by arm and target.

    Colours go from chance to the best head of a target; heads without a value are grey.
    """
    arms, targets = arms_of(svm), in_order(svm["target"], TARGETS)
    keys = ["target", "component", "layer", "head"]
    means = in_percent(over_seeds(svm, keys, ["accuracy", "chance"]), "accuracy", "chance")
    shape, figure, axes = _maps(svm, len(arms), len(targets), bars_below=True)
    for column, target in zip(axes.T, targets, strict=True):
        of_target = rows_of(means, target=target)
        chance, best = of_target["chance"].min(), of_target["accuracy"].max()
        chance = chance if np.isfinite(chance) else 0.0
        end = max(best, chance + 5) if np.isfinite(best) else 100.0
        scale = ScalarMappable(Normalize(chance, end), matplotlib.colormaps["Blues"])
        for ax, arm in zip(column, arms, strict=True):
            part = rows_of(of_target, arm=arm)
            _draw_map(ax, shape, part, "accuracy", scale, 0)
            ax.set_visible(len(part) > 0)
        bar = figure.colorbar(scale, ax=column, location="bottom", fraction=0.05, aspect=14)
        ends = (chance, end) if np.isfinite(best) else ()
        bar.set_ticks(ends, labels=[f"{end:.3g}" for end in ends])
        bar.set_label("accuracy (%)" if ends else "too few examples")
    for row, arm in zip(axes, arms, strict=True):
        row[0].set_ylabel(f"{arm_name(arm)}\n\nlayer")
    _name_maps(axes, [shorten(SVM["target"].show(target), 18) for target in targets])
    return figure


def _maps(
    table: pd.DataFrame, rows: int, columns: int, *, bars_below: bool
) -> tuple[GridShape, Figure, np.ndarray]:
    """Empty panels for maps of heads, rows by columns, and the shape of each."""
    shape = GridShape.of(table, columns, _SMALLEST_CELL)
    width = columns * max(shape.cell * shape.width + _MAP, 1.35) + (0.7 if bars_below else 1.5)
    height = rows * (shape.cell * shape.n_layers + _MAP) + (1.3 if bars_below else 0.6)
    figure = new_figure(max(width, 4.0), height, square_cells=True)
    return shape, figure, figure.subplots(rows, columns, squeeze=False)


def _draw_map(
    ax: Axes, shape: GridShape, part: pd.DataFrame, column: str, scale: ScalarMappable, digits: int
) -> None:
    """One map of heads; heads without a value are grey."""
    values = part[column]
    colours = [scale.to_rgba(v) if np.isfinite(v) else LIGHT_GREY for v in values]
    texts = [number(v, digits) if np.isfinite(v) else "" for v in values]
    draw_grid(ax, shape, part, colours, texts, {})
    ax.set_xlabel("")
    ax.set_ylabel("")


def _name_maps(axes: np.ndarray, titles: Sequence[str]) -> None:
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title)
    for ax in axes[-1]:
        ax.set_xlabel("head")
