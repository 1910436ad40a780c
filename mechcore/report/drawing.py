"""The common look of all figures, and the shapes they are made of: dots, cells and grids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's palette, distinguishable with every common kind of colour vision.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, LIGHT_GREY = "#767676", "#DDDDDD"
SERIES_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)
SERIES_MARKERS = ("o", "s", "^", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1, 1.5)))
SPLIT_COLOURS = {"id": BLUE, "ood": VERMILION}

SCALES = {"accuracy": 100.0, "margin": 1.0}
"""Factor from a table's change to points or nats."""

MAX_WIDTH = 10.0  # inches

_STYLE: dict[str, Any] = {
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "mechcore",  # the same tables give the same bytes
    "text.parse_math": False,  # a $ in a subset's name is a dollar sign
}


@contextmanager
def style() -> Iterator[None]:
    """Draw and save in the report's style, whatever the caller's matplotlib settings."""
    with matplotlib.style.context(["default", _STYLE]):
        yield


styled = style()


def new_figure(width: float, height: float, *, square_cells: bool = False) -> Figure:
    """A figure without global state, with its labels inside the canvas."""
    layout: Any = "compressed" if square_cells else "constrained"
    return Figure(figsize=(width, height), layout=layout)


def shorten(text: str, limit: int = 44) -> str:
    """Abbreviate a long label in the middle, to leave room for the plot."""
    if len(text) <= limit:
        return text
    tail = limit // 2
    return f"{text[: limit - tail - 1]}\u2026{text[-tail:]}"


def legend_below(figure: Figure, handles: Sequence[Any], columns: int = 4) -> None:
    """One legend under all panels."""
    figure.legend(
        handles=list(handles), loc="outside lower center", ncols=min(columns, len(handles))
    )


def panels(
    n: int, columns: int, width: float, height: float, *, least: float = 0.0
) -> tuple[Figure, np.ndarray]:
    """Panels of square cells, a number per row; inches of each, minimum width of the figure."""
    rows = -(-n // columns)
    size = (max(columns * width + 0.9, least), rows * height + 0.2)
    figure = new_figure(*size, square_cells=True)
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat[n:]:
        ax.set_visible(False)
    return figure, axes


def around_zero(values: Any, share: float = 1, least: float = 0.0) -> ScalarMappable:
    """Red below zero, blue above; saturates at the quantile ``share`` of sizes, or ``least``."""
    sizes = np.abs(np.asarray(values, dtype=float))
    most = float(np.nanquantile(sizes, share)) if np.isfinite(sizes).any() else 0.0
    most = max(most, least) or 1.0
    return ScalarMappable(Normalize(-most, most), "RdBu")


def cell_text(value: float, scale: ScalarMappable) -> str:
    """A number in a cell, with as many decimals as the largest value of the figure needs."""
    most: Any = scale.norm.vmax or 0
    text = f"{value:.0f}" if most >= 10 else f"{value:.1f}" if most >= 1 else f"{value:.2f}"
    return text.removeprefix("-") if not float(text) else text


def colour_bar(
    figure: Figure, axes: Any, scale: ScalarMappable, label: str, extend: str = "neither"
) -> Any:
    """A colour bar beside all panels."""
    shape: dict[str, Any] = {"fraction": 0.03, "aspect": 25, "extend": extend}
    return figure.colorbar(scale, ax=axes, label=label, **shape)


def draw_over_seeds(
    ax: Axes, rows: pd.DataFrame, x: str, y: str, name: str, colour: str, marker: str
) -> dict[str, Any]:
    """The mean over seeds as a thick, labelled line, and single seeds as thin lines."""
    by_seed = rows.groupby([x, "seed"])[y].mean().unstack()
    n = by_seed.shape[1]
    if n > 1:
        ax.plot(by_seed, color=colour, marker=marker, ms=2.5, lw=0.8, alpha=0.55)
        name += f", mean of {n} seeds"
    look: dict[str, Any] = {"color": colour, "marker": marker, "ms": 5.5, "lw": 2.2, "zorder": 3}
    return {name: ax.plot(by_seed.mean(axis=1), label=name, **look)[0]}


def draw_by_name(ax: Axes, table: pd.DataFrame, by: str, x: str, y: str) -> None:
    """A line for each name, and between ``y_low`` and ``y_high`` a band."""
    for i, (name, part) in enumerate(table.groupby(by, sort=False)):
        again, nth = divmod(i, len(SERIES_COLOURS))
        look: dict[str, Any] = {"color": SERIES_COLOURS[nth], "marker": SERIES_MARKERS[nth]}
        look |= {"ls": DASHES[again % len(DASHES)], "label": shorten(str(name), 30)}
        ends = part[f"{y}_low"], part[f"{y}_high"]
        ax.fill_between(part[x], *ends, color=look["color"], alpha=0.15, linewidth=0)
        ax.plot(part[x], part[y], **look)


@dataclass(frozen=True)
class Dots:
    """One series of a dot plot: row and value of every point; ``lines`` are (row, low, high)."""

    label: str
    colour: str
    marker: str
    rows: np.ndarray
    x: np.ndarray
    lines: np.ndarray = field(default_factory=lambda: np.empty((0, 3)))
    hollow: np.ndarray | None = None
    offset: float = 0.0
    size: float = 26.0


def draw_dots(ax: Axes, series: Sequence[Dots], labels: Sequence[str] | None) -> list[Any]:
    """Draw the series over the rows, first row on top; returns the legend's handles."""
    handles: list[Any] = []
    for dots in series:
        lines = dots.lines[np.isfinite(dots.lines).all(axis=1)]
        ends = (lines[:, 0] + dots.offset, lines[:, 1], lines[:, 2])
        ax.hlines(*ends, colors=dots.colour, lw=1.5, zorder=2)
        hollow = np.zeros(len(dots.x), dtype=bool) if dots.hollow is None else dots.hollow
        look: dict[str, Any] = {"s": dots.size, "marker": dots.marker, "label": dots.label}
        faces = ["white" if empty else dots.colour for empty in hollow]
        edges: dict[str, Any] = {"edgecolors": dots.colour, "linewidths": 1.1, "zorder": 3}
        drawn = ax.scatter(dots.x, dots.rows + dots.offset, facecolors=faces, **edges, **look)
        # The legend shows the filled marker even if the first point is hollow.
        handles.append(ax.scatter([], [], color=dots.colour, **look) if hollow.any() else drawn)
    ax.grid(axis="x")
    ax.tick_params(axis="y", length=0)
    if labels is not None:
        ax.set_yticks(range(len(labels)), labels=[shorten(label) for label in labels])
        ax.set_ylim(len(labels) - 0.4, -0.6)
    return handles


def dots_of(
    frame: pd.DataFrame,
    look: tuple[str, str, str],
    columns: Sequence[str],
    scale: float = 1.0,
    **options: Any,
) -> Dots:
    """The series of a frame with ``row``; scaled ``columns`` are values and interval ends."""
    value, low, high = (scale * frame[name] for name in columns)
    lines = intervals(frame["row"], low, high)
    return Dots(*look, frame["row"].to_numpy(), value.to_numpy(), lines, **options)


def offsets(n: int, spread: float = 0.56) -> list[float]:
    """Vertical shifts that keep ``n`` series of a row apart."""
    return [0.0] if n == 1 else np.linspace(-spread / 2, spread / 2, n).tolist()


def intervals(rows: Any, low: pd.Series, high: pd.Series) -> np.ndarray:
    """Rows and interval ends as `Dots` takes them."""
    return np.column_stack([rows, low, high]).astype(float)


def layer_norm(layers: pd.Series) -> Normalize:
    """The colour scale for layers from 0 to the last."""
    return Normalize(0, max(layers.max(), 1))


def draw_by_layer(ax: Axes, x: pd.Series, y: pd.Series, layers: pd.Series, norm: Normalize) -> None:
    """A dot per component."""
    look: dict[str, Any] = {"s": 24, "edgecolors": "#333333", "linewidths": 0.5, "zorder": 3}
    ax.scatter(x, y, c=layers, cmap="viridis", norm=norm, **look)
    ax.grid()


def layer_bar(figure: Figure, axes: Any, norm: Normalize) -> None:
    """A colour bar of the layers beside all panels."""
    scale = ScalarMappable(norm, "viridis")
    bar = figure.colorbar(scale, ax=axes, label="layer", fraction=0.04, aspect=22)
    bar.ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))


def draw_cells(
    ax: Axes,
    values: np.ndarray,
    scale: ScalarMappable,
    text: Callable[[float], str] | None,
    size: float = 7,
) -> None:
    """A heatmap, with a text in every cell that has a value if there is room."""
    norm: Any = scale.norm
    ax.imshow(values, cmap=scale.cmap, norm=norm, interpolation="nearest")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, pad=2)
    ax.grid(visible=False)
    for (i, j), value in np.ndenumerate(values):
        if text is not None and not np.isnan(value):
            shade = ink(scale.to_rgba(value))
            ax.text(j, i, text(value), ha="center", va="center", size=size, color=shade)


GRID_MARGIN = 0.8  # inches


@dataclass(frozen=True)
class GridShape:
    """The size of component grids, a number per row; ``smallest`` side of a cell in inches."""

    n_layers: int
    n_heads: int
    has_mlps: bool
    abreast: int = 1
    smallest: float = 0.2

    @classmethod
    def of(cls, frame: pd.DataFrame, abreast: int = 1, smallest: float = 0.2) -> GridShape:
        """Read it from a table with ``layer`` and ``head`` (missing for MLPs)."""
        heads = frame["head"].dropna()
        return cls(
            int(frame["layer"].max()) + 1,
            int(heads.max()) + 1 if len(heads) else 0,
            bool(frame["head"].isna().any()),
            abreast,
            smallest,
        )

    @property
    def width(self) -> float:
        """Width in cells."""
        return self.n_heads + 1.5 * self.has_mlps

    @property
    def cell(self) -> float:
        """Side of a cell in inches: large for small models, but always within the page."""
        room = (MAX_WIDTH - 0.9) / self.abreast - GRID_MARGIN
        return float(np.clip(room / self.width, self.smallest, 0.42))

    def column(self, head: float) -> float:
        """The x position of a head, or of an MLP (missing head)."""
        return self.n_heads + 0.5 if pd.isna(head) else head


def draw_grid(
    ax: Axes,
    shape: GridShape,
    frame: pd.DataFrame,
    colours: Sequence[Any],
    texts: Sequence[str],
    outlined: Mapping[str, str],
) -> None:
    """Fill the cell of every row of ``frame``; ``outlined`` are outlines by component."""
    places = [shape.column(head) for head in frame["head"]]
    squares = [
        Rectangle((x - 0.5, y - 0.5), 1, 1) for x, y in zip(places, frame["layer"], strict=True)
    ]
    lines = 1.0 if shape.cell >= 0.2 else 0.4
    cells = PatchCollection(squares, facecolors=list(colours), edgecolors="white", linewidths=lines)
    ax.add_collection(cells)
    size = 0 if shape.cell < 0.25 else 7.5 if shape.cell > 0.35 else 6.0
    cells_of = zip(places, frame["layer"], frame["component"], colours, texts, strict=True)
    for x, y, name, colour, text in cells_of:
        if size:
            ax.text(x, y, text, ha="center", va="center", size=size, color=ink(colour))
        if name in outlined:
            look: dict[str, Any] = {"ec": outlined[name], "lw": 2.2, "zorder": 3}
            ax.add_patch(Rectangle((x - 0.44, y - 0.44), 0.88, 0.88, fill=False, **look))
    ax.set_xlim(-0.6, shape.width - 0.4)
    ax.set_ylim(shape.n_layers - 0.4, -0.6)
    ax.set_aspect("equal")
    ax.spines[:].set_visible(False)
    step = 1 if shape.cell >= 0.25 else 4
    ticks: list[float] = list(range(0, shape.n_heads, step))
    names = [str(tick) for tick in ticks]
    if shape.has_mlps:
        ticks, names = [*ticks, shape.n_heads + 0.5], [*names, "MLP"]
    ax.set_xticks(ticks, labels=names)
    ax.set_yticks(range(0, shape.n_layers, step))
    ax.tick_params(length=0, pad=2)
    ax.set_xlabel("head")
    ax.set_ylabel("layer")


def draw_grids(
    parts: Mapping[str, pd.DataFrame],
    columns: int,
    scale: ScalarMappable,
    label: str,
    outlined: Mapping[str, str],
    smallest: float = 0.2,
) -> Figure:
    """A grid, so many a row, for each part by its title; its cells have ``value`` and ``text``."""
    shape = GridShape.of(pd.concat(parts.values()), columns, smallest)
    size = (shape.cell * shape.width + GRID_MARGIN, shape.cell * shape.n_layers + 0.85)
    figure, axes = panels(len(parts), columns, *size, least=4.0)
    for ax, (title, part) in zip(axes.flat, parts.items(), strict=False):
        colours = list(scale.to_rgba(part["value"].to_numpy()))
        draw_grid(ax, shape, part, colours, list(part["text"]), outlined)
        ax.set_title(title)
    colour_bar(figure, axes, scale, label)
    return figure


def ink(colour: Any) -> str:
    """Black or white, whichever has the higher contrast to the colour (4.5 at least)."""
    channels = np.array(to_rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ (0.2126, 0.7152, 0.0722))
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"
