"""Figures of a training, accuracy and loss over steps, and of what repairs gain by examples."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mechcore.report.drawing import (
    BLACK,
    BLUE,
    GREY,
    VERMILION,
    draw_by_name,
    legend_below,
    new_figure,
    shorten,
    styled,
)
from mechcore.wording import ALL, count, split_name

_LOOK = {"id": ("ID", BLUE, "o"), "ood": ("OOD", VERMILION, "s")}
_DASHES = ((0, ()), (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
_SHADES = (GREY, "#B08B6A")
_MOST_NAMED = len(_DASHES) * len(_SHADES)
_MOST_MARKED = 40


@styled
def training_curves(history: pd.DataFrame) -> Figure:
    """Accuracy over steps (means over subsets; out-of-domain subsets thin), with the loss below."""
    figure = new_figure(8.6, 5.2)
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
    legend_below(figure, [*bold, *thin], columns=4)
    return figure


@styled
def gains_by_examples(repair: pd.DataFrame) -> Figure:
    """Gain of each rung against the number of repair examples, with intervals."""
    places = [place for place in dict.fromkeys(repair["place"]) if place != "in domain"]
    figure = new_figure(4.2 * len(places), 3.6)
    for ax, place in zip(figure.subplots(1, len(places), squeeze=False)[0], places, strict=True):
        part = repair[(repair["place"] == place) & (repair["rung"] != "none")]
        ends = [name for name in part if name.startswith("gain")]
        part = part.assign(**{name: 100 * part[name] for name in ends})
        part = part.sort_values("n_examples", kind="stable")
        draw_by_name(ax, part, "rung", "n_examples", "gain")
        ax.axhline(0, color=GREY, lw=0.8)
        ax.set(title=place, xlabel="repair examples", ylabel="gain (points)")
    legend_below(figure, ax.lines[:-1], columns=5)
    return figure
