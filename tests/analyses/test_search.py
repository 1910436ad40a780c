"""The sets that a search found, in the numbers of the tables."""

from dataclasses import replace

import pandas as pd
import pytest
from analyses.shown import drawings_of, headlines_of, plain
from pages import rows_of, tables_of, with_tables, words_of

from mechcore.analyses.search import Search
from mechcore.main_study.config import Analyses, StudyConfig
from mechcore.report.run_folder import RunFolder
from mechcore.study.step import plain as as_settings


def with_settings(run: RunFolder, search: Search) -> RunFolder:
    study = StudyConfig(analyses=Analyses(search=search))
    return replace(run, config={**run.config, "settings": as_settings(study)})


def raced(run: RunFolder, decisions: list[tuple[str, int]]) -> RunFolder:
    """With a race of pairs that are decided so, after so many examples."""
    rows = [
        (f"L0.H{i}+L1.MLP", 2, "hans", "ood", decision, 0.01, -0.1, 0.1, n, False)
        for i, (decision, n) in enumerate(decisions)
    ]
    columns = ["set", "size", "data", "split", "decision", "effect", "low", "high", "n", "exact"]
    return with_tables(run, race=pd.DataFrame(rows, columns=columns))


def headlines(run: RunFolder, table: pd.DataFrame) -> list[str]:
    return headlines_of(Search, with_tables(run, superadditive=table))


def test_the_amount_screened_and_the_data_of_the_figures_are_stated(run: RunFolder) -> None:
    (section,) = Search.sections(run)
    assert (section.id, section.title) == ("search", "Search for superadditive sets")
    assert section.files == ["superadditive.csv", "screening.csv"]
    words = words_of(section.blocks)
    ranked = "Screening by gradients ranked 496 pairs of components; the best 1 were ablated"
    assert words.startswith(ranked)
    assert "the half of tiny-ood (out-of-domain) that the search did not see: 500 examples" in words
    for sentence in headlines(run, run.tables["superadditive"]):
        assert sentence in plain(words)
    assert [drawing.name for drawing in drawings_of(section.blocks)] == ["superadditive"]
    (table,) = tables_of(section.blocks)
    place = "tiny-ood (out-of-domain)"
    first, _, _, last = rows_of(table)
    assert first[:3] == ["L0.H3+L1.H5", place, "margin (nats)"]
    assert [*map(plain, first[-3:])] == ["-1.50 [-2.25, -0.75]", "-1.50", "superadditive"]
    assert last[:3] == ["L1.H2+L3.MLP", place, "accuracy (points)"]
    exact = words_of(Search.blocks(with_settings(run, Search(screening_by="exact"))))
    assert exact.startswith("Screening by exact ranked 496 pairs of components; the")
    none = with_tables(run, superadditive=run.tables["superadditive"][:0])
    assert words_of(Search.blocks(none)) == "The search found no set."
    assert [*Search.headlines(none)] == []
    assert [*Search.sections(with_tables(run, superadditive=None))] == []


def test_superadditive_sets_are_counted_and_the_largest_is_that_of_the_half_that_chose(
    run: RunFolder,
) -> None:
    table = run.tables["superadditive"]
    first = (table["set"] == "L0.H3+L1.H5") & (table["metric"] == "accuracy")
    margin, accuracy = headlines(
        run, table.assign(high=table["high"].where(~first, 0.1), floor=first)
    )
    end = "on the other half (interval below zero, adjusted p at most 0.05)."
    assert f"2 are superadditive on the margin {end}" in margin
    assert f"1 is superadditive on accuracy {end}" in accuracy
    assert accuracy.endswith(" For 1 of 2, accuracy is close to its floor.")
    assert "0 are superadditive on accuracy" in headlines(run, table.assign(p_adjusted=0.06))[1]
    unknown = headlines(run, table.assign(low=float("nan"), high=float("nan")))
    assert all("none has an interval for" in text for text in unknown)
    # The first set loses most of its 1.5 nats on the other half; accuracy was not searched by.
    table = run.tables["superadditive"].copy()
    column = "interaction_in_search"
    table[column] = table[column].where(table["metric"] == "margin")
    first = table["set"] == "L0.H3+L1.H5"
    for end, value in (("interaction", -0.15), ("low", -0.25), ("high", -0.05)):
        table[end] = table[end].mask(first, value)
    margin, accuracy = headlines(run, table)
    name = "The largest in the search, L0.H3+L1.H5, has an interaction of"
    assert f"{name} -0.15 nats [-0.25, -0.05] there." in margin
    assert f"{name} -15.0 points [-25.0, -5.0] there." in accuracy


def test_a_race_says_what_it_decided_by_its_own_settings(run: RunFolder) -> None:
    decisions = [("within", 100), ("below", 200), ("open", 1500), ("above", 90), ("within", 300)]
    search = Search(screening_by="exact", guarantee=0.01, least=0.25)
    words = words_of(Search.blocks(with_settings(raced(run, decisions), search)))
    assert words.startswith(
        "A race decided 5 sets of 2 components: 1 superadditive by more than 0.25 nats of margin, "
        "1 subadditive by more than 0.25 nats, 2 within 0.25 nats of zero, 1 undecided. The "
        "median set took 200 examples. Any decision about the searched half is wrong with a "
        "probability of at most 0.01"
    )
    assert "Screening" not in words


@pytest.mark.parametrize(("n", "drawings"), [(40, []), (41, ["atlas"])])
def test_a_race_of_many_pairs_has_an_atlas(run: RunFolder, n: int, drawings: list[str]) -> None:
    many = raced(run, [("within", 90)] * n)
    none = with_tables(many, superadditive=run.tables["superadditive"][:0])
    for searched, before in ((many, ["superadditive"]), (none, [])):
        blocks = [*Search.blocks(searched)]
        assert [drawing.name for drawing in drawings_of(blocks)] == [*before, *drawings]
        assert words_of(blocks).startswith(f"A race decided {n} sets of 2 components")
