"""The sections on data, training, groups of subsets and the search say what their tables say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from made_up_run import TRAIN_SETTINGS, World, write_run

from mechcore.analyses.search import Search
from mechcore.main_study.analyses import Analyses
from mechcore.main_study.config import StudyConfig
from mechcore.report import (
    search_section,
    training_section,
)
from mechcore.report.blocks import Gallery, Paragraph, Picture, Section, Table
from mechcore.report.data_section import data_section, most_frequent
from mechcore.report.run_folder import RunFolder, read_run
from mechcore.report.summary import findings, tiles
from mechcore.study.step import plain
from mechcore.wording import SPACE

GALLERY: Any = SimpleNamespace(add=lambda _, *words, fold="": Picture(*words, "", 1, 1, fold=fold))


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (search_section.interaction_figures, "interactions"),
        (training_section, "training_curves"),
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


# -- data -----------------------------------------------------------------------------------------


def data_of(labels: dict[tuple[str, str], int], role: str = "ood") -> pd.DataFrame:
    """Counts by subset and label."""
    table = pd.DataFrame(
        [
            {"data": "d", "role": role, "subset": s, "label": label, "n": n}
            for (s, label), n in labels.items()
        ]
    )
    return table.assign(share=0.0)


def test_the_most_frequent_label_of_all_subsets_is_over_their_examples() -> None:
    table = data_of({("a", "yes"): 10, ("a", "no"): 5, ("b", "no"): 25})
    assert most_frequent(table, "ood", "d") == ("no", 0.75)
    assert most_frequent(table, "ood", "d", "a") == ("yes", pytest.approx(2 / 3))
    assert most_frequent(table, "ood", "d", "unknown") is None
    assert most_frequent(data_of({("all", ""): 5}), "ood", "d") is None


def test_data_are_shown_with_what_was_used_cut_and_how_labels_are_balanced(run: RunFolder) -> None:
    words, (overview, subsets) = made(data_section, run)
    assert "12 of 20,000 texts of tiny-train (training) were cut at 128 tokens." in words
    assert "No text was cut" not in words
    assert rows(overview)[0] == [
        "tiny-train (training)",
        "2,000",
        "30,000",
        "12",
        "\u2013",
        "entailment 1,000 (50.0 %), neutral 600 (30.0 %), contradiction 400 (20.0 %)",
    ]
    assert [row[0] for row in overview.rows][1:] == [
        "tiny-id (in-domain)",
        "tiny-ood (out-of-domain)",
    ]
    assert rows(subsets)[0] == [
        "tiny-ood (out-of-domain)",
        "so_swap",
        "500",
        "non-entailment 500 (100.0 %)",
    ]
    assert len(subsets.rows) == 4


def test_of_many_labels_the_most_frequent_are_named_and_the_rest_counted(run: RunFolder) -> None:
    table = data_of({("all", name): 6 - i for i, name in enumerate("abcdef")})
    _, (overview,) = made(data_section, changed(run, data=table))
    assert rows(overview)[0][-1].endswith("d 3 (14.3 %); 2 more in data.csv")


def test_data_without_subsets_are_told_of_the_option(run: RunFolder) -> None:
    option = "name it with --columns subset=NAME"
    assert option in made(data_section, changed(run, data=data_of({("all", "yes"): 7})))[0]
    assert option not in made(data_section, run)[0]


def test_data_without_labels_are_said_to_be(run: RunFolder) -> None:
    words, (overview,) = made(data_section, changed(run, data=data_of({("all", ""): 7}, "train")))
    assert rows(overview)[0][-1] == "without labels 7 (100.0 %)"
    assert "Always answering" not in words


def test_that_nothing_was_cut_is_said_where_it_is_known(run: RunFolder) -> None:
    entries = {role: {"n": 5, "n_cut": 0} for role in ("train", "id", "ood")}
    assert "No text was cut." in made(data_section, changed(run, {"data": entries}))[0]
    del entries["ood"]["n_cut"]
    assert "cut" not in made(data_section, changed(run, {"data": entries}))[0]


def test_the_majority_is_told_in_the_summary(run: RunFolder) -> None:
    assert any(
        "50.0 % of tiny-id (in-domain: entailment) and 100.0 % of tiny-ood" in t for t in told(run)
    )


# -- training -------------------------------------------------------------------------------------


def test_a_training_is_told_in_one_sentence(run: RunFolder) -> None:
    words, _ = made(training_section.training_section, run)
    assert words.startswith(
        "hub/base was fine-tuned for 500 steps on 30,000 examples (tiny-train), 128 examples a "
        "step (2.1 passes), at a learning rate of up to 2e-05 after 10 steps of warm-up, falling "
        "to zero, in float32, with seed 7. It was evaluated 3 times, and 2 checkpoints were kept."
    )


@pytest.mark.parametrize(
    ("more", "kept"), [({}, "1 checkpoint was"), ({"patience": 2}, "2 checkpoints were")]
)
def test_with_a_patience_the_last_checkpoint_is_a_copy_beside_the_others(
    run: RunFolder, more: dict[str, int], kept: str
) -> None:
    settings = {"training": {**TRAIN_SETTINGS, "checkpoint_every": 500, **more}}
    words, _ = made(training_section.training_section, changed(run, {"settings": settings}))
    assert f"It was evaluated 3 times, and {kept} kept." in words
    chosen = "The weights are those of the best evaluation on in-domain data, not of the last step."
    assert (chosen in words) == ("patience" in more)
    assert ("falling to zero" in words) == ("patience" not in more)


def test_a_training_from_scratch_is_called_that(run: RunFolder) -> None:
    settings = {"training": {**TRAIN_SETTINGS, "from_scratch": True}}
    words, _ = made(
        training_section.training_section, changed(run, {**run.config, "settings": settings})
    )
    assert words.startswith("A model built like hub/base was trained from random weights for 500")


def test_a_history_without_settings_is_still_told(run: RunFolder) -> None:
    words, _ = made(training_section.training_section, changed(run, {"model": None}))
    assert words.startswith("The model was fine-tuned for 500 steps. It was evaluated 3 times.")


def test_accuracies_of_a_training_are_means_over_named_subsets(run: RunFolder) -> None:
    words, (table,) = made(training_section.training_section, run)
    assert "ID is over all in-domain examples." in words
    assert (
        "OOD is the mean over 4 subsets, each counting the same: so_swap, preposition, "
        "embedded_under_if, embedded_under_verb."
    ) in words
    assert list(table.header) == ["step", "loss (nats)", "ID (all examples)", "OOD (4 subsets)"]
    mean = sum(2 / (3 + late) for late in (1, 2, 3, 4)) / 4
    assert rows(table)[1] == ["200", "0.500", "66.7 %", f"{100 * mean:.1f} %"]


# -- groups of subsets ----------------------------------------------------------------------------


def test_out_of_domain_numbers_say_over_how_many_subsets(run: RunFolder) -> None:
    notes = {tile.label: tile.note for tile in tiles(run)}
    outside = notes["Full model, out-of-domain"]
    assert outside.endswith("] on tiny-ood, all examples of 4 subsets")
    full = (
        run.tables["accuracy"].query("subnetwork == 'full' and subset == 'all'").set_index("role")
    )
    low, high = (100 * full.at["id", f"accuracy_{end}"] for end in ("low", "high"))
    assert notes["Full model, in-domain"] == f"[{low:.1f}, {high:.1f}] on tiny-id"


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
        data_section,
        training_section.training_section,
        search_section.search_section,
    ):
        assert make(old, GALLERY) is None
