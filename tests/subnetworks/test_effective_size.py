"""Effective sizes against tables worked out by hand, exact fractions and the published figure."""

from __future__ import annotations

import json
import math
import runpy
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechcore.errors import InputError, MechcoreWarning
from mechcore.subnetworks.effective_size import effective_size, mean_effective_size

KEYS = ["group", "checkpoint", "seed"]
COLUMNS = [*KEYS, "effective_size", "faithful", "target_sparsity", "accuracy", "full_accuracy"]
NAN = math.nan
SCRIPT = Path(__file__).parents[2] / "docs" / "results" / "published_accuracies.py"
accuracies: Callable[[Path], pd.DataFrame] = runpy.run_path(str(SCRIPT))["accuracies"]


def full_table(accuracies: dict[Any, dict[str, float]]) -> pd.DataFrame:
    """From checkpoint -> subset -> accuracy."""
    rows = [(c, s, a) for c, subsets in accuracies.items() for s, a in subsets.items()]
    return pd.DataFrame(rows, columns=["checkpoint", "subset", "accuracy"])


def grid_table(accuracies: dict[tuple[Any, int, float], dict[str, float]]) -> pd.DataFrame:
    """From (checkpoint, seed, sparsity) -> subset -> accuracy."""
    rows = [(*key, s, a) for key, subsets in accuracies.items() for s, a in subsets.items()]
    columns = ["checkpoint", "seed", "target_sparsity", "subset", "accuracy"]
    return pd.DataFrame(rows, columns=columns)


# Two subsets in domain, one out of domain; tolerance 0.1. Needed in domain: more than 0.8 - 0.1 at
# checkpoint 100 (mean of 0.9 and 0.7) and more than 0.85 - 0.1 at 200; out of domain more than
# 0.2 - 0.1 and more than 0.6 - 0.1.
FULL = full_table(
    {
        200: {"m": 0.95, "mm": 0.75, "hans": 0.6},
        100: {"m": 0.9, "mm": 0.7, "hans": 0.2},
    }
)
GRID = grid_table(
    {
        (100, 8, 0.25): {"m": 0.5, "mm": 0.5, "hans": 0.0},
        (100, 8, 0.5): {"m": 0.82, "mm": 0.6, "hans": 0.05},
        (100, 8, 0.75): {"m": 0.6, "mm": 0.6, "hans": 0.3},
        (100, 7, 0.25): {"m": 0.9, "mm": 0.7, "hans": 0.2},
        (100, 7, 0.5): {"m": 0.9, "mm": 0.48, "hans": 0.15},
        (100, 7, 0.75): {"m": 0.5, "mm": 0.5, "hans": 0.0},
        (200, 7, 0.25): {"m": 0.7, "mm": 0.7, "hans": 0.55},
        (200, 7, 0.5): {"m": 0.7, "mm": 0.7, "hans": 0.2},
        (200, 8, 0.25): {"m": 0.9, "mm": 0.8, "hans": 0.4},
        (200, 8, 0.5): {"m": 0.9, "mm": 0.8, "hans": 0.4},
    }
)
GROUPS = {"OOD": ["hans"], "ID": ["m", "mm"]}
EXPECTED = [
    # group, checkpoint, seed, effective size, faithful, sparsity, accuracy, full accuracy
    ("OOD", 200, 7, 0.75, True, 0.25, 0.55, 0.6),
    ("OOD", 200, 8, 1.0, False, NAN, NAN, 0.6),
    ("OOD", 100, 7, 0.5, True, 0.5, 0.15, 0.2),
    ("OOD", 100, 8, 0.25, True, 0.75, 0.3, 0.2),  # though neither denser one is faithful
    ("ID", 200, 7, 1.0, False, NAN, NAN, 0.85),
    ("ID", 200, 8, 0.5, True, 0.5, 0.85, 0.85),
    ("ID", 100, 7, 0.75, True, 0.25, 0.8, 0.8),  # at 0.5 the mean is 0.69
    ("ID", 100, 8, 0.5, True, 0.5, 0.71, 0.8),
]


def refused(message: str, **changes: Any) -> None:
    """Sizes of the tables above cannot be determined with these changes."""
    with pytest.raises(InputError, match=message):
        effective_size(**{"full": FULL, "grid": GRID, "groups": GROUPS} | changes)


def same(table: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(table, expected, check_dtype=False, rtol=0, atol=1e-12)


# -- by hand --------------------------------------------------------------------------------------


def test_sizes_by_hand() -> None:
    sizes = effective_size(FULL, GRID, groups=GROUPS, tolerance=0.1)
    same(sizes, pd.DataFrame(EXPECTED, columns=COLUMNS))
    assert sizes["faithful"].dtype == bool
    assert sizes["checkpoint"].dtype.kind == sizes["seed"].dtype.kind == "i"


def test_sizes_are_of_what_masks_keep_where_they_miss_their_target() -> None:
    full = full_table({1: {"dev": 0.9}})
    grid = grid_table({(1, 7, s): {"dev": 0.9} for s in (0.25, 0.5, 0.75)})
    grid = grid.assign(kept=[0.7, 0.4, 0.45])  # that of 0.5 keeps least
    sizes = effective_size(full, grid, groups={"ID": ["dev"]})
    assert sizes[["effective_size", "target_sparsity", "faithful"]].to_numpy().tolist() == [
        [0.4, 0.5, True]
    ]
    several = GRID.assign(kept=GRID.index / len(GRID))
    refused(r"grid: .*kept differs between its rows", grid=several)
    refused(r"grid: .*kept is not a share", grid=GRID.assign(kept=40.0))


def test_means_by_hand() -> None:
    means = mean_effective_size(effective_size(FULL, GRID, groups=GROUPS, tolerance=0.1))
    expected = [
        ("OOD", 200, 0.875, 0.75, 1.0, 2, 1),
        ("OOD", 100, 0.375, 0.25, 0.5, 2, 2),
        ("ID", 200, 0.75, 0.5, 1.0, 2, 1),
        ("ID", 100, 0.625, 0.5, 0.75, 2, 2),
    ]
    columns = ["group", "checkpoint", "effective_size", "low", "high", "n_seeds", "n_faithful"]
    same(means[columns], pd.DataFrame(expected, columns=columns))


def test_the_interval_of_a_mean_size_is_over_seeds() -> None:
    # Sizes 0.4, 0.5 and 0.6 have a standard error of 0.1 / sqrt(3); Student's t with two degrees
    # of freedom is 4.303. Two seeds say next to nothing.
    seeds = {"a": [0.4, 0.5, 0.6], "b": [0.75, 1.0], "c": [0.5], "d": [0.5] * 3}
    rows = [("x", at, i, size, True) for at, sizes in seeds.items() for i, size in enumerate(sizes)]
    means = mean_effective_size(pd.DataFrame(rows, columns=COLUMNS[:5])).set_index("checkpoint")
    away = 4.3027 * 0.1 / math.sqrt(3)
    for end, sign in (("mean_low", -1), ("mean_high", 1)):
        assert means.loc["a", end] == pytest.approx(0.5 + sign * away, abs=1e-5)
    assert means.loc["b", ["mean_low", "mean_high"]].tolist() == [0, 1]
    assert means.loc[["c", "d"], ["mean_low", "mean_high"]].isna().all(axis=None)


# -- the edges ------------------------------------------------------------------------------------


def test_a_real_full_size_differs_from_no_faithful_subnetwork() -> None:
    full = full_table({1: {"a": 0.8}})
    real, none = (
        effective_size(full, grid_table(grid), groups={"all": ["a"]}).to_dict("records")[0]
        for grid in (
            {(1, 1, 0.0): {"a": 0.8}, (1, 1, 0.5): {"a": 0.1}},
            {(1, 1, 0.1): {"a": 0.2}, (1, 1, 0.5): {"a": 0.1}},
        )
    )
    assert real["effective_size"] == none["effective_size"] == 1
    assert (real["faithful"], none["faithful"]) == (True, False)
    assert (real["target_sparsity"], real["accuracy"]) == (0, 0.8)
    assert math.isnan(none["target_sparsity"])
    assert math.isnan(none["accuracy"])
    assert none["full_accuracy"] == 0.8


def test_losing_exactly_the_tolerance_is_not_faithful() -> None:
    assert 0.83 - 0.03 < 0.80  # in floating point, so that plain comparison says it is faithful
    percents = range(3, 101, 4)
    losses = {1: 0.0, 2: 1e-4}  # by seed
    grid = {
        (n, seed, 0.5): {"a": (n - 3) / 100 + more}
        for n in percents
        for seed, more in losses.items()
    }
    full = full_table({n: {"a": n / 100} for n in percents})
    sizes = effective_size(full, grid_table(grid), groups={"all": ["a"]})
    assert sizes["faithful"].tolist() == [False, True] * len(percents)


def exactly(
    full: dict[int, dict[str, int]],
    grid: dict[tuple[int, int, int], dict[str, int]],
    groups: dict[str, list[str]],
    tolerance: int,
) -> Iterator[tuple[Any, ...]]:
    """Sizes from accuracies, sparsities and tolerance in percent, in rational arithmetic."""
    for group, subsets in groups.items():

        def mean(accuracies: dict[str, int], subsets: list[str] = subsets) -> Fraction:
            return Fraction(sum(accuracies[s] for s in subsets), len(subsets))

        for checkpoint, accuracies in full.items():
            for seed in sorted({key[1] for key in grid if key[0] == checkpoint}):
                faithful = [
                    key[2]
                    for key, part in grid.items()
                    if key[:2] == (checkpoint, seed) and mean(part) > mean(accuracies) - tolerance
                ]
                size = 100 - max(faithful, default=0)
                yield group, checkpoint, seed, size, bool(faithful)


@settings(max_examples=25)
@given(st.data())
def test_sizes_are_those_of_exact_fractions(draw: st.DataObject) -> None:
    percent = st.integers(0, 100) | st.integers(50, 56)
    subsets = ["a", "b", "c"]
    accuracies = st.fixed_dictionaries(dict.fromkeys(subsets, percent))
    checkpoints = draw.draw(st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True))
    full = {checkpoint: draw.draw(accuracies) for checkpoint in checkpoints}
    whole = st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True)
    keys = [
        (checkpoint, seed, sparsity)
        for checkpoint in checkpoints
        for target_sparsities in [draw.draw(whole)]
        for seed in draw.draw(whole)
        for sparsity in target_sparsities
    ]
    grid = {key: draw.draw(accuracies) for key in keys}
    some = st.lists(st.sampled_from(subsets), min_size=1, unique=True)
    groups = draw.draw(st.dictionaries(st.sampled_from("XYZ"), some, min_size=1))
    tolerance = draw.draw(st.integers(0, 20))

    full_frame, grid_frame = full_table(full), grid_table(grid)
    full_frame["accuracy"] /= 100
    grid_frame[["accuracy", "target_sparsity"]] /= 100
    table = effective_size(full_frame, grid_frame, groups=groups, tolerance=tolerance / 100)
    expected = list(exactly(full, grid, groups, tolerance))
    sizes = (100 * table["effective_size"]).round(9).tolist()
    columns = (table[name].tolist() for name in ("group", "checkpoint", "seed"))
    assert list(zip(*columns, sizes, table["faithful"], strict=True)) == expected


# -- what is refused ------------------------------------------------------------------------------


def changed(table: pd.DataFrame, column: str, value: Any, row: int = 0) -> pd.DataFrame:
    table = table.copy()
    table.loc[row, column] = value
    return table


@pytest.mark.parametrize("name", ["full", "grid"])
@pytest.mark.parametrize("value", [NAN, -0.01, 1.01, 83.4, math.inf])
def test_accuracies_are_shares(name: str, value: Any) -> None:
    tables = {"full": FULL, "grid": GRID}
    tables[name] = changed(tables[name], "accuracy", value, row=2)
    place = "checkpoint 200" if name == "full" else "checkpoint 100, seed 8, target_sparsity 0.25"
    message = rf"^{name}: {place}, subset 'hans', accuracy {value!r}: accuracy is not a share in \["
    refused(message, **tables)


@pytest.mark.parametrize("value", [25.0, 1.0, -0.1, math.inf])
def test_sparsities_are_shares(value: Any) -> None:
    message = rf"sparsity {value!r}, .*: target_sparsity is not a share in \[0, 1\): 25 % is the "
    refused(message, grid=changed(GRID, "target_sparsity", value))


@pytest.mark.parametrize("accuracy", [0.5, 0.95])
def test_rows_that_occur_twice(accuracy: float) -> None:
    again = FULL[:1].assign(accuracy=accuracy)
    message = r"^full: checkpoint 200, subset 'm', .*: occurs twice"
    refused(message, full=pd.concat([FULL, again]))
    again = GRID[:1].assign(accuracy=accuracy)
    message = r"^grid: checkpoint 100, seed 8, target_sparsity 0.25, subset 'm', .*: occurs twice"
    refused(message, grid=pd.concat([GRID, again]))


def test_checkpoints_of_the_grid_alone() -> None:
    message = r"^checkpoint 100 is not in both tables: full has 200; grid has 100, 200; expected"
    refused(message, full=FULL[FULL["checkpoint"] == 200])
    # Text is not a number, and the message tells them apart.
    message = r"^checkpoint 100 .* full has '200', '100'; grid has 1"
    refused(message, full=FULL.astype({"checkpoint": str}))


def test_checkpoints_without_a_subnetwork_are_left_out_and_counted() -> None:
    expected = pd.DataFrame(EXPECTED, columns=COLUMNS).query("checkpoint == 100")
    grid = GRID[GRID["checkpoint"] == 100]
    # What is left out need not have the subsets of the groups.
    full = pd.concat([full_table({50: {"m": 0.4}}), FULL])
    message = r"^full: omitted 2 of 3 checkpoints without subnetworks in grid; used 100$"
    with pytest.warns(MechcoreWarning, match=message):
        sizes = effective_size(full, grid, groups=GROUPS, tolerance=0.1)
    same(sizes, expected.reset_index(drop=True))


LACKING = (GRID[["checkpoint", "seed", "target_sparsity"]] == (100, 7, 0.5)).all(axis=1)
"""Rows of a subnetwork that some tables below do not have."""


def test_a_seed_that_lacks_a_sparsity_changes_no_other() -> None:
    message = (
        r"^grid: some seeds lack sparsities that others .* have, so their sizes are chosen among "
        r"the rest: checkpoint 100, seed 7 lacks 0\.5$"
    )
    with pytest.warns(MechcoreWarning, match=message):
        sizes = effective_size(FULL, GRID[~LACKING], groups=GROUPS, tolerance=0.1)
    # Seed 7 had chosen 0.5 out of domain at checkpoint 100; it has 0.25 then.
    expected = [
        ("OOD", 100, 7, 0.75, True, 0.25, 0.2, 0.2) if row[:3] == ("OOD", 100, 7) else row
        for row in EXPECTED
    ]
    same(sizes, pd.DataFrame(expected, columns=COLUMNS))


def test_a_group_is_never_averaged_over_fewer_subsets() -> None:
    grid = GRID[~(LACKING & (GRID["subset"] == "mm"))]
    message = (
        r"^grid: checkpoint 100, seed 7, target_sparsity 0.5: no subset 'mm', which group 'ID' "
        r"needs; found 'hans', 'm'; add its accuracy, or change the group"
    )
    refused(message, grid=grid)
    full = FULL[~((FULL["checkpoint"] == 100) & (FULL["subset"] == "m"))]
    refused(r"^full: checkpoint 100: no subset 'm', which group 'ID'", full=full)
    message = r"no subset 'nowhere', which group 'new' needs; found 'h"
    refused(message, groups={"new": ["m", "nowhere"]})
    # Where no group needs it, it may be missing.
    assert len(effective_size(FULL, grid, groups={"OOD": ["hans"]})) == 4


@pytest.mark.parametrize("tolerance", [-0.01, 1, 3, NAN, math.inf])
def test_tolerances_are_shares(tolerance: float) -> None:
    refused(rf"^tolerance: found {tolerance}; expected a share in \[0, 1\)", tolerance=tolerance)


def test_the_published_files_become_tables(tmp_path: Path) -> None:
    path = tmp_path / "full.json"
    path.write_text(json.dumps({"500": {"a": 0.5, "b": 1}, "6500": {"a": 0.25, "b": 0}}))
    assert accuracies(path).to_numpy().tolist() == [
        [500, "a", 0.5], [500, "b", 1], [6500, "a", 0.25], [6500, "b", 0]
    ]  # fmt: skip
    path.write_text(json.dumps({"42": {"500": {str(p): {"a": 0.5} for p in range(100)}}}))
    grid = accuracies(path)
    assert grid["target_sparsity"].tolist() == [p / 100 for p in range(100)]
    assert grid.iloc[7].to_dict() == {
        "seed": 42, "checkpoint": 500, "target_sparsity": 0.07, "subset": "a", "accuracy": 0.5
    }  # fmt: skip
    path.write_text(json.dumps({"42": {"500": {"5": {"a": -1}, "10": {"a": 0}}}}))
    assert accuracies(path)["target_sparsity"].tolist() == [0.1]


# -- the published figure -------------------------------------------------------------------------

ID = ["validation_matched", "validation_mismatched"]
OOD = [
    "lexical_overlap_ln_subject-object_swap",
    "lexical_overlap_ln_preposition",
    "constituent_cn_embedded_under_if",
    "constituent_cn_embedded_under_verb",
]
PUBLISHED_GROUPS = {"ID": ID, "OOD": OOD, "mixed": [*ID, *OOD]}
STEPS = [500, 6500, 12500, 18500, 24500, 30500, 36500, 42500, 48500, 54500]

# Per cent, averaged over three seeds: the curves of data/plots/mnli-effective-size.pdf, published
# with the code of arXiv 2403.03942, read from the file's drawing commands.
FIGURE = {
    "ID": [50, 51.67, 50, 48.33, 50, 48.33, 50, 48.33, 45, 48.33],
    "OOD": [30, 30, 96.67, 93.33, 93.33, 83.33, 93.33, 73.33, 78.33, 76.67],
    "mixed": [30, 35, 85, 83.33, 88.33, 76.67, 90, 73.33, 78.33, 76.67],
}
NOT_FAITHFUL = {
    "ID": [],
    "OOD": [(12500, 42), (12500, 44), (18500, 42), (24500, 43), (36500, 44)],
    "mixed": [(12500, 42)],
}


@pytest.mark.real
def test_the_published_figure_is_reproduced(real_data: Path) -> None:
    folder = real_data / "data" / "published"
    full = accuracies(folder / "mnli-acc_over_ft.json")
    grid = accuracies(folder / "mnli-sparsity-grid-acc.json")
    with pytest.warns(MechcoreWarning, match=r"500, seed 43 lacks 0\.1; checkpoint 12500, seed 44"):
        figure = effective_size(full, grid, groups=PUBLISHED_GROUPS)
    means = mean_effective_size(figure)
    for group, expected in FIGURE.items():
        part = means[means["group"] == group]
        assert part["checkpoint"].tolist() == STEPS
        assert (100 * part["effective_size"]).tolist() == pytest.approx(expected, abs=0.005)
        assert set(part["n_seeds"]) == {3}
        lost = figure[(figure["group"] == group) & ~figure["faithful"]]
        assert list(zip(lost["checkpoint"], lost["seed"], strict=True)) == NOT_FAITHFUL[group]
