"""The section on the data says what its table says."""

from dataclasses import replace

import pandas as pd
import pytest
from analyses.shown import headlines_of
from pages import rows_of, tables_of, with_tables, words_of

from mechcore.analyses.data import Describe
from mechcore.report.groups import most_frequent
from mechcore.report.run_folder import RunFolder


def data_of(labels: dict[tuple[str, str], int], split: str = "ood") -> pd.DataFrame:
    """Counts by subset and label."""
    rows = [(subset, label, n) for (subset, label), n in labels.items()]
    table = pd.DataFrame(rows, columns=["subset", "label", "n"])
    return table.assign(data="d", split=split, share=0.0)


def words(run: RunFolder) -> str:
    return words_of(Describe.blocks(run))


def test_accuracies_are_to_be_read_beside_the_majority(run: RunFolder) -> None:
    table = data_of({("a", "yes"): 10, ("a", "no"): 5, ("b", "no"): 25})
    assert most_frequent(table, "ood", "d") == ("no", 0.75)
    assert most_frequent(table, "ood", "d", "a") == ("yes", pytest.approx(2 / 3))
    assert most_frequent(table, "ood", "d", "unknown") is None
    assert most_frequent(data_of({("all", ""): 5}), "ood", "d") is None
    (sentence,) = headlines_of(Describe, run)
    assert sentence == (
        "Majority baseline: 50.0 % on tiny-id (in-domain: entailment) and 100.0 % on tiny-ood "
        "(out-of-domain: non-entailment)."
    )
    assert sentence in words(run)
    two = data_of({("all", "yes"): 4, ("all", "no"): 4})
    (sentence,) = headlines_of(Describe, with_tables(run, data=two))
    assert "50.0 % on d (out-of-domain: yes or no)." in sentence


def test_data_are_shown_with_what_was_used_cut_and_how_labels_are_balanced(run: RunFolder) -> None:
    (section,) = Describe.sections(run)
    assert (section.id, section.title, section.files) == ("data", "Data", ["data.csv"])
    assert "12 of 20,000 texts of tiny-train (training) were cut at 128 tokens." in words(run)
    assert "No text was cut" not in words(run)
    overview, subsets = tables_of(section.blocks)
    train, inside, outside = rows_of(overview)
    assert train[:5] == ["tiny-train (training)", "2,000", "30,000", "12", "\u2013"]
    labels = "entailment 1,000 (50.0 %), neutral 600 (30.0 %), contradiction 400 (20.0 %)"
    assert train[5:] == [labels]
    assert (inside[0], outside[0]) == ("tiny-id (in-domain)", "tiny-ood (out-of-domain)")
    assert outside[4] == "4"
    of_subset = [outside[0], "so_swap", "500", "non-entailment 500 (100.0 %)"]
    assert rows_of(subsets)[0] == of_subset
    assert len(subsets.rows) == 4


def test_many_labels_and_data_without_subsets_or_labels(run: RunFolder) -> None:
    table = data_of({("all", name): 6 - i for i, name in enumerate("abcdef")})
    (overview,) = tables_of(Describe.blocks(with_tables(run, data=table)))
    assert rows_of(overview)[0][-1].endswith("d 3 (14.3 %); 2 more in data.csv")
    option = "name it with --columns subset=NAME"
    assert option in words(with_tables(run, data=data_of({("all", "yes"): 7})))
    assert option not in words(run)
    unlabelled = with_tables(run, data=data_of({("all", ""): 7}, "train"))
    (overview,) = tables_of(Describe.blocks(unlabelled))
    assert rows_of(overview)[0][-1] == "without labels 7 (100.0 %)"
    assert not list(Describe.headlines(unlabelled))


def test_that_nothing_was_cut_or_described(run: RunFolder) -> None:
    entries = {split: {"n": 5, "n_cut": 0} for split in ("train", "id", "ood")}
    assert "No text was cut." in words(replace(run, config={"data": entries}))
    del entries["ood"]["n_cut"]
    assert "cut" not in words(replace(run, config={"data": entries}))
    for data in (None, run.tables["data"][:0]):
        without = with_tables(run, data=data)
        assert not [*Describe.sections(without), *Describe.headlines(without)]
