"""Stability, in the numbers of the tables of other analyses."""

import pandas as pd
from pages import rows_of, tables_of, with_tables, words_of

from mechcore.analyses.stability import Stability
from mechcore.report.run_folder import RunFolder


def test_halves_of_examples_and_of_training_data_are_shown(run: RunFolder) -> None:
    (section,) = Stability.sections(run)
    names = ("stability", "half_cores", "half_overlap")
    assert (section.id, section.files) == ("stability", [f"{name}.csv" for name in names])
    words = words_of(section.blocks)
    halves, cores, overlap = tables_of(section.blocks)
    assert words.startswith("Two random halves share no example")
    assert "--with halves" not in words
    place = ["tiny-ood (out-of-domain)", "accuracy"]
    figures = ["0.80 [0.75, 0.85]", "0.89", "10", "0.80 [0.75, 0.85]", "0.20", "L0.H3 (0.80)"]
    assert rows_of(halves)[0] == ["36 components", *place, *figures]
    assert [row[0] for row in rows_of(halves)[::4]] == [
        *("36 components", "6 pairs of the core", "10 pairs that the search found"),
    ]
    assert rows_of(halves)[4][-1] == "L0.H3+L1.H5 (0.80)"
    # Half 1 has the masks of all data, half 2 those of other seeds: the cores are the same.
    core = run.tables["half_cores"]["first_core"][0]
    size = len(core.split())
    alike = ["6", f"{size}, {size}", str(size), "1.00", "1.00", core, core]
    pairs = ("all data, half 1", "all data, half 2", "half 1, half 2")
    assert rows_of(cores) == [[pair, *alike] for pair in pairs]  # none by chance, of the same seeds
    overlaps = {tuple(row[:2]): row[2:] for row in rows_of(overlap)}
    assert overlaps["all data and a half, one seed", "50 %"][0] == "6"
    assert overlaps["all data and a half, one seed", "50 %"][-1] == "n/a"
    assert 0 < float(overlaps["all data, two seeds", "50 %"][-1]) < 1
    assert set(overlaps) == {
        (row["compared"], f"{100 * row['target_sparsity']:.0f} %")
        for row in run.tables["half_overlap"].to_dict("records")
    }
    outside, inside, cores = Stability.headlines(run)
    assert outside == (
        "Split-half agreement on tiny-ood (out-of-domain), 36 components ranked by change in "
        "margin: Spearman's rho = 0.80 (0.89 predicted at full size); top-10 Jaccard index 0.80 "
        "(0.20 by chance)."
    )
    assert inside.startswith("Split-half agreement on tiny-id (in-domain), 36 components")
    assert cores.startswith("The cores of two random halves of the training data have ")
    assert "by chance" not in cores
    unknown = run.tables["stability"].assign(predicted_rho=None, top=1)
    first, *_ = Stability.headlines(with_tables(run, stability=unknown))
    assert "rho = 0.80; top-1 Jaccard index" in first


def test_halves_that_lack_masks_or_that_were_not_made(run: RunFolder) -> None:
    examples = with_tables(run, half_cores=None, half_overlap=None)
    blocks = [*Stability.blocks(examples)]
    assert "--with halves (analyses: halves), which prunes again" in words_of(blocks)
    assert len(tables_of(blocks)) == 1
    assert [*Stability.sections(with_tables(examples, stability=None))] == []
    row = {"data": "half 2", "subnetwork": "s0.50-seed1", "reason": "it ended elsewhere"}
    missing = pd.DataFrame([row | {"target_sparsity": 0.5, "seed": 1}])
    (section,) = Stability.sections(with_tables(run, missing_half_masks=missing))
    table = tables_of(section.blocks)[-1]
    assert rows_of(table) == [[*row.values()]]
    assert section.files[-1] == "missing_half_masks.csv"
