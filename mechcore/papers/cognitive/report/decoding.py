"""The section of a run on the cognitive task on what its states say about the trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from mechcore.papers.cognitive.decoding import CHECK, DECODING
from mechcore.papers.cognitive.report.arms import (
    CLAIMS,
    arm_look,
    arm_name,
    arms_of,
    basis,
    by_model,
    in_percent,
    model_name,
    models_of,
    of_models,
    over_seeds,
)
from mechcore.papers.cognitive.text import VARIABLES
from mechcore.papers.pages import seed_tables
from mechcore.papers.seeds import in_order, ordered, rows_of
from mechcore.report.blocks import Block, Drawing, Paragraph, missing, table_of
from mechcore.report.drawing import (
    BLACK,
    LIGHT_GREY,
    MAX_WIDTH,
    VERMILION,
    draw_over_seeds,
    legend_below,
    new_figure,
    shorten,
    styled,
)
from mechcore.report.run_folder import RunFolder
from mechcore.wording import ALL, listed, number

_LIMITS = ["floor", "chance", "shuffled_high"]
_DOTS = (0, (1, 1.5))


@CLAIMS.section(
    "decoding",
    "Decoding",
    "the decoding of variables from the states",
    "cognitive_decoding",
    "cognitive_check",
)
def state_decoding(
    _: RunFolder, decoding: pd.DataFrame, check: pd.DataFrame | None
) -> Iterator[Block]:
    """What can be decoded from the states, layer by layer and token by token."""
    kinds = "Balanced: only trials in which that side must be ignored; "
    kinds += basis(main_rows(decoding))
    yield Drawing(
        decoding_over_prompt(decoding),
        "decoding-prompt",
        "Cross-validated accuracy of logistic regression on the states of the last layer, "
        "token by token as the prompt is read; thick lines are means over seeds. In the grey "
        f"area the variable has not been read yet, so accuracy must be at chance. {kinds}",
        "Line charts, one per variable, of decoding accuracy by position in the prompt for "
        "each arm; the numbers at the last position are in the table below.",
    )
    yield Drawing(
        decoding_maps(decoding),
        "decoding-layers",
        "The same for all layers, mean over seeds. Colours range from chance to 100 %. Red dots: "
        "not above the floor and the shuffled labels. Left of the dashed line the "
        f"variable has not been read yet. {kinds}",
        "Heatmaps, layer by position, of decoding accuracy by arm and variable.",
    )
    layer, place = decoding["layer"].max(), positions_of(decoding)[-1]
    last = by_model(rows_of(decoding, layer=layer, position=place))
    yield from seed_tables(
        ordered(last, variable=VARIABLES),
        of_models(DECODING),
        ["variable", "subset", "arm"],
        ["accuracy", *_LIMITS],
        f"Decoding from the last layer ({number(layer, 0)}) at the last position "
        f"({position_name(place)}); the floor is the accuracy from the best other variable",
    )
    yield from _check(check)


def _check(check: pd.DataFrame | None) -> Iterator[Block]:
    if check is None:
        yield missing("the check that unread variables are at chance")
        return
    broken = check[~check["holds"]]
    if len(broken) == 0:
        yield Paragraph(
            "The built-in check holds in every model: attention is causal, so variables that have "
            "not been read must be at chance, and they are."
        )
    else:
        models = listed([model_name(*model) for model in models_of(broken)])
        text = "The built-in check fails: variables are decoded above chance before they are read "
        yield Paragraph(f"{text}in {models}. Do not trust decoding there.", note=True)
    caption = "The built-in check: variables, positions and layers before anything is read; how "
    caption += "many are above chance, how many would be by chance, and p of the most accurate one"
    shown = ["arm", "seed", "n_rows", "n_above", "expected", "p", "holds"]
    yield table_of(check, of_models(CHECK), caption, shown, folded=len(broken) == 0)


def main_rows(decoding: pd.DataFrame) -> pd.DataFrame:
    """Of each variable the rows to draw: those of balanced trials where there are any."""
    balanced = decoding.loc[decoding["subset"] != ALL, "variable"].unique()
    return decoding[(decoding["subset"] != ALL) | ~decoding["variable"].isin(balanced)]


def positions_of(decoding: pd.DataFrame) -> list[str]:
    """The positions as they are read; as in the table where that differs between trials."""
    places = decoding.groupby("position", sort=False)["place"].mean()
    return [str(name) for name in (places if places.isna().any() else places.sort_values()).index]


def position_name(position: str) -> str:
    """A position in words."""
    return shorten(position.replace("_", " "), 20)


@styled
def decoding_maps(decoding: pd.DataFrame) -> Figure:
    """Accuracy of decoding, mean over seeds: layer x position by arm and variable."""
    rows = main_rows(decoding)
    arms, variables = arms_of(rows), in_order(rows["variable"], VARIABLES)
    places, n_layers = positions_of(rows), int(rows["layer"].max()) + 1
    means = over_seeds(rows, ["variable", "layer", "position", "read"], ["accuracy", *_LIMITS])
    means = in_percent(means, "accuracy", *_LIMITS)
    height = float(np.clip(0.2 * n_layers, 0.9, 3.4))
    width = float(np.clip(0.3 * len(places), 1.1, 2.2))
    figure = new_figure(
        min(len(variables) * (width + 0.15) + 1.7, MAX_WIDTH), len(arms) * (height + 0.3) + 1.1
    )
    axes = figure.subplots(len(arms), len(variables), sharex=True, sharey=True, squeeze=False)
    chance = means["chance"].min()
    norm = Normalize(chance if np.isfinite(chance) else 0, 100)
    for row, arm in zip(axes, arms, strict=True):
        for ax, variable in zip(row, variables, strict=True):
            _draw_map(ax, rows_of(means, arm=arm, variable=variable), places, n_layers, norm)
        row[0].set_ylabel(f"{arm_name(arm)}\n\nlayer")
    for ax, variable in zip(axes[0], variables, strict=True):
        ax.set_title(shorten(variable, 16))
    scale = ScalarMappable(norm, "Blues")
    figure.colorbar(scale, ax=axes, label="accuracy (%)", fraction=0.03, aspect=25)
    return figure


def _draw_map(
    ax: Axes, part: pd.DataFrame, places: Sequence[str], n_layers: int, norm: Normalize
) -> None:
    values = part.groupby(["layer", "position"])["accuracy"].mean().unstack()
    values = values.reindex(index=range(n_layers), columns=list(places))
    palette = matplotlib.colormaps["Blues"].with_extremes(bad=LIGHT_GREY)
    ax.imshow(values, cmap=palette, norm=norm, aspect="auto", interpolation="nearest")
    weak = part[part["accuracy"] <= part[["floor", "shuffled_high"]].max(axis=1)]
    size = 9 if n_layers <= 16 else 4
    at = weak["position"].map(places.index)
    ax.scatter(at, weak["layer"], s=size, color=VERMILION, linewidths=0)
    unread = rows_of(part, read="no")["position"].map(places.index)
    if len(unread):
        ax.axvline(unread.max() + 0.5, color=BLACK, lw=1.1, ls=(0, (3, 2)))
    _name_positions(ax, places)
    ax.yaxis.set_major_locator(MaxNLocator(min(n_layers, 8), integer=True))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _name_positions(ax: Axes, places: Sequence[str]) -> None:
    ax.set_xticks(range(len(places)), labels=[position_name(name) for name in places])
    ax.tick_params(axis="x", rotation=90)


@styled
def decoding_over_prompt(decoding: pd.DataFrame) -> Figure:
    """Accuracy of decoding from the last layer at each position: a panel per variable."""
    rows = in_percent(main_rows(decoding), "accuracy", *_LIMITS)
    rows, places = rows_of(rows, layer=rows["layer"].max()), positions_of(rows)
    rows = rows.assign(at=rows["position"].map(places.index))
    variables = in_order(rows["variable"], VARIABLES)
    figure = new_figure(min(1.2 + 2.3 * len(variables), MAX_WIDTH), 4.3)
    axes = figure.subplots(1, len(variables), sharey=True, squeeze=False)[0]
    handles: dict[str, Line2D | Patch] = {}
    for ax, variable in zip(axes, variables, strict=True):
        part = rows_of(rows, variable=variable)
        _draw_limits(ax, part)
        for arm in arms_of(rows):
            of_arm, look = rows_of(part, arm=arm), arm_look(arm)
            handles |= draw_over_seeds(ax, of_arm, "at", "accuracy", arm_name(arm), *look)
        subset = in_order(part["subset"], [ALL])[0]
        ax.set_title(f"{shorten(variable, 16)}\n{shorten(subset, 16)} trials")
        _name_positions(ax, places)
        ax.set_xlim(-0.5, len(places) - 0.5)
        ax.grid(axis="y")
    axes[0].set_ylim(min(40.0, float(np.nanmin(rows["accuracy"])) - 3), 103)
    axes[0].set_ylabel("accuracy (%)")
    chance = Line2D([], [], color=BLACK, lw=0.9, ls=_DOTS, label="chance")
    floor = Line2D([], [], color=BLACK, lw=2.2, label="floor: from another variable")
    area = Patch(facecolor=LIGHT_GREY, label="not read yet")
    legend_below(figure, [*handles.values(), floor, chance, area], columns=3)
    return figure


def _draw_limits(ax: Axes, part: pd.DataFrame) -> None:
    """Chance, the floor at each position, and where nothing is read yet."""
    ax.axhline(part["chance"].mean(), color=BLACK, lw=0.9, ls=_DOTS, zorder=1)
    floors = part.groupby("at")["floor"].mean()
    ax.hlines(floors, floors.index - 0.3, floors.index + 0.3, colors=BLACK, lw=2.2, zorder=2)
    for place in rows_of(part, read="no")["at"].unique():
        ax.axvspan(place - 0.5, place + 0.5, color=LIGHT_GREY, alpha=0.6, lw=0, zorder=0)
