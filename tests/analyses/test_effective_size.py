"""Effective sizes, in the numbers of their tables."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from analyses.shown import drawings_of, headlines_of
from pages import rows_of, tables_of, with_tables, words_of

from mechcore.analyses.effective_size import EffectiveSize
from mechcore.report.run_folder import RunFolder, read_run


def test_sizes_and_missing_masks_are_reported_and_listed(run: RunFolder) -> None:
    (section,) = EffectiveSize.sections(run)
    files = ["mean_effective_size.csv", "effective_size.csv"]
    assert (section.id, section.files) == ("effective-size", files)
    assert [drawing.name for drawing in drawings_of(section.blocks)] == ["effective-size"]
    words = words_of(section.blocks)
    assert "The table also lists main text and rare." in words
    assert "Groups are means over subsets, listed under Accuracy. ID: all examples; OOD:" in words
    assert "main text: 2 subsets: so_swap, preposition; rare: 2 subsets: so_swap, absent." in words
    names = [(100, "s0.50-seed0"), (100, "s0.50-seed1"), (500, "s0.50-seed1")]
    missing = pd.DataFrame(names, columns=["checkpoint", "subnetwork"]).assign(reason="diverged")
    changed = with_tables(run, missing_grid_masks=missing)
    (section,) = EffectiveSize.sections(changed)
    assert section.files[-1] == "missing_grid_masks.csv"
    assert rows_of(tables_of(section.blocks)[-1])[2] == ["500", "s0.50-seed1", "diverged"]
    assert (
        "The training of some masks failed: s0.50-seed0 and s0.50-seed1 at checkpoint 100; "
        "s0.50-seed1 at checkpoint 500. A seed's effective size"
    ) in [*EffectiveSize.headlines(changed)][-1]


@pytest.mark.parametrize(
    ("faithful", "where"),
    [
        ({1: (0.9, 0.9), 2: (0.9, 0.9)}, "2 of 2 checkpoints"),
        ({1: (0.9, 0.9), 2: (0.9, 0.3)}, "1 of 2 checkpoints"),
        ({1: (0.3, 0.9), 2: (float("nan"), 0.9)}, None),
    ],
)
def test_sizes_are_bounds_where_the_sparsest_subnetworks_are_faithful(
    run: RunFolder, faithful: dict[int, tuple[float, float]], where: str | None
) -> None:
    row = run.tables["effective_size"].iloc[0].to_dict()
    sizes = [
        row | {"group": "OOD", "checkpoint": step, "seed": seed, "target_sparsity": sparsity}
        for step, of_seeds in faithful.items()
        for seed, sparsity in enumerate(of_seeds)
    ]
    grid = pd.DataFrame({"target_sparsity": [0.3, 0.9]})
    changed = with_tables(run, effective_size=pd.DataFrame(sizes), grid=grid)
    _, *bounds = headlines_of(EffectiveSize, changed)
    assert len(bounds) == (where is not None)
    for text in bounds:
        assert text.startswith("Even at a sparsity of 90 %, the largest of the grid, the subnetw")
        assert f"are faithful on OOD at {where}. Effective sizes there are upper bounds." in text


def test_one_checkpoint_has_a_size_and_none_has_no_section(
    run: RunFolder, tmp_path: Path, new_run: Callable[..., Path]
) -> None:
    means = run.tables["mean_effective_size"]
    of_one = means[(means["checkpoint"] == "500") & (means["group"] == "ID")]
    first, *_ = headlines_of(EffectiveSize, with_tables(run, mean_effective_size=of_one))
    assert first == "The effective size is 69.0 % at 500 on ID."
    plain = read_run(new_run(tmp_path / "plain", n_layers=1, n_heads=2, core=()))
    assert [*EffectiveSize.sections(plain)] == []
