"""The sections on accuracy and on subnetworks say what their tables say, and the summary, too."""

from pathlib import Path

import pandas as pd
import pytest
from analyses.shown import drawings_of, headlines_of
from made_up_run import World, write_run
from pages import rows_of, tables_of, with_tables, words_of

from mechcore.analyses.accuracy import Accuracy
from mechcore.report import figures
from mechcore.report.blocks import Section
from mechcore.report.run_folder import RunFolder, read_run
from mechcore.wording import SPACE


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[pd.DataFrame]:
    """What is drawn, without drawing it."""
    tables: list[pd.DataFrame] = []
    monkeypatch.setattr(figures, "accuracy_by_subset", lambda table, _: tables.append(table))
    return tables


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    groups = {"main text": ("so_swap", "preposition"), "rare": ("so_swap", "absent")}
    world = World(balance=True, groups=groups)
    return read_run(write_run(tmp_path_factory.mktemp("accuracy") / "run", world))


def sections(run: RunFolder) -> tuple[Section, Section]:
    accuracy, subnetworks = Accuracy.sections(run)
    return accuracy, subnetworks


def headlines(run: RunFolder) -> str:
    return " ".join(headlines_of(Accuracy, run))


def test_accuracies_are_those_of_the_table_beside_the_majority(run: RunFolder) -> None:
    section, _ = sections(run)
    accuracy, margin, _ = tables_of(section.blocks)
    header = ["data", "subset", "n", "most frequent label", "full model"]
    assert list(accuracy.header) == [*header, f"at 50{SPACE}%", f"at 70{SPACE}%"]
    assert list(margin.header) == [name for name in accuracy.header if name != header[3]]
    assert (accuracy.folded, margin.folded) == (False, True)
    place = run.tables["accuracy"].query("split == 'ood' and subset == 'so_swap'")
    full = place[place["subnetwork"] == "full"].iloc[0]
    half = place[place["target_sparsity"] == 0.5]
    low, high = 100 * half["accuracy"].min(), 100 * half["accuracy"].max()
    ends = f"{100 * full.accuracy_low:.1f}, {100 * full.accuracy_high:.1f}"
    cells = [f"{100 * full.accuracy:.1f} % [{ends}]", f"{low:.1f}\u2013{high:.1f} %"]
    name = ["tiny-ood (out-of-domain)", "so_swap", "500"]
    assert rows_of(accuracy)[1][:6] == [*name, "100.0 %", *cells]
    low, high = half["margin"].min(), half["margin"].max()
    cells = [f"{full.margin:.2f}", f"{low:.2f} to {high:.2f}"]
    assert [cell.replace("\u2212", "-") for cell in rows_of(margin)[1][:5]] == [*name, *cells]
    assert [row[1] for row in rows_of(accuracy)][::5] == ["all", "all"]  # out of domain comes first
    assert [row[3] for row in rows_of(accuracy)] == 5 * ["100.0 %"] + ["50.0 %"]
    unknown, _ = sections(with_tables(run, data=None))
    assert [table.header[3] for table in tables_of(unknown.blocks)[:2]] == ["full model"] * 2


def test_in_domain_subsets_are_drawn_apart(run: RunFolder, drawn: list[pd.DataFrame]) -> None:
    accuracy = run.accuracy
    assert accuracy is not None
    inside = accuracy[accuracy["split"] == "id"].assign(subset="fiction")
    with_subsets = pd.concat([inside, run.tables["accuracy"]], ignore_index=True)
    section, _ = sections(with_tables(run, accuracy=with_subsets))
    pictures = drawings_of(section.blocks)
    folds = ["", "Accuracy on subsets of tiny-id (in-domain)"]
    assert [picture.fold for picture in pictures] == folds
    assert len({picture.name for picture in pictures}) == 2
    pd.testing.assert_frame_equal(drawn[0], accuracy.set_index(drawn[0].index))
    pd.testing.assert_frame_equal(drawn[1], inside.set_index(drawn[1].index))
    assert [table.folded for table in tables_of(section.blocks)] == [False, True, False]
    assert "fiction" in {row[1] for row in rows_of(tables_of(section.blocks)[0])}


def test_groups_have_means_of_the_full_model_and_over_subnetworks(run: RunFolder) -> None:
    (*_, table) = tables_of(sections(run)[0].blocks)
    accuracy = run.tables["accuracy"]
    part = accuracy[accuracy["subset"].isin(["so_swap", "preposition"])]
    means = 100 * part.groupby("subnetwork")["accuracy"].mean()
    pruned = means[[name for name in means.index if name.startswith("s0.50")]]
    cells = {row[0]: row[1:] for row in rows_of(table)}
    assert cells["main text"][:2] == [
        f"{means['full']:.1f} %",
        f"{pruned.mean():.1f} % ({pruned.min():.1f}\u2013{pruned.max():.1f} %)",
    ]
    assert cells["main text"][-2:] == ["2", "so_swap, preposition"]
    assert cells["ID"][-1] == "all examples"
    assert cells["rare"] == ["n/a", "n/a", "n/a", "2", "so_swap, absent"]  # which lacks a subset
    text = headlines(run)
    assert text.startswith("Macro-averaged over subsets, the full model's accuracy is ")
    assert (
        "on main text (2 subsets: so_swap, preposition). There is no mean for rare (no example "
        "of absent)."
    ) in text


def test_spread_of_the_subnetworks_is_that_of_the_table(run: RunFolder) -> None:
    accuracy = run.tables["accuracy"].query("subset == 'all'")
    for target_sparsity, part in accuracy.groupby("target_sparsity"):
        values = {split: 100 * some.accuracy for split, some in part.groupby("split")}
        inside, outside = values["id"], values["ood"]
        assert (
            f"target sparsity of {100 * target_sparsity:.0f} % (3 seeds) reach an accuracy of "
            f"{outside.min():.1f}\u2013{outside.max():.1f} % out-of-domain "
            f"(tiny-ood, a spread of {outside.max() - outside.min():.1f} points) and "
            f"{inside.min():.1f}\u2013{inside.max():.1f} % in-domain "
            f"(tiny-id, a spread of {inside.max() - inside.min():.1f} points)."
        ) in headlines(run)
    accuracy = run.tables["accuracy"]
    seed = accuracy["seed"].fillna(0).astype(float)
    balanced = (0.5 + seed / 1000).mask(accuracy["split"] == "id")  # one label only in domain
    both = accuracy.assign(balanced_accuracy=balanced, information=balanced - seed / 2000)
    text = headlines(with_tables(run, accuracy=both))
    assert "points, 0.2 points in balanced accuracy, 0.1 points in information)" in text
    assert "perhaps only a shifted threshold: a label has too few examples)" in text


def test_subnetworks_are_listed_and_every_table_of_theirs_offered(run: RunFolder) -> None:
    _, section = sections(run)
    first, kept = tables_of(section.blocks)
    subnetworks = run.tables["subnetworks"]
    assert [row[0] for row in first.rows] == subnetworks["subnetwork"].tolist()
    assert [row[1] for row in kept.rows] == subnetworks["kept"].tolist()
    assert (first.folded, kept.folded) == (False, True)
    files = ["subnetworks.csv"]
    assert (section.id, list(section.files)) == ("subnetworks", files)


def failed(*target_sparsities: float) -> pd.DataFrame:
    rows = [(f"s{t:.2f}-seed9", 9, f"sparsity {t / 2}", t) for t in target_sparsities]
    return pd.DataFrame(rows, columns=["subnetwork", "seed", "reason", "target_sparsity"])


def test_masks_that_are_missing_are_named(run: RunFolder) -> None:
    _, one = sections(with_tables(run, missing_masks=failed(0.5)))
    said = "Training failed for {}; this report covers the others."
    assert words_of(one.blocks) == said.format("1 of 7 masks (s0.50-seed9)")
    _, two = sections(with_tables(run, missing_masks=failed(0.5, 0.9)))
    gone = " No mask of target sparsity 90 % is left."
    names = "2 of 8 masks (s0.50-seed9 and s0.90-seed9)"
    assert words_of(two.blocks) == said.format(names) + gone
    (missing,) = (t for t in tables_of(two.blocks) if t.caption.startswith("Masks that are mis"))
    assert rows_of(missing) == [["s0.50-seed9", "sparsity 0.25"], ["s0.90-seed9", "sparsity 0.45"]]
    assert "missing_masks.csv" in two.files
    none = with_tables(run, missing_masks=failed(0.5), subnetworks=run.tables["subnetworks"][:0])
    words = words_of(sections(none)[1].blocks)
    end = "this report covers only the full model."
    assert words.startswith(f"Training failed for 1 of 1 mask (s0.50-seed9); {end}")
    assert "Not run" not in words


def test_a_subnetwork_that_stands_out_is_named(run: RunFolder) -> None:
    subnetworks = run.tables["subnetworks"].copy()
    subnetworks.loc[0, "id_accuracy"] = 0.2
    run = with_tables(run, subnetworks=subnetworks)
    sentence = "s0.50-seed0 stands out: it is right on 20.0 % of in-domain examples"
    assert sentence in headlines(run)
    assert sentence in words_of(sections(run)[1].blocks)


def test_what_a_run_lacks_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for section in sections(read_run(tmp_path)):
        assert words_of(section.blocks).startswith("Not run: ")
        assert (len(section.blocks), section.files) == (1, [])


def test_out_of_domain_numbers_say_over_how_many_subsets(run: RunFolder) -> None:
    notes = {tile.label: tile.note for tile in Accuracy.tiles(run)}
    outside = notes["Full model, out-of-domain"]
    assert outside.endswith("] on tiny-ood, all examples of 4 subsets")
    full = run.tables["accuracy"].query(
        "subnetwork == 'full' and subset == 'all' and split == 'id'"
    )
    low, high = (100 * full[f"accuracy_{end}"].item() for end in ("low", "high"))
    assert notes["Full model, in-domain"] == f"[{low:.1f}, {high:.1f}] on tiny-id"
