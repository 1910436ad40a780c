"""The grid of components: its shape, and colours that can be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb

from mechcore.report.about import components_of, grid_of, panels
from mechcore.report.blocks import Paragraph
from mechcore.report.drawing import ink
from mechcore.report.run_folder import RunFolder

FREQUENCY = pd.DataFrame(
    {
        "component": ["L0.H0", "L0.H2", "L2.H1", "L2.MLP", "total <b>"],
        "target_sparsity": 0.5,
        "n_seeds": 4,
        "count": [0, 2, 4, 3, 1],
        "frequency": [0.0, 0.5, 1.0, 0.75, 0.25],
    }
)


def run(**tables: pd.DataFrame) -> RunFolder:
    return RunFolder(Path("run"), {}, tables)


def luminance(colour: str) -> float:
    """Relative luminance by the formula of WCAG 2."""
    total = 0.0
    for channel, weight in zip(to_rgb(colour), (0.2126, 0.7152, 0.0722), strict=True):
        linear = channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
        total += weight * linear
    return total


def test_ink_has_contrast_on_any_colour() -> None:
    for colour in np.random.default_rng(0).random((600, 3)):
        behind = luminance(colour)
        above = {"black": 0.0, "white": 1.0}[ink(colour)]
        ratio = (max(behind, above) + 0.05) / (min(behind, above) + 0.05)
        assert ratio >= 4.5


def test_shape_has_gaps_where_nothing_is_known() -> None:
    folder = run(head_frequency=FREQUENCY)
    names = components_of(folder)
    assert names == ["L0.H0", "L0.H2", "L2.H1", "L2.MLP"]
    grid = grid_of(folder, names)
    assert grid is not None
    assert grid.columns == ["0", "1", "2", "MLP"]
    assert grid.layers == [
        (0, ["L0.H0", "", "L0.H2", ""]),
        (1, ["", "", "", ""]),
        (2, ["", "L2.H1", "", "L2.MLP"]),
    ]
    (quantity,) = grid.quantities
    assert quantity.label == "seeds that keep it at 50\u00a0%"
    assert quantity.cells["L0.H2"].text == "2"
    assert quantity.cells["L0.H2"].words == "kept by 2 of 4 seeds"
    shades = [luminance(quantity.cells[name].colour) for name in ("L0.H0", "L0.H2", "L2.H1")]
    assert shades == sorted(shades, reverse=True)


def test_changes_are_coloured_around_zero_and_the_core_runs_own_come_first() -> None:
    def table(**changes: float) -> pd.DataFrame:
        rows = [
            {"set": name.replace("_", "."), "kind": "single", "data": "d", "split": "ood"}
            | {"subset": "all", "size": 1, "n": 10}
            | {f"{m}_change{end}": change for m in ("accuracy", "margin") for end in ENDS}
            for name, change in changes.items()
        ]
        return pd.DataFrame(rows)

    folder = run(sweep=table(L0_H0=-0.5, L0_H1=0.25, L0_H2=0.0), ablation=table(L0_H0=-0.4))
    grid = grid_of(folder, components_of(folder))
    assert grid is not None
    accuracy, margin = grid.quantities
    assert accuracy.label == "change in accuracy (points), out-of-domain: d"
    cells = {name: cell.text for name, cell in accuracy.cells.items()}
    assert cells == {"L0.H0": "\u221240", "L0.H1": "25", "L0.H2": "0"}
    red, blue, none = (to_rgb(accuracy.cells[name].colour) for name in accuracy.cells)
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    assert min(none) > 0.9
    legend = ["\u221240.0", "\u221220.0", "0.0", "+20.0", "+40.0"]
    assert [text for _, _, text in accuracy.legend] == legend
    assert margin.cells["L0.H1"].words == ("change of margin (nats) +0.25 [+0.25, +0.25]")


ENDS = ("", "_low", "_high")


def test_nothing_to_colour_by_is_no_grid() -> None:
    assert grid_of(run(), []) is None
    folder = run(core=pd.DataFrame({"heads": ["L0.H0"]}))
    assert components_of(folder) == ["L0.H0"]
    assert grid_of(folder, ["L0.H0"]) is None
    text = "In the heuristic core: every subnetwork keeps it."
    assert panels(folder) == {"L0.H0": [Paragraph(text)]}
