"""Every figure draws what its table holds, and no text leaves the paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from drawn import check_paper
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PatchCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mechcore.components import Mask, ModelShape
from mechcore.report import ablation_figures, figures, subnetwork_figures
from mechcore.report.drawing import GridShape, shorten
from mechcore.report.run_folder import RunFolder, read_run
from mechcore.subnetworks.core import head_frequency

LONG = tuple(f"lexical_overlap/ln_subject-object_swap_{i}" for i in range(14))
CORE = ("L2.H3", "L2.H5", "L3.H7", "L3.H11", "L4.H0", "L8.H2", "L9.H9")


@pytest.fixture(scope="module")
def small(rich_run: Path) -> RunFolder:
    return read_run(rich_run)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, new_run: Callable[..., Path]) -> RunFolder:
    """12 layers x 12 heads, two in-domain sets, long names, more joint sets than fit."""
    path = tmp_path_factory.mktemp("figures") / "large"
    fields = {"n_layers": 12, "n_heads": 12, "id_data": ("matched", "mismatched")}
    joint = [(a, b) for a in CORE for b in CORE if a != b]
    return read_run(new_run(path, **fields, subsets=LONG, core=CORE, joint=[*joint, CORE]))


DRAW: dict[str, Callable[[RunFolder], Figure]] = {
    "accuracy": lambda run: figures.accuracy_by_subset(run.accuracy),
    "frequency": lambda run: figures.head_frequency(run.tables["head_frequency"], run.core),
    "changes": lambda run: figures.ablation_changes(run.tables["ablation"]),
    "margin changes": lambda run: figures.ablation_changes(run.tables["ablation"], "margin"),
    "by subset": lambda run: figures.ablation_by_subset(run.tables["ablation"], "ood", "tiny-ood"),
    "interactions": lambda run: ablation_figures.interactions(run.tables["interactions"]),
    "one interaction": lambda run: ablation_figures.interactions_by_subset(
        run.tables["interactions"], "+".join(run.core)
    ),
    "categories": lambda run: figures.head_categories(run.tables["head_categories"]),
    "attention": lambda run: figures.attention_patterns(run.attention_examples),
    "overlap": lambda run: subnetwork_figures.head_overlap(run.tables["head_overlap"]),
}


def labels(figure: Figure) -> list[str]:
    return [tick.get_text() for tick in figure.axes[0].get_yticklabels()]


def points(figure: Figure, panel: int = 0) -> np.ndarray:
    dots = [c for c in figure.axes[panel].collections if isinstance(c, PathCollection)]
    return np.concatenate([np.asarray(c.get_offsets()) for c in dots])


@pytest.mark.parametrize("name", sorted(DRAW))
def test_no_text_is_clipped(name: str, small: RunFolder, large: RunFolder) -> None:
    check_paper(DRAW[name](large))
    if name in ("accuracy", "categories"):
        check_paper(DRAW[name](small))


def test_accuracy_has_a_row_per_subset_and_a_dot_per_subnetwork(small: RunFolder) -> None:
    figure = DRAW["accuracy"](small)
    rows = labels(figure)
    assert [rows[0], rows[-1]] == ["out-of-domain: tiny-ood", "in-domain: tiny-id"]
    assert len(rows) == 6
    accuracy = small.accuracy
    assert accuracy is not None
    assert len(points(figure)) == len(accuracy) == 6 * 7
    assert sorted(points(figure)[:, 0]) == pytest.approx(sorted(100 * accuracy["accuracy"]))


def test_frequency_has_a_panel_per_sparsity_with_every_component(small: RunFolder) -> None:
    figure = DRAW["frequency"](small)
    panels = [ax for ax in figure.axes if ax.get_title()]
    assert [ax.get_title() for ax in panels] == [
        "target sparsity 50\u00a0%, 3 seeds",
        "target sparsity 70\u00a0%, 3 seeds",
    ]
    for ax, target_sparsity in zip(panels, (0.5, 0.7), strict=True):
        (cells,) = [c for c in ax.collections if isinstance(c, PatchCollection)]
        assert len(cells.get_paths()) == 36
        frequency = small.tables["head_frequency"]
        counts = frequency.loc[frequency["target_sparsity"] == target_sparsity, "count"]
        assert [int(text.get_text()) for text in ax.texts] == counts.tolist()
        assert len([p for p in ax.patches if isinstance(p, Rectangle)]) == 4
        assert ax.get_xticklabels()[-1].get_text() == "MLP"


def test_changes_lie_at_their_values_in_the_panel_of_their_data(small: RunFolder) -> None:
    ablation = small.tables["ablation"]
    figure = DRAW["changes"](small)
    assert [ax.get_title() for ax in figure.axes] == [
        "out-of-domain: tiny-ood",
        "in-domain: tiny-id",
    ]
    sets = figures.sets_to_draw(ablation)
    assert sets[0] == "L0.H3"
    assert sets[-1] == "heads outside the core (mean of 16)"
    assert len(labels(figure)) == len(sets) == 12
    overall = ablation[ablation["subset"] == "all"]
    for panel, split in enumerate(("ood", "id")):
        changes = overall[overall["split"] == split].set_index("set")
        for x, y in points(figure, panel):
            assert x == pytest.approx(100 * changes.loc[sets[round(y)], "accuracy_change"])


def test_too_many_sets_leave_out_the_smaller_joint_changes(large: RunFolder) -> None:
    ablation = large.tables["ablation"]
    sets = figures.sets_to_draw(ablation)
    assert ablation["set"].nunique() > len(sets) == 30
    assert set(CORE) <= set(sets)
    changes = ablation.query("subset == 'all' and split == 'ood' and kind == 'joint'")
    changes = changes.set_index("set")["accuracy_change"]
    assert changes[changes.index.isin(sets)].max() <= changes[~changes.index.isin(sets)].min()


def test_heatmap_of_subsets_has_a_number_per_cell(small: RunFolder) -> None:
    ax = DRAW["by subset"](small).axes[0]
    table = small.tables["ablation"].query("split == 'ood'")
    changes = 100 * table.pivot(index="set", columns="subset", values="accuracy_change")
    sets = figures.sets_to_draw(small.tables["ablation"])
    columns = [tick.get_text() for tick in ax.get_xticklabels()]
    assert columns[0] == "all examples"
    shown = changes.loc[sets, ["all", *columns[1:]]].to_numpy()
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), shown)
    assert len(ax.texts) == 12 * 5


@pytest.mark.parametrize("name", ["interactions", "one interaction"])
def test_interactions_mark_the_floor_on_accuracy_alone(small: RunFolder, name: str) -> None:
    table = small.tables["interactions"]
    all_together = table["set"] == "+".join(small.core)
    part = table[table["subset"] == "all"] if name == "interactions" else table[all_together]
    assert part["floor"].any()
    figure = DRAW[name](small)
    for panel, (metric, scale) in enumerate({"accuracy": 100, "margin": 1}.items()):
        dots = [c for c in figure.axes[panel].collections if isinstance(c, PathCollection)]
        faces = [np.asarray(c.get_facecolors()) for c in dots if len(np.asarray(c.get_offsets()))]
        hollow = (np.concatenate(faces)[:, :3] == 1).all(axis=1).sum()
        of_metric = part[part["metric"] == metric]
        assert hollow == (of_metric["floor"].sum() if metric == "accuracy" else 0)
        # Below zero: worse together.
        drawn = sorted(points(figure, panel)[:, 0])
        assert drawn == pytest.approx(sorted(scale * of_metric["interaction"]))


def test_category_map_outlines_the_core_and_counts_categories(small: RunFolder) -> None:
    figure = DRAW["categories"](small)
    ax = figure.axes[0]
    assert len(ax.texts) == 32
    assert len(ax.patches) == 4
    counts = small.tables["head_categories"]["category"].value_counts()
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {f"{name} ({n})" for name, n in counts.items()} | {"in the core"} == set(entries)


def test_attention_has_a_panel_per_head_with_its_tokens(small: RunFolder) -> None:
    figure = DRAW["attention"](small)
    panels = [ax for ax in figure.axes if ax.images]
    assert len(panels) == 4
    example = small.attention_examples[0]
    assert [tick.get_text() for tick in panels[0].get_yticklabels()] == example.tokens
    np.testing.assert_allclose(panels[0].images[0].get_array(), example.pattern)


def test_large_models_get_small_cells_and_small_ones_large_cells(
    small: RunFolder, large: RunFolder
) -> None:
    cells = [GridShape.of(run.tables["head_frequency"], 2).cell for run in (small, large)]
    assert cells[0] > 0.35 > cells[1] > 0.25


def test_figures_leave_the_callers_settings_alone(small: RunFolder) -> None:
    with matplotlib.rc_context({"font.size": 31.0}):
        figure = DRAW["accuracy"](small)
        assert matplotlib.rcParams["font.size"] == 31.0
    assert figure.axes[0].get_yticklabels()[0].get_fontsize() < 12


def test_a_dollar_sign_is_no_formula(small: RunFolder) -> None:
    accuracy = small.tables["accuracy"].replace("so_swap", "costs $1, \\frac{$")
    figure = figures.accuracy_by_subset(accuracy)
    FigureCanvasAgg(figure).draw()
    assert "costs $1, \\frac{$" in labels(figure)


def test_labels_are_cut_in_the_middle() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("abcdefgh", 5) == "ab\u2026gh"
    assert figures.set_label("L0.H0+L0.H1+L0.H2+L0.H3+L0.H4") == "L0.H0+\u2026+L0.H4 (5 components)"


def test_tables_straight_from_the_functions_can_be_drawn() -> None:
    masks = [Mask.full(ModelShape(2, 3)).without("L0.H1"), Mask.full(ModelShape(2, 3))]
    frequency = head_frequency(masks, [0.5, 0.5])
    assert frequency["head"].isna().any()  # MLPs
    figures.head_frequency(frequency)
    table = pd.DataFrame(
        {"component": ["L0.H0", "L0.H1"], "layer": 0, "head": [0, 1], "category": ["next", "mine"]}
    )
    drawn = figures.head_categories(table)
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["next (1)", "mine (1)"]
