"""Dots of components coloured by their layer."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

_PALETTE = "viridis"


def layer_norm(layers: pd.Series) -> Normalize:
    """The scale of colours for layers from 0 to the last one."""
    return Normalize(0, max(layers.max(), 1))


def draw_by_layer(ax: Axes, x: pd.Series, y: pd.Series, layers: pd.Series, norm: Normalize) -> None:
    """A dot per component."""
    look: dict[str, Any] = {"s": 24, "edgecolors": "#333333", "linewidths": 0.5, "zorder": 3}
    ax.scatter(x, y, c=layers, cmap=_PALETTE, norm=norm, **look)
    ax.grid()


def layer_bar(figure: Figure, axes: Any, norm: Normalize) -> None:
    """The colours of the layers beside all panels."""
    scale = ScalarMappable(norm, _PALETTE)
    bar = figure.colorbar(scale, ax=axes, label="layer", fraction=0.04, aspect=22)
    bar.ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
