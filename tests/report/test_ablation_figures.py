"""Figures of sweeps draw what their tables hold."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from mechcore.report import ablation_figures as figures

PLACES = (("ood", "hans"), ("id", "mnli"))
"""Out-of-domain first, as tables need not be in the order of the panels."""
SUBSETS = ("swap", "all")


def ablation_table(losses: dict[str, float], kinds: dict[str, str] | None = None) -> pd.DataFrame:
    """Losses of margin by set out of domain, half of that in domain, a tenth for one subset.

    Accuracy starts from 90 % and falls by a hundredth of the margin, 2 points more or less.
    """
    rows = []
    for (split, data), subset, name in itertools.product(PLACES, SUBSETS, losses):
        loss = losses[name] * (0.5 if split == "id" else 1) * (0.1 if subset == "swap" else 1)
        kind = (kinds or {}).get(name, "joint" if "+" in name else "single")
        row = {"set": name, "kind": kind, "size": 1 + name.count("+"), "data": data}
        row |= {"split": split, "subset": subset, "n": 100, "accuracy": 0.9 - loss / 100}
        row |= {"accuracy_change": -loss / 100, "accuracy_change_low": -loss / 100 - 0.03}
        row |= {"accuracy_change_high": -loss / 100 + 0.02, "margin": 5 - loss}
        row |= {"margin_change": -loss, "margin_change_low": -loss - 1}
        rows.append(row | {"margin_change_high": -loss + 1, "kl": 0.1})
    return pd.DataFrame(rows)


def interaction_table(
    values: dict[str, float], sizes: dict[str, int] | None = None
) -> pd.DataFrame:
    """Interactions of sets on the margin by set, a hundredth of it on accuracy, half in domain."""
    rows = []
    for (split, data), subset, metric, name in itertools.product(
        PLACES, SUBSETS, ("accuracy", "margin"), values
    ):
        share = (0.5 if split == "id" else 1) * (0.01 if metric == "accuracy" else 1)
        size = (sizes or {}).get(name, 1 + name.count("+"))
        row = {"set": name, "size": size, "data": data, "split": split, "subset": subset}
        value = -values[name] * share * (0 if subset == "swap" else 1)
        rows.append(row | {"metric": metric, "interaction": value})
    return pd.DataFrame(rows)


def titles(figure: Figure) -> list[str]:
    return [ax.get_title() for ax in figure.axes if ax.get_title()]


def texts(ax: Any) -> dict[tuple[float, float], str]:
    return {tuple(t.get_position()): t.get_text() for t in ax.texts}


def ends(figure: Figure) -> tuple[float, float]:
    """Of the colour scale."""
    return tuple(figure.axes[-1].get_ylim())  # type: ignore[return-value]


LOSSES = {"L0.H0": 4.0, "L0.H1": -1.25, "L0.MLP": 20.0, "L1.H0": -0.2, "L1.H1": 0.0, "L1.MLP": 7.0}


def test_cells_of_single_components() -> None:
    more = {"L0.H0+L0.H1": 100.0, "random 1": 50.0, "heads outside the core": 60.0}
    kinds = {"random 1": "random", "heads outside the core": "non-core"}
    table = ablation_table({**LOSSES, **more}, kinds)
    figure = figures.single_changes(table, "margin")
    assert titles(figure) == ["out-of-domain: hans", "in-domain: mnli"]
    right, left = figure.axes[:2]
    # Heads by column, the MLP apart behind them; layers from the top. The
    # largest loss is 20: no decimals, and what rounds to 0 has no sign.
    upper = {(0, 0): "-4", (1, 0): "1", (2.5, 0): "-20"}
    assert texts(right) == upper | {(0, 1): "0", (1, 1): "0", (2.5, 1): "-7"}
    assert texts(left)[(2.5, 0)] == "-10"
    assert left.get_ylim()[0] > left.get_ylim()[1]
    assert [t.get_text() for t in right.get_xticklabels()] == ["0", "1", "MLP"]
    assert ends(figure) == (-20, 20)
    assert "change in margin (nats)" in figure.axes[-1].get_ylabel()
    # Losses are red and gains blue, 0 is white, and more is darker.
    cells = {
        tuple(path.vertices[0] + 0.5): colour
        for path, colour in zip(
            right.collections[0].get_paths(), right.collections[0].get_facecolors(), strict=True
        )
    }
    loss, gain, nothing = cells[(2.5, 0)], cells[(1, 0)], cells[(1, 1)]
    assert loss[0] > loss[2]
    assert gain[2] > gain[0]
    assert nothing[:3].min() > 0.95
    assert cells[(2.5, 1)].sum() > loss.sum()


@pytest.mark.parametrize(
    ("metric", "subset", "largest", "unit", "least"),
    [("accuracy", "all", "-20", "points", "0"), ("margin", "swap", "-2.0", "nats", "0.0")],
)
def test_single_changes_of_a_metric_and_a_subset(
    metric: str, subset: str, largest: str, unit: str, least: str
) -> None:
    figure = figures.single_changes(ablation_table(LOSSES), metric, subset)
    assert texts(figure.axes[0])[(2.5, 0)] == largest
    assert texts(figure.axes[0])[(0, 1)] == least
    assert unit in figure.axes[-1].get_ylabel()
    assert ends(figure) == pytest.approx((float(largest), -float(largest)))


def test_changes_of_nothing_can_be_drawn() -> None:
    figure = figures.single_changes(ablation_table(dict.fromkeys(LOSSES, 0.0)), "margin")
    assert set(texts(figure.axes[0]).values()) == {"0.0"}
    assert ends(figure) == (-1, 1)


PAIRS = {"L0.H1+L0.MLP": 0.5, "L0.H1+L1.H0": -0.001, "L0.MLP+L1.H0": -0.75}


def grid(ax: Any) -> np.ndarray:
    return np.asarray(ax.images[0].get_array().filled(np.nan))


def test_cells_of_pairs() -> None:
    triple = {"L0.H1+L0.MLP+L1.H0": 9.0}
    figure = figures.pair_interactions(interaction_table({**PAIRS, **triple}), "margin")
    assert titles(figure) == ["out-of-domain: hans", "in-domain: mnli"]
    for ax, share in zip(figure.axes[:2], (1, 0.5), strict=True):
        ab, ac, bc = (-share * value for value in PAIRS.values())
        expected = [[np.nan, ab, ac], [ab, np.nan, bc], [ac, bc, np.nan]]
        np.testing.assert_allclose(grid(ax), expected)
        names = ["L0.H1", "L0.MLP", "L1.H0"]
        assert [t.get_text() for t in ax.get_xticklabels()] == names
        assert [t.get_text() for t in ax.get_yticklabels()] == names
    assert ends(figure) == (-0.75, 0.75)
    half = {(1, 0): "-0.50", (2, 0): "0.00", (2, 1): "0.75"}
    assert texts(figure.axes[0]) == half | {(y, x): text for (x, y), text in half.items()}
    accuracy = figures.pair_interactions(interaction_table(PAIRS), "accuracy")
    assert texts(accuracy.axes[0])[(1, 0)] == "-0.50"  # points, a hundredth of a share
    assert "points" in accuracy.axes[-1].get_ylabel()


def test_changes_and_interactions_of_any_metric() -> None:
    pairs = interaction_table(PAIRS).replace({"metric": {"margin": "logit_difference"}})
    figure = figures.pair_interactions(pairs, "logit_difference")
    assert texts(figure.axes[0])[(1, 0)] == "-0.50"
    assert figure.axes[-1].get_ylabel() == "interaction on logit_difference (logits)"
    own = ablation_table(LOSSES).rename(columns={"margin_change": "spread_change"})
    assert figures.single_changes(own, "spread").axes[-1].get_ylabel() == "change in spread"


def test_pairs_that_were_not_ablated_are_empty_cells() -> None:
    names = [f"L{i}.H0" for i in range(13)]
    values = {f"{a}+{b}": 1.0 for a, b in itertools.pairwise(names)}
    ax = figures.pair_interactions(interaction_table(values)).axes[0]
    assert np.isfinite(grid(ax)).sum() == 2 * 12
    assert grid(ax)[3, 4] == grid(ax)[4, 3] == -1
    assert not ax.texts  # too many for numbers
    # Layers in the order of numbers, not of their digits.
    assert [t.get_text() for t in ax.get_yticklabels()] == names


def test_of_very_many_components_the_largest_interactions_are_drawn() -> None:
    names = [f"L{i}.H{h}" for i in range(12) for h in range(12)]
    values = {f"{a}+{b}": 0.01 * i for i, (a, b) in enumerate(itertools.pairwise(names))}
    figure = figures.pair_interactions(interaction_table(values))
    values_drawn = grid(figure.axes[0])
    assert values_drawn.shape == (80, 80)
    assert np.nanmin(values_drawn) == pytest.approx(-0.01 * 142)
    assert len(figure.axes[0].get_xticklabels()) <= 45
    # Too many to name each: layers, at their middles.
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [
        f"L{i}" for i in range(5, 12)
    ]
    np.testing.assert_allclose(figure.axes[0].get_yticks()[:2], (3.5, 13.5))


def race_table(effects: dict[str, float]) -> pd.DataFrame:
    rows = [{"set": name, "size": 2, "effect": -effect} for name, effect in effects.items()]
    return pd.DataFrame(rows)


def test_an_atlas_shows_every_race_with_the_colours_of_all() -> None:
    races = {"first": race_table(PAIRS), "second": race_table({"L0.H1+L1.H0": 0.2})}
    figure = figures.atlas(races)
    assert titles(figure) == ["first", "second"]
    ab, ac, bc = (-value for value in PAIRS.values())
    np.testing.assert_allclose(
        grid(figure.axes[0]), [[np.nan, ab, ac], [ab, np.nan, bc], [ac, bc, np.nan]]
    )
    assert np.isfinite(grid(figure.axes[1])).sum() == 2
    assert grid(figure.axes[1])[0, 2] == pytest.approx(-0.2)
    # Of 0.001, 0.2, 0.5 and 0.75, the 0.99 quantile lies 97 % of the way from 0.5 to 0.75.
    assert ends(figure) == pytest.approx((-0.7425, 0.7425))


def test_sets_called_by_names_of_their_own_are_left_out_of_the_grids() -> None:
    named = interaction_table({**PAIRS, "the pair": 7.0, "one+other": 8.0}, {"the pair": 2})
    figure = figures.pair_interactions(named)
    assert grid(figure.axes[0]).shape == (3, 3)
    assert ends(figure) == (-0.75, 0.75)
    singles = figures.single_changes(ablation_table({**LOSSES, "my head": 99.0}), "margin")
    assert "99" not in texts(singles.axes[0]).values()
