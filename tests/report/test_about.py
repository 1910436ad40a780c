"""All that a run says of one component."""

from pathlib import Path

import pandas as pd
import pytest

from mechcore.report.about import Flips, facts, flips_of
from mechcore.report.run_folder import RunFolder, read_run
from mechcore.wording import split_name, with_interval

NAN = float("nan")
ORDER = {"Kept in su": 0, "Ablated al": 1, "Attention,": 2, "Ablated to": 3, "In sets th": 4}


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
    found = facts(RunFolder(Path("run"), {}, {"head_categories": table}))
    (part,) = [p for p in found.about["L0.H0"].parts if p.title.startswith("Attention")]
    assert part.rows[0] == ["self", "50.0", shown, "3.0"]


@pytest.fixture(scope="module")
def run(rich_run: Path) -> RunFolder:
    return read_run(rich_run)


def test_facts_of_a_head_are_those_of_the_tables(run: RunFolder) -> None:
    known = facts(run)
    about = known.about["L1.H5"]
    category = run.tables["head_categories"].set_index("component").loc["L1.H5"]
    assert "In the heuristic core" in about.lead
    assert f"Its category is {category.category}." in about.lead
    kept, alone, attention, joint, search = sorted(
        about.parts, key=lambda part: ORDER[part.title[:10]]
    )
    assert kept.rows[0] == ["50\u00a0%", "3 of 3 seeds", "100.0\u00a0%", "0, 1, 2", "\u2013"]
    ends = f"[{100 * category.low_repeated:.1f}, {100 * category.high_repeated:.1f}]"
    mass = [f"{100 * category.mass_repeated:.1f}", ends, f"{category.ratio_repeated:.1f}"]
    assert ["repeated", *mass] in attention.rows
    singles = run.tables["ablation"].query("set == 'L1.H5'")
    places = {(f"{r.data} ({split_name(r.split)})", r.subset) for r in singles.itertuples()}
    assert {tuple(row[:2]) for row in alone.rows} == places
    shown = {tuple(row[:2]): row[2] for row in alone.rows}
    for r in singles.itertuples():
        ends = (r.accuracy_change, r.accuracy_change_low, r.accuracy_change_high)
        place = (f"{r.data} ({split_name(r.split)})", r.subset)
        assert shown[place] == with_interval(*ends, "accuracy")
    # Three pairs and the whole core, by two data sets and two metrics.
    assert len(joint.rows) == 16
    assert all("L1.H5" in known.shared[row][0] for row in [*joint.rows, *search.rows])


def test_facts_of_a_head_outside_the_core(run: RunFolder) -> None:
    about = facts(run).about["L0.H0"]
    assert "Not in the heuristic core." in about.lead
    seeds = run.tables["subnetworks"].query("target_sparsity == 0.7").set_index("seed")["kept"]
    keep, prune = (
        ", ".join(str(seed) for seed, kept in seeds.items() if ("L0.H0" in kept.split()) is wanted)
        for wanted in (True, False)
    )
    (kept,) = [part for part in about.parts if part.title == "Kept in subnetworks"]
    assert kept.rows[1][3:] == [keep or "\u2013", prune or "\u2013"]
    assert not any(part.title.startswith("Ablated together") for part in about.parts)


def test_what_flips_without_each_component(run: RunFolder) -> None:
    flips = flips_of(run)
    assert flips["L0.H3"].lead == (
        "Without it answers flip: 9 out of domain (9 right to wrong) and none in domain. Those "
        "out of domain come first, and those with the largest change of margin. Its attention is "
        "drawn on short texts only."
    )
    first, second, third = flips["L0.H3"].examples
    assert first.title == "1. Right to wrong: tiny-ood (out-of-domain), so_swap"
    assert first.texts == ["so_swap 1 saw L0.H3", "a bird"]
    assert first.answers == (
        "Label: non-entailment. Answer: non-entailment, margin 1.50 nats. Without it: entailment, "
        "margin \u22122.00 nats."
    )
    assert first.attention is not None
    assert first.attention == second.attention
    assert third.attention is None
    idle = flips["L0.H1"]
    assert idle.lead.endswith(
        "All are here. Its attention is not drawn, as no effect of the head is shown."
    )
    assert flips["L0.MLP"].lead == (
        "Without it answers flip: 1 out of domain (1 right to wrong) and none in domain. All are "
        "here."
    )
    assert flips["L3.H7"] == Flips("No answer flips without it.")
    assert facts(run).about["L0.H3"].flips == flips["L0.H3"]
