"""All that a run says of one component."""

from pathlib import Path

import pandas as pd
import pytest
from pages import rows_of, tables_of, words_of

from mechcore.report import about
from mechcore.report.about import panels
from mechcore.report.blocks import Block, Table, View
from mechcore.report.run_folder import RunFolder, read_run
from mechcore.wording import split_name, with_interval

NAN = float("nan")


@pytest.mark.parametrize(
    ("low", "examples", "shown"),
    [(0.4, 12, "[40.0, 60.0]"), (NAN, 9, "none: 9 examples"), (NAN, 1, "none: 1 example")],
)
def test_a_mass_without_an_interval_says_of_how_few_examples_it_is(
    low: float, examples: int, shown: str
) -> None:
    row = {"component": "L0.H0", "category": "self", "n_examples": 12, "entropy": 1.0}
    masses = {"mass_self": 0.5, "low_self": low, "high_self": low + 0.2, "ratio_self": 3.0}
    table = pd.DataFrame([{**row, **masses, "examples_self": examples}])
    made = panels(RunFolder(Path("run"), {}, {"head_categories": table}))
    (part,) = tables_of(made["L0.H0"])
    assert part.rows[0] == ["self", "50.0", shown, "3.0"]


@pytest.fixture(scope="module")
def run(rich_run: Path) -> RunFolder:
    return read_run(rich_run)


@pytest.fixture(scope="module")
def known(run: RunFolder) -> dict[str, list[Block]]:
    return panels(run)


def tables(blocks: list[Block]) -> dict[str, Table]:
    """By the first words of their captions."""
    return {table.caption[:10]: table for table in tables_of(blocks)}


def test_facts_of_a_head_are_those_of_the_tables(
    run: RunFolder, known: dict[str, list[Block]], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, parts = known["L1.H5"], tables(known["L1.H5"])
    category = run.tables["head_categories"].set_index("component").loc["L1.H5"]
    assert "In the heuristic core" in words_of(blocks)
    assert f"Its category is {category.category}." in words_of(blocks)
    assert rows_of(parts["Kept in su"])[0] == ["50 %", "3 of 3 seeds", "100.0 %", "0, 1, 2"]
    ends = f"[{100 * category.low_repeated:.1f}, {100 * category.high_repeated:.1f}]"
    mass = [f"{100 * category.mass_repeated:.1f}", ends, f"{category.ratio_repeated:.1f}"]
    assert ["repeated", *mass] in parts["Attention,"].rows
    singles = run.tables["ablation"].query("set == 'L1.H5'")
    places = {(f"{r.data} ({split_name(r.split)})", r.subset) for r in singles.itertuples()}
    alone = parts["Ablated al"].rows
    assert {tuple(row[:2]) for row in alone} == places
    shown = {tuple(row[:2]): row[2] for row in alone}
    for r in singles.itertuples():
        ends = (r.accuracy_change, r.accuracy_change_low, r.accuracy_change_high)
        place = (f"{r.data} ({split_name(r.split)})", r.subset)
        assert shown[place] == with_interval(*ends, "accuracy")
    # Three pairs and the whole core, by two data sets and two metrics.
    assert len(parts["Ablated to"].rows) == 16
    joint = [*parts["Ablated to"].rows, *parts["In sets th"].rows]
    assert all("L1.H5" in row[0] for row in joint)
    (view,) = [block for block in blocks if isinstance(block, View)]
    assert "attention on one example" in view.caption
    monkeypatch.setattr(about, "MOST_SETS", 3)
    largest = tables(panels(run)["L1.H5"])["Ablated to"]
    assert largest.rows == parts["Ablated to"].rows[:3]
    assert largest.caption.endswith("; the 3 largest of 16")


def test_a_head_with_an_effect_has_what_its_attention_carries() -> None:
    row = {"size": 1, "data": "hans", "split": "ood", "subset": "all", "n": 9, "mass": 0.5}
    row |= {"share_low": 0.8, "share_high": 1.1, "control_share": 0.1, "carried": "supported"}
    rows = [
        {"component": "L0.H0", "category": "repeated", "share": 0.92, **row},
        {"component": "L0.H0", "category": "first", **row, "share": NAN},
        {"component": "L0.H0", "category": "self", "share": 0.5, **row, "subset": "other"},
    ]
    kept = pd.DataFrame([{"component": "L0.H0", "category": "self", "n_examples": 9, "entropy": 1}])
    tables = {"head_categories": kept, "knockouts": pd.DataFrame(rows)}
    (_, part) = tables_of(panels(RunFolder(Path("run"), {}, tables))["L0.H0"])
    assert part.rows == [
        ["hans (out-of-domain)", "repeated", "92.0\xa0% [80.0, 110.0]", "10.0\xa0%", "supported"]
    ]


def test_facts_of_a_head_outside_the_core(run: RunFolder, known: dict[str, list[Block]]) -> None:
    assert "Not in the heuristic core." in words_of(known["L0.H0"])
    seeds = run.tables["subnetworks"].query("target_sparsity == 0.7").set_index("seed")["kept"]
    keep = ", ".join(str(seed) for seed, kept in seeds.items() if "L0.H0" in kept.split())
    parts = tables(known["L0.H0"])
    assert parts["Kept in su"].rows[1][3] == (keep or "\u2013")
    assert "Ablated to" not in parts


def test_what_flips_without_each_component(known: dict[str, list[Block]]) -> None:
    words = {name: words_of(blocks[1:]) for name, blocks in known.items()}
    assert words["L0.H3"] == (
        "Answers that flip without it: 9 out of domain (9 right to wrong) and none in domain. The "
        "list starts out of domain, with the largest changes in margin. Its attention is "
        "drawn on short texts only."
    )
    flips = tables(known["L0.H3"])["Answers th"]
    label = "non-entailment"
    assert flips.rows[0] == [
        *("1", "right to wrong", "so_swap 1 saw L0.H3 \u2016 a bird", label, label),
        *("entailment", "1.50", "\u22122.00", "tiny-ood (out-of-domain)", "so_swap"),
    ]
    views = [block.caption for block in known["L0.H3"] if isinstance(block, View)]
    assert [caption[:26] for caption in views] == [  # the third text was too long to draw
        *("Its attention on text 1: r", "Its attention on text 2: r", "Its attention on one examp"),
    ]
    assert words["L0.H1"].endswith(
        "All are listed. Its attention is not drawn because no effect of the head is shown."
    )
    assert words["L0.MLP"] == (
        "Answers that flip without it: 1 out of domain (1 right to wrong) and none in domain. All "
        "are listed."
    )
    assert words["L3.H7"] == "No answer flips without it."
