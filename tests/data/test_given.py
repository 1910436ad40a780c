"""Every form of the same examples gives the same examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest

from mechcore.data.examples import Examples
from mechcore.data.given import given_examples
from mechcore.data.sources import Source
from mechcore.data.task import TASKS, Task
from mechcore.errors import InputError

ROWS = [
    {"premise": "a b", "hypothesis": "c", "label": 1, "kind": "x"},
    {"premise": "d", "hypothesis": "e f", "label": 0, "kind": "y"},
]
COLUMNS = {"subset": "kind"}
NAMES = {"0": "entailment", "1": "neutral"}
EXPECTED = pd.DataFrame(
    {
        "text_a": ["a b", "d"],
        "text_b": ["c", "e f"],
        "label": ["neutral", "entailment"],
        "subset": ["x", "y"],
    }
)


def saved(path: Path) -> str:
    pd.DataFrame(ROWS).to_csv(path, index=False)
    return str(path)


FORMS: dict[str, Callable[[Path], Any]] = {
    "frame": lambda folder: pd.DataFrame(ROWS),
    "frame with another index": lambda folder: pd.DataFrame(ROWS, index=[7, 7]),
    "dataset": lambda folder: datasets.Dataset.from_list(ROWS),
    "rows": lambda folder: ROWS,
    "file": lambda folder: saved(folder / "rows.csv"),
    "path": lambda folder: Path(saved(folder / "rows.csv")),
    "source": lambda folder: Source(path=saved(folder / "rows.csv")),
    "sources": lambda folder: [Source(path=saved(folder / "rows.csv"))],
}


def given_of(data: Any, split: Any = "id", **options: Any) -> Examples:
    examples = given_examples(data, split, **options)
    assert examples is not None
    return examples


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, tmp_path: Path) -> None:
    examples = given_of(FORMS[form](tmp_path), "id", columns=COLUMNS, label_map=NAMES)
    pd.testing.assert_frame_equal(examples.frame, EXPECTED, check_dtype=False)


def test_examples_keep_their_name_and_get_the_meanings_of_their_labels() -> None:
    given = Examples("mine", EXPECTED.assign(label=["1", "0"]))
    examples = given_of(given, "id", label_map=NAMES)
    assert examples.name == "mine"
    pd.testing.assert_frame_equal(examples.frame, EXPECTED, check_dtype=False)


def test_a_data_set_that_knows_the_names_of_its_labels() -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["good", "bad"])}
    )
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, -1]}, features)
    with pytest.warns(UserWarning, match=r"skipped 1 of 3 examples without a label"):
        examples = given_of(data, "ood")
    assert examples.frame["label"].tolist() == ["bad", "good"]
    assert examples.name == "ood"
    with pytest.warns(UserWarning, match="skipped 1 of 3"):  # numbers of other files
        examples = given_of(data, "ood", label_map={"0": "bad", "1": "good"})
    assert examples.frame["label"].tolist() == ["bad", "good"]


def test_a_stream_that_knows_nothing_of_its_columns() -> None:
    stream = datasets.IterableDataset.from_generator(lambda: iter(ROWS))
    assert stream.features is None
    examples = given_of(stream, "id", columns=COLUMNS, label_map=NAMES)
    pd.testing.assert_frame_equal(examples.frame, EXPECTED, check_dtype=False)


@pytest.mark.parametrize("kind", [str, int])
def test_columns_and_labels_that_are_numbers(kind: Callable[[str], Any]) -> None:
    data = pd.DataFrame([["a b", "c", 1], ["d", "e f", 0]])
    columns: Any = {"text_a": kind("0"), "text_b": kind("1"), "label": kind("2")}
    names: Any = {kind(label): name for label, name in NAMES.items()}
    examples = given_of(data, "id", columns=columns, label_map=names)
    expected = EXPECTED.assign(subset="all")
    pd.testing.assert_frame_equal(examples.frame, expected, check_dtype=False)
    again = given_of(Examples("id", expected.assign(label=["1", "0"])), "id", label_map=names)
    pd.testing.assert_frame_equal(again.frame, expected, check_dtype=False)


def test_the_role_says_which_examples_of_a_task(tmp_path: Path) -> None:
    files = {split: tmp_path / f"{split}.csv" for split in ("train", "id", "ood")}
    for split, path in files.items():
        pd.DataFrame({"text": [split], "label": ["yes"]}).to_csv(path, index=False)
    sources = {split: Source(path=str(path)) for split, path in files.items()}
    TASKS.register("mine")(lambda folder: Task("mine", **sources))  # type: ignore[arg-type]
    try:
        for split in files:
            examples = given_of("mine", split)
            assert examples.frame["text_a"].tolist() == [split]
    finally:
        TASKS.remove("mine")


def test_a_name_of_both_a_task_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnli-hans").mkdir()
    with pytest.raises(InputError, match=r"mnli-hans: is a task and a file; write ./mnli-hans"):
        given_examples("mnli-hans", "id")


def test_texts_are_examples_where_labels_do_not_matter() -> None:
    examples = given_of(["a", ("b", "c")], "id", labelled=False)
    assert examples.frame[["text_a", "text_b"]].to_numpy().tolist() == [["a", ""], ["b", "c"]]
    with pytest.raises(InputError, match="found texts without labels"):
        given_examples(["a", "b"], "id")


def test_several_splits_are_an_error() -> None:
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})
    with pytest.raises(InputError, match=r"DatasetDict with the splits train; .* data\['train'\]"):
        given_examples(splits, "id")


@pytest.mark.parametrize("data", [[{"input_ids": [[1]]}], {"input_ids": [[1]]}, 5, [], iter([])])
def test_other_things_are_no_examples(data: Any) -> None:
    assert given_examples(data, "id") is None
