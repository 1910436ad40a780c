"""The sections on data, training, groups of subsets and the search say what their tables say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from made_up_run import TRAIN_SETTINGS, World, write_run

from mechcore.report import (
    accuracy_section,
    size_section,
    smallest_section,
    training_section,
)
from mechcore.report.blocks import Command, Gallery, Paragraph, Picture, Section, Table
from mechcore.report.data_section import data_section, most_frequent
from mechcore.report.run_folder import RunFolder, read_run
from mechcore.report.stability_section import stability_section
from mechcore.report.summary import findings, tiles
from mechcore.wording import SPACE

GALLERY: Any = SimpleNamespace(add=lambda _, *words, fold="": Picture(*words, "", 1, 1, fold=fold))


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (accuracy_section.figures, "accuracy_by_subset"),
        (size_section, "effective_sizes"),
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


def test_the_majority_stands_beside_the_accuracy(run: RunFolder) -> None:
    _, (table, *_) = made(accuracy_section.accuracy_section, run)
    column = list(table.header).index("most frequent label")
    assert [row[column] for row in rows(table)] == 5 * ["100.0 %"] + ["50.0 %"]
    assert any(
        "50.0 % of tiny-id (in-domain: entailment) and 100.0 % of tiny-ood" in t for t in told(run)
    )


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


# -- runs without any of it -----------------------------------------------------------------------


def test_runs_of_older_versions_have_none_of_these_sections(tmp_path: Path) -> None:
    old = read_run(write_run(tmp_path / "old", World(n_layers=1, n_heads=2, core=())))
    for make in (
        data_section,
        training_section.training_section,
        size_section.size_section,
    ):
        assert make(old, GALLERY) is None
    _, tables = made(accuracy_section.accuracy_section, old)
    assert [table.header[3] for table in tables] == ["full model", "full model"]
