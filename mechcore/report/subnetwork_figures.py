"""Figures that compare subnetworks, methods, checkpoints and repairs, and of a training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mechcore.report import drawing
from mechcore.report.drawing import (
    BLACK,
    BLUE,
    GREY,
    SERIES_COLOURS,
    SERIES_MARKERS,
    VERMILION,
    shorten,
)
from mechcore.wording import ALL, count, number, split_name

_TITLES = {
    "auroc": "AUROC",
    "cmd": "CMD (0 is best)",
    "signs": "right signs of interactions (share)",
}

_LOOK = {"id": ("ID", BLUE, "o"), "ood": ("OOD", VERMILION, "s")}
_DASHES = ((0, ()), (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
_SHADES = (GREY, "#B08B6A")
_MOST_NAMED = len(_DASHES) * len(_SHADES)
_MOST_MARKED = 40

_MAX_LABELLED = 24
_LEGEND_ROOM = 70  # letters in one row


@drawing.styled
def head_overlap(table: pd.DataFrame) -> Figure:
    """Jaccard index of the heads of every pair of subnetworks."""
    names = list(dict.fromkeys([*table["first"], *table["second"]]))
    values = pd.DataFrame(np.eye(len(names)), names, names)
    for first, second, jaccard in table[["first", "second", "jaccard"]].to_numpy():
        values.loc[first, second] = values.loc[second, first] = jaccard
    few = len(names) <= _MAX_LABELLED
    side = max(2.4, (0.45 if few else 0.16) * len(names))
    figure = drawing.new_figure(side + 2.2, side + 1.2, square_cells=True)
    ax = figure.subplots()
    scale = ScalarMappable(Normalize(0, 1), "Blues")
    drawing.draw_cells(ax, values.to_numpy(), scale, number if few else None)
    labels = [shorten(name, 24) for name in names]
    size = 8 if few else 5
    ax.set_xticks(range(len(names)), labels, rotation=90, fontsize=size)
    ax.set_yticks(range(len(names)), labels, fontsize=size)
    drawing.colour_bar(figure, ax, scale, "shared heads / heads of either")
    return figure


@drawing.styled
def kl_by_sparsity(methods: pd.DataFrame) -> Figure:
    """KL from the full model against sparsity, one line per method: mean and range over seeds."""
    figure = drawing.new_figure(7.4, 4.0 + 0.08 * methods["method"].nunique())
    ax = figure.subplots()
    share = 100 * methods["target_sparsity"]
    drawing.draw_by_name(ax, methods.assign(share=share), "method", "share", "kl")
    ax.set(xlabel="target sparsity (%)", ylabel="KL from the full model, in domain (nats)")
    ax.set_ylim(bottom=0)
    drawing.legend_below(figure, ax.lines, columns=3)
    return figure


@drawing.styled
def effective_sizes(means: pd.DataFrame) -> Figure:
    """Accuracy of the full model and effective size over checkpoints, one line per group."""
    groups = list(dict.fromkeys(means["group"]))
    figure = drawing.new_figure(8.6, 3.9 + 0.2 * (len(groups) // 3))
    left, right = figure.subplots(1, 2)
    checkpoints = list(dict.fromkeys(means["checkpoint"]))
    numeric = pd.to_numeric(pd.Series(checkpoints), errors="coerce").notna().all()
    place = {c: float(c) if numeric else i for i, c in enumerate(checkpoints)}
    shade = 0.15 if len(groups) <= 3 else 0.07
    handles = []
    for i, group in enumerate(groups):
        part = means[means["group"] == group]
        x, colour = part["checkpoint"].map(place), SERIES_COLOURS[i % len(SERIES_COLOURS)]
        marker = SERIES_MARKERS[i % len(SERIES_MARKERS)]
        # Earlier groups have wider lines, to stay visible under others with the same values.
        look: dict[str, Any] = {"color": colour, "ls": drawing.DASHES[i % len(drawing.DASHES)]}
        look |= {"lw": max(2.6 - 0.4 * i, 1.2)}
        label = shorten(group, 30)
        handles += left.plot(x, 100 * part["full_accuracy"], marker=marker, label=label, **look)
        right.fill_between(
            x, 100 * part["low"], 100 * part["high"], color=colour, alpha=shade, linewidth=0
        )
        right.plot(x, 100 * part["effective_size"], **look)
        every = part["n_faithful"] == part["n_seeds"]
        for chosen, face in ((every, colour), (~every, "white")):
            sizes = 100 * part["effective_size"][chosen]
            right.plot(x[chosen], sizes, marker, color=colour, mfc=face)
    left.set_ylabel("accuracy of the full model (%)")
    right.set_ylabel("effective size (% of components)")
    for ax in (left, right):
        ax.set_ylim(0, 102)
        ax.set_xlabel("training step" if numeric else "checkpoint")
        if numeric:
            ax.xaxis.set_major_locator(MaxNLocator(6))
        else:
            ax.set_xticks(list(place.values()), [shorten(str(c), 16) for c in checkpoints])
    if (means["n_faithful"] < means["n_seeds"]).any():
        look = {"ls": "none", "marker": "o", "color": BLACK, "mfc": "white"}
        handles += [Line2D([], [], label="not faithful for every seed", **look)]
    long = sum(len(str(handle.get_label())) for handle in handles) > _LEGEND_ROOM
    drawing.legend_below(figure, handles, columns=3 if long else len(handles))
    return figure


@drawing.styled
def recovery(table: pd.DataFrame, means: pd.DataFrame, columns: list[str]) -> Figure:
    """Every case as a dot, and the mean over cases: a row per method, a panel per column."""
    methods = means["method"].tolist()
    place = {method: row for row, method in enumerate(methods)}
    figure = drawing.new_figure(1.6 + 3.2 * len(columns), 1.0 + 0.32 * len(methods))
    for i, (ax, column) in enumerate(
        zip(np.atleast_1d(figure.subplots(1, len(columns))), columns, strict=True)
    ):
        rows = table["method"].map(place).to_numpy()
        jitter = np.random.default_rng(0).uniform(-0.22, 0.22, len(rows))
        every = drawing.Dots("a case", GREY, ".", rows + jitter, table[column].to_numpy(), size=12)
        at = np.arange(len(methods))
        lines = drawing.intervals(at, means[f"{column}_low"], means[f"{column}_high"])
        mean = drawing.Dots("mean over cases", BLUE, "o", at, means[column].to_numpy(), lines)
        handles = drawing.draw_dots(ax, [every, mean], methods if i == 0 else [""] * len(methods))
        ax.set_xlabel(_TITLES.get(column, column))
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


@drawing.styled
def training_curves(history: pd.DataFrame) -> Figure:
    """Accuracy over steps (means over subsets; out-of-domain subsets thin), with the loss below."""
    figure = drawing.new_figure(8.6, 5.2)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    by_step = (
        100
        * history.pivot_table(
            index="step", columns=["split", "subset"], values="accuracy", sort=False
        ).sort_index()
    )
    marked = len(by_step) <= _MOST_MARKED
    bold: list[Any] = []
    thin: list[Any] = []
    for split in dict.fromkeys(history["split"]):
        subsets = [name for name in by_step[split].columns if name != ALL]
        label, colour, marker = _LOOK.get(split, (split_name(split), GREY, "^"))
        for i, name in enumerate(subsets if split == "ood" else ()):
            few = len(subsets) <= _MOST_NAMED
            dashes, shade = (i % len(_DASHES), i // len(_DASHES)) if few else (0, 0)
            look: dict[str, Any] = {"color": _SHADES[shade], "ls": _DASHES[dashes], "lw": 0.9}
            text = shorten(str(name), 24) if few else f"{count(len(subsets), 'subset')} of {label}"
            lines = top.plot(by_step.index, by_step[split][name], label=text, **look)
            thin += lines if few or i == 0 else []
        values = by_step[split][subsets or [ALL]].mean(axis=1)
        label += f", mean of {count(len(subsets), 'subset')}" if subsets else ", all examples"
        look = {"color": colour, "marker": marker if marked else None, "ms": 4.5, "lw": 2.2}
        bold += top.plot(values.index, values, label=label, zorder=3, **look)
    loss = history.groupby("step")["loss"].first()
    bottom.plot(loss.index, loss, color=BLACK, lw=1.4, marker="." if marked else None)
    top.set(ylim=(0, 102), ylabel="accuracy (%)")
    bottom.set(xlabel="training step", ylabel="loss (nats)")
    bottom.set_ylim(bottom=0)
    bottom.set_xlim(left=0)
    bottom.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    for ax in (top, bottom):
        ax.grid(axis="y")
    drawing.legend_below(figure, [*bold, *thin], columns=4)
    return figure


@drawing.styled
def gains_by_examples(repair: pd.DataFrame) -> Figure:
    """Gain of each rung against the number of repair examples, with intervals."""
    places = [place for place in dict.fromkeys(repair["place"]) if place != "in domain"]
    figure = drawing.new_figure(4.2 * len(places), 3.6)
    for ax, place in zip(figure.subplots(1, len(places), squeeze=False)[0], places, strict=True):
        part = repair[(repair["place"] == place) & (repair["rung"] != "none")]
        ends = [name for name in part if name.startswith("gain")]
        part = part.assign(**{name: 100 * part[name] for name in ends})
        part = part.sort_values("n_examples", kind="stable")
        drawing.draw_by_name(ax, part, "rung", "n_examples", "gain")
        ax.axhline(0, color=GREY, lw=0.8)
        ax.set(title=place, xlabel="repair examples", ylabel="gain (points)")
    drawing.legend_below(figure, ax.lines[:-1], columns=5)
    return figure
