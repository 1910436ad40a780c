"""The sections on data, training, groups of subsets and the search say what their tables say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from made_up_run import World, write_run

from mechcore.analyses.search import Search
from mechcore.main_study.analyses import Analyses
from mechcore.main_study.config import StudyConfig
from mechcore.report import (
    accuracy_section,
    search_section,
    size_section,
    smallest_section,
)
from mechcore.report.blocks import Command, Gallery, Paragraph, Picture, Section, Table
from mechcore.report.run_folder import RunFolder, read_run
from mechcore.report.stability_section import stability_section
from mechcore.report.summary import findings, tiles
from mechcore.study.step import plain
from mechcore.wording import SPACE

GALLERY: Any = SimpleNamespace(add=lambda _, *words, fold="": Picture(*words, "", 1, 1, fold=fold))


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (accuracy_section.figures, "accuracy_by_subset"),
        (search_section.interaction_figures, "interactions"),
        (size_section, "effective_sizes"),
    ):
        monkeypatch.setattr(module, name, lambda *_: None)


@pytest.fixture(scope="module")
def run(rich_run: Path) -> RunFolder:
    return read_run(rich_run)


def made(
    make: Callable[[RunFolder, Gallery], Section | None], run: RunFolder
) -> tuple[str, list[Table]]:
    section = make(run, GALLERY)
    assert section is not None
    words = " ".join(block.text for block in section.blocks if isinstance(block, Paragraph))
    tables = [block for block in section.blocks if isinstance(block, Table)]
    return words, tables


def rows(table: Table) -> list[list[str]]:
    return [[cell.replace(SPACE, " ") for cell in row] for row in table.rows]


def changed(run: RunFolder, config: dict[str, Any] | None = None, **tables: Any) -> RunFolder:
    return RunFolder(run.path, config or run.config, {**run.tables, **tables})


def told(run: RunFolder) -> Iterator[str]:
    return (each.text.replace(SPACE, " ") for each in findings(run))


# -- accuracy --------------------------------------------------------------------------------------


def test_the_majority_stands_beside_the_accuracy(run: RunFolder) -> None:
    _, (table, *_) = made(accuracy_section.accuracy_section, run)
    column = list(table.header).index("most frequent label")
    assert [row[column] for row in rows(table)] == 5 * ["100.0 %"] + ["50.0 %"]


def test_subsets_of_in_domain_data_are_drawn_apart_and_folded(run: RunFolder) -> None:
    accuracy = run.tables["accuracy"]
    inside = accuracy[accuracy["role"] == "id"].assign(subset="fiction")
    with_subsets = pd.concat([inside, accuracy], ignore_index=True)
    drawn: list[pd.DataFrame] = []
    accuracy_section.figures.accuracy_by_subset = lambda part, _: drawn.append(part)
    section = accuracy_section.accuracy_section(changed(run, accuracy=with_subsets), GALLERY)
    pictures = [block for block in section.blocks if isinstance(block, Picture)]
    folds = ["", "Accuracy on subsets of tiny-id (in-domain)"]
    assert [picture.fold for picture in pictures] == folds
    assert len({picture.name for picture in pictures}) == 2
    pd.testing.assert_frame_equal(drawn[0], accuracy.set_index(drawn[0].index))
    pd.testing.assert_frame_equal(drawn[1], inside.set_index(drawn[1].index))


# -- the smallest subnetwork ----------------------------------------------------------------------


def test_what_can_go_together_is_said_with_how_to_get_it(run: RunFolder) -> None:
    section = smallest_section.smallest_section(run, GALLERY)
    assert section is not None
    words, (table,) = made(smallest_section.smallest_section, run)
    assert words.startswith(
        "Smallest subnetwork within 1 point of accuracy: s0.50-seed0, which keeps 18 components "
        "and loses 0.2 points in domain (at most 0.6) and 0.5 points out of domain (at most 0.9)."
    )
    assert "of information: none; s0.50-seed0 comes closest of 6 masks" in words
    assert table.header[6:8] == ["change out of domain (points)", "change in domain (points)"]
    changes = ["\u22120.5 [\u22120.9, \u22120.1]", "\u22120.2 [\u22120.6, +0.2]"]
    accuracy = ["accuracy out of domain (points)", "accuracy in domain (points)"]
    assert table.header[8:10] == accuracy
    changes += ["\u22120.5", "\u22120.2"]
    assert [row[:10] for row in rows(table)] == [
        ["accuracy", "1", "yes", "s0.50-seed0", "50.0 %", "18", *changes],
        ["information", "1", "no", "s0.50-seed0", "50.0 %", "18", *changes],
    ]
    (command,) = [block.text for block in section.blocks if isinstance(block, Command)]
    assert command == (
        "mechcore export --model checkpoints/tiny-world --mask masks/s0.50-seed0.safetensors "
        "--means means.safetensors --out s0.50-seed0"
    )
    assert any("within 1 point of accuracy: s0.50-seed0" in text for text in told(run))
    one_label = {"id_accuracy_loss": 0.0, "ood_accuracy_loss": 0.4}
    for changes_of_all in ({"within": False}, one_label):
        neither = run.tables["smallest"].assign(**changes_of_all)
        section = smallest_section.smallest_section(changed(run, smallest=neither), GALLERY)
        assert section is not None
        assert not any(isinstance(block, Command) for block in section.blocks)
    assert "mechcore export" not in made(smallest_section.smallest_section, run)[0]


# -- stability ------------------------------------------------------------------------------------


def test_stability_shows_halves_of_examples_and_of_training_data(run: RunFolder) -> None:
    words, (halves, resamples, largest, cores, members, overlap) = made(stability_section, run)
    assert words.startswith("Two random halves of the examples share none of them")
    assert "--halves" not in words
    place = ["tiny-ood (out-of-domain)", "accuracy"]
    figures = ["0.80 [0.75, 0.85]", "0.89", "10", "0.80 [0.75, 0.85]", "0.20"]
    assert rows(halves)[0] == ["36 components", *place, *figures]
    assert [row[0] for row in rows(halves)[::4]] == [
        *("36 components", "6 pairs of the core", "10 pairs that the search found"),
    ]
    figure = "0.90 [0.85, 0.95]"
    assert rows(resamples)[0] == ["36 components", *place, figure, "10", figure]
    assert rows(largest)[4][3] == "L0.H3+L1.H5 (0.80)"
    # Half 1 has the masks of all data, half 2 those of other seeds: the cores are the same.
    core = run.tables["half_cores"]["first_core"][0]
    size = len(core.split())
    for row, compared in zip(
        rows(cores),
        ["all data, half 1", "all data, half 2", "half 1, half 2"],
        strict=True,
    ):
        assert row[:5] == [compared, "6", f"{size}, {size}", str(size), "1.00"]
        assert row[5:] == ["1.00"]  # no figure by chance, as they are of the same seeds
    assert rows(members) == [[data, core] for data in ("all data", "half 1", "half 2")]
    found = {tuple(row[:2]): row[2:] for row in rows(overlap)}
    assert found["all data and a half, one seed", "50 %"][0] == "6"
    assert found["all data and a half, one seed", "50 %"][-1] == "n/a"
    assert 0 < float(found["all data, two seeds", "50 %"][-1]) < 1
    assert set(found) == {
        (row["compared"], f"{100 * row['target_sparsity']:.0f} %")
        for row in run.tables["half_overlap"].to_dict("records")
    }


def test_stability_is_told_in_the_summary(run: RunFolder) -> None:
    sentences = [text for text in told(run) if "halves" in text]
    assert sentences[0] == (
        "Random halves of tiny-ood (out-of-domain) rank 36 components by their change of margin "
        "with Spearman's rho = 0.80, which predicts 0.89 for other data as large; their choices "
        "of the 10 that matter most overlap with a Jaccard index of 0.80 (0.20 by chance)."
    )
    assert sentences[2].startswith("The cores of two random halves of the training data have ")
    assert "by chance" not in sentences[2]
    unknown = run.tables["stability"].assign(predicted_rho=None, top=1)
    first = next(t for t in told(changed(run, stability=unknown)) if "halves" in t)
    assert "rho = 0.80; their choices of the one that matters most overlap" in first


def test_without_halves_of_the_training_data_the_way_to_them_is_named(run: RunFolder) -> None:
    gone = dict.fromkeys(("half_cores", "half_overlap"))
    words, tables = made(stability_section, changed(run, **gone))
    assert "--halves" in words
    assert len(tables) == 3
    none = dict.fromkeys(("stability", "interaction_stability", "search_stability"))
    assert stability_section(changed(run, **gone, **none), GALLERY) is None


def test_masks_that_halves_lack_are_listed(run: RunFolder) -> None:
    row = {"data": "half 2", "subnetwork": "s0.50-seed1", "target_sparsity": 0.5, "seed": 1}
    missing = pd.DataFrame([row | {"reason": "it ended elsewhere"}])
    _, tables = made(stability_section, changed(run, missing_half_masks=missing))
    assert rows(tables[-1]) == [["half 2", "s0.50-seed1", "it ended elsewhere"]]


# -- groups of subsets ----------------------------------------------------------------------------


def test_groups_have_means_of_the_full_model_and_over_subnetworks(run: RunFolder) -> None:
    _, (*_, table) = made(accuracy_section.accuracy_section, run)
    accuracy = run.tables["accuracy"]
    part = accuracy[accuracy["subset"].isin(["so_swap", "preposition"])]
    means = 100 * part.groupby("subnetwork")["accuracy"].mean()
    pruned = means[[name for name in means.index if name.startswith("s0.50")]]
    found = {row[0]: row[1:] for row in rows(table)}
    assert found["main text"][0] == f"{means['full']:.1f} %"
    assert found["main text"][1] == (
        f"{pruned.mean():.1f} % ({pruned.min():.1f}\u2013{pruned.max():.1f} %)"
    )
    assert found["main text"][-2:] == ["2", "so_swap, preposition"]
    assert found["ID"][-1] == "all examples"


def test_a_group_that_lacks_a_subset_has_no_mean(run: RunFolder) -> None:
    words, (*_, table) = made(accuracy_section.accuracy_section, run)
    assert "No mean for rare: the data have no example of absent." in words
    (rare,) = (row for row in rows(table) if row[0] == "rare")
    assert rare == ["rare", "n/a", "n/a", "n/a", "2", "so_swap, absent"]
    assert any(
        "on main text (2 subsets: so_swap, preposition). There is no mean for rare (no example "
        "of absent)." in text
        for text in told(run)
    )


def test_out_of_domain_numbers_say_over_how_many_subsets(run: RunFolder) -> None:
    notes = {tile.label: tile.note for tile in tiles(run)}
    outside = notes["Full model, out-of-domain"]
    assert outside.endswith("] on tiny-ood, all examples of 4 subsets")
    full = (
        run.tables["accuracy"].query("subnetwork == 'full' and subset == 'all'").set_index("role")
    )
    low, high = (100 * full.at["id", f"accuracy_{end}"] for end in ("low", "high"))
    assert notes["Full model, in-domain"] == f"[{low:.1f}, {high:.1f}] on tiny-id"


def test_groups_of_effective_sizes_are_named(run: RunFolder) -> None:
    words, _ = made(size_section.size_section, run)
    assert "The table also has main text and rare." in words
    assert (
        "Groups are means over subsets, named under Accuracy. ID: all examples; OOD: 4 subsets: "
        "so_swap, preposition, "
        "embedded_under_if, embedded_under_verb; main text: 2 subsets: so_swap, preposition; "
        "rare: 2 subsets: so_swap, absent."
    ) in words


@pytest.mark.parametrize(
    ("faithful", "said"),
    [
        ({1: (0.9, 0.9), 2: (0.9, 0.9)}, "faithful on OOD at every checkpoint."),
        ({1: (0.9, 0.9), 2: (0.9, 0.3)}, "faithful on OOD at checkpoint 1."),
        ({1: (0.9, 0.9), 2: (0.9, 0.9), 3: (0.3, 0.3)}, "faithful on OOD at checkpoints 1 and 2."),
        (
            dict.fromkeys(range(6), (0.9, 0.9)) | {6: (0.3, 0.9)},
            "faithful on OOD at 6 of 7 checkpoints.",
        ),
        ({1: (0.3, 0.9), 2: (float("nan"), 0.9)}, None),
    ],
)
def test_sizes_are_bounds_where_the_sparsest_subnetworks_are_faithful(
    run: RunFolder, faithful: dict[int, tuple[float, float]], said: str | None
) -> None:
    row = run.tables["effective_size"].iloc[0].to_dict()
    rows = [
        row | {"group": "OOD", "checkpoint": step, "seed": seed, "sparsity": sparsity}
        for step, of_seeds in faithful.items()
        for seed, sparsity in enumerate(of_seeds)
    ]
    tables = {"effective_size": pd.DataFrame(rows), "grid": pd.DataFrame({"sparsity": [0.3, 0.9]})}
    words, _ = made(size_section.size_section, changed(run, **tables))
    if said is None:
        assert "upper bounds" not in words
    else:
        assert (
            f"Even at a sparsity of 90\u00a0%, the largest of the grid, the subnetworks of all "
            f"seeds are {said} Effective sizes there are upper bounds." in words
        )


# -- search ---------------------------------------------------------------------------------------


def test_a_search_says_how_much_it_screened_and_on_what_it_reports(run: RunFolder) -> None:
    words, (table,) = made(search_section.search_section, run)
    assert words.startswith(
        "496 pairs of components were screened by gradients, and the best 1 ablated exactly"
    )
    search = {
        "settings": plain(StudyConfig(analyses=Analyses(search=Search(screening_by="exact"))))
    }
    other, _ = made(search_section.search_section, replace(run, config=run.config | search))
    assert other.startswith("496 pairs of components were screened by exact, and")
    assert "the half of tiny-ood (out-of-domain) that the search did not see: 500 examples" in words
    assert (
        "2 are superadditive on the margin on the other half, with an interval below zero and an "
        "adjusted p of at most 0.05." in words
    )
    first, second = rows(table)
    assert first[:4] == [
        "L0.H3+L1.H5",
        "\u22121.50 [\u22122.25, \u22120.75]",
        "0.02",
        "\u22121.50 nats",
    ]
    assert first[4:] == ["\u221215.0 [\u221222.5, \u22127.5]", "0.02", "no"]
    assert second[0] == "L1.H2+L3.MLP"


def test_the_largest_set_is_that_of_the_half_that_chose(run: RunFolder) -> None:
    # The first set loses most of its 1.5 nats on the other half; accuracy was not searched by.
    found = run.tables["superadditive"].copy()
    found["interaction_in_search"] = found["interaction_in_search"].where(
        found["metric"] == "margin"
    )
    first = found["set"] == "L0.H3+L1.H5"
    for column, value in (("interaction", 0.15), ("low", 0.05), ("high", 0.25)):
        found[column] = found[column].mask(first, value)
    margin, accuracy = search_section.search_sentences(changed(run, superadditive=found))
    name = "The set that was the largest in the search, L0.H3+L1.H5, has an interaction of"
    assert f"{name} \u22120.15\xa0nats [\u22120.25, \u22120.05]." in margin
    assert f"{name} \u221215.0\xa0points [\u221225.0, \u22125.0]." in accuracy


def test_a_race_says_what_it_decided_by_its_own_settings(run: RunFolder, tmp_path: Path) -> None:
    decided = (("within", 100), ("above", 200), ("open", 1500), ("below", 90), ("within", 300))
    rows = [f"L0.H{i}+L1.MLP,2,hans,ood,{each},0.01,-0.1,0.1,{n},False\n"
            for i, (each, n) in enumerate(decided)]  # fmt: skip
    (tmp_path / "race.csv").write_text(
        "set,size,data,role,decision,effect,low,high,n,exact\n" + "".join(rows)
    )
    search = Search(screening_by="exact", guarantee=0.01, least=0.25)
    found = changed(run, race=run.schemas["race"].read(tmp_path / "race.csv"))
    config = run.config | {"settings": plain(StudyConfig(analyses=Analyses(search=search)))}
    words, _ = made(search_section.search_section, replace(found, config=config))
    assert words.startswith(
        "A race decided 5 sets of 2 components: 1 superadditive by more than 0.25 nats of margin, "
        "1 subadditive by more than 0.25 nats, 2 within 0.25 nats of zero, 1 undecided. Half of "
        "them took 200 examples or fewer, none more than 1,500; any decision about the half "
        "searched is wrong with a probability of 0.01 at most"
    )
    assert "The table shows" not in words


def test_it_is_said_how_many_of_what_a_race_looks_for_are_shown(
    run: RunFolder, tmp_path: Path
) -> None:
    rows = [f"L0.H{i}+L1.MLP,2,hans,ood,above,0.5,0.4,0.6,90,False\n" for i in range(30)]
    (tmp_path / "race.csv").write_text(
        "set,size,data,role,decision,effect,low,high,n,exact\n" + "".join(rows)
    )
    found = changed(run, race=run.schemas["race"].read(tmp_path / "race.csv"))
    pairs = found.tables["superadditive"].query("size == 2")["set"].nunique()
    words, _ = made(search_section.search_section, found)
    assert (
        f"The table shows the {pairs} largest of the 30 that are superadditive by more than 0.1 "
        "nats of margin; race.csv has all."
    ) in words


def test_a_race_of_many_pairs_has_an_atlas(run: RunFolder, tmp_path: Path) -> None:
    for n, expected in ((40, 0), (41, 1)):
        rows = [f"L0.H{i}+L1.MLP,2,hans,ood,within,0.01,-0.1,0.1,90,False\n" for i in range(n)]
        (tmp_path / "race.csv").write_text(
            "set,size,data,role,decision,effect,low,high,n,exact\n" + "".join(rows)
        )
        race = run.schemas["race"].read(tmp_path / "race.csv")
        section = search_section.search_section(changed(run, race=race), GALLERY)
        assert section is not None
        pictures = [each for each in section.blocks if isinstance(each, Picture)]
        assert [each.name for each in pictures].count("atlas") == expected


def test_accuracies_cut_off_are_marked(run: RunFolder) -> None:
    found = run.tables["superadditive"]
    at_floor = (found["set"] == "L0.H3+L1.H5") & (found["metric"] == "accuracy")
    low = found["low"].where(~at_floor, -0.1)
    edited = changed(run, superadditive=found.assign(floor=at_floor, low=low))
    unsure = changed(run, superadditive=found.assign(p_adjusted=0.06))
    assert "0 are superadditive on accuracy" in made(search_section.search_section, unsure)[0]
    words, (table,) = made(search_section.search_section, edited)
    assert [row[-1] for row in table.rows] == ["at the floor", "no"]
    assert "1 is superadditive on accuracy" in words
    assert "Accuracy has next to nothing left to lose for 1 of 2." in words


def test_a_search_of_an_older_version_and_one_that_found_nothing(run: RunFolder) -> None:
    found = run.tables["superadditive"]
    older = found.drop(columns="interaction_in_search")
    _, (table,) = made(search_section.search_section, changed(run, superadditive=older))
    assert [row[3] for row in table.rows] == ["\u2013", "\u2013"]
    words = " ".join(search_section.search_sentences(changed(run, superadditive=older)))
    assert "The most superadditive set, L0.H3+L1.H5, has an interaction of" in words
    words, tables = made(search_section.search_section, changed(run, superadditive=found[:0]))
    assert (words, tables) == ("The search found no set.", [])


# -- runs without any of it -----------------------------------------------------------------------


def test_runs_of_older_versions_have_none_of_these_sections(tmp_path: Path) -> None:
    old = read_run(write_run(tmp_path / "old", World(n_layers=1, n_heads=2, core=())))
    for make in (
        search_section.search_section,
        size_section.size_section,
    ):
        assert make(old, GALLERY) is None
    _, tables = made(accuracy_section.accuracy_section, old)
    assert [table.header[3] for table in tables] == ["full model", "full model"]
