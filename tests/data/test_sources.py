"""Sources: files, saved folders and data sets give the same examples; nothing is lost or mixed."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mechcore.data.sources import Source, read_sources, sources_content, sources_name
from mechcore.errors import InputError, MechcoreWarning

ROWS = pd.DataFrame(
    {
        "premise": ["a", "b", "c", "d"],
        "hypothesis": ["e", "f", "g", "h"],
        "label": ["entailment", "neutral", "non-entailment", "entailment"],
        "subcase": ["x", "x", "y", "y"],
    }
)
NAMES = ["neutral", "entailment", "contradiction"]
"""Of a data set, in no order that anybody would guess."""

Save = Callable[..., str]


@pytest.fixture(autouse=True)
def no_cache_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", str(tmp_path / "modules"))


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def save(frame: pd.DataFrame = ROWS, name: str = "data.csv") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_csv(path, index=False)
        return str(path)

    return save


def numbered(labels: list[int], texts: str = "abcdefgh") -> datasets.Dataset:
    features = datasets.Features(
        {
            "premise": datasets.Value("string"),
            "hypothesis": datasets.Value("string"),
            "label": datasets.ClassLabel(names=NAMES),
        }
    )
    columns = {"premise": list(texts[: len(labels)]), "hypothesis": ["z"] * len(labels)}
    return datasets.Dataset.from_dict({**columns, "label": labels}, features=features)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def rows(sources: list[Source], **options: Any) -> list[tuple[str, ...]]:
    return list(read_sources(sources, **options).frame.itertuples(index=False, name=None))


# -- what is chosen -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (
            {"labels": ("entailment", "contradiction")},
            r"data\.csv: no example with label 'contradiction'; labels are entailment, neutral",
        ),
        ({"subsets": ("x", "z", "w")}, r"no example with subset 'z', 'w'; subsets are x, y"),
        ({"subsets": ("x",), "labels": ("non-entailment",)}, "no example with subset 'x'"),
    ],
)
def test_what_is_not_there_is_named(save: Save, chosen: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_sources([Source(path=save(), **chosen)])


def test_a_draw_is_reported(save: Save) -> None:
    source = Source(path=save(), max=2, seed=3)
    with pytest.warns(MechcoreWarning) as caught:
        drawn = rows([source])
    assert [str(warning.message) for warning in caught] == [
        f"examples of {source.place}: 2 of 4 drawn at random, by subset, with seed 3; leave out "
        "max to take all"
    ]
    assert len(drawn) == 2
    assert {row[3] for row in drawn} == {"x", "y"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(rows([replace(source, max=4)])) == 4


cells = st.text("ab é", min_size=1, max_size=3).filter(str.strip)
tables = st.lists(
    st.tuples(cells, cells, st.sampled_from("ENC"), st.sampled_from("xyz")), min_size=1, max_size=6
)


@given(st.lists(tables, min_size=1, max_size=3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_putting_together_keeps_every_row_in_order(
    tmp_path: Path, parts: list[list[tuple[str, ...]]]
) -> None:
    sources = []
    for number, part in enumerate(parts):
        path = tmp_path / f"part{number}.jsonl"
        columns = ("text_a", "text_b", "label", "subset")
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in part]
        path.write_text("\n".join(lines))
        sources.append(Source(path=str(path), subset="one"))
    assert rows(sources) == [(*row[:3], "one") for part in parts for row in part]


@given(tables, st.sets(st.sampled_from("ENC")), st.sets(st.sampled_from("xyz")))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_filters_keep_exactly_their_rows(
    tmp_path: Path, table: list[tuple[str, ...]], labels: set[str], subsets: set[str]
) -> None:
    path = tmp_path / "data.jsonl"
    columns = ("text_a", "text_b", "label", "subset")
    path.write_text("\n".join(json.dumps(dict(zip(columns, r, strict=True))) for r in table))
    source = Source(path=str(path), labels=sorted(labels), subsets=sorted(subsets))
    after_labels = [row for row in table if not labels or row[2] in labels]
    complete = labels <= {row[2] for row in table} and subsets <= {row[3] for row in after_labels}
    if not complete:
        with pytest.raises(InputError, match="no example with"):
            read_sources([source])
    else:
        assert rows([source]) == [r for r in after_labels if not subsets or r[3] in subsets]


# -- several --------------------------------------------------------------------------------------


def test_sources_without_subsets_become_subsets_of_their_own(save: Save) -> None:
    plain = ROWS.drop(columns="subcase")
    sources = [Source(path=save(plain, f"{name}.csv")) for name in ("matched", "mismatched.v2")]
    examples = read_sources([*sources, Source(path=save(ROWS, "hans.csv"))])
    assert examples.name == sources_name(sources) + "+hans" == "matched+mismatched+hans"
    assert examples.subset_names == ["matched", "mismatched", "x", "y"]
    counts = examples.frame["subset"].value_counts().to_dict()
    assert counts == {"matched": 4, "mismatched": 4, "x": 2, "y": 2}
    assert read_sources(sources[:1]).subset_names == ["all"]


def test_subsets_of_one_name_are_put_together_only_when_asked(save: Save) -> None:
    plain = ROWS.drop(columns="subcase")
    paths = [save(plain, f"{folder}/dev.csv") for folder in ("one", "two")]
    with pytest.raises(
        InputError, match=r"two/dev\.csv and .*one/dev\.csv both have a subset 'dev'; name"
    ):
        read_sources([Source(path=path) for path in paths])
    together = read_sources([Source(path=path, subset="dev") for path in paths])
    assert (len(together), together.subset_names) == (8, ["dev"])
    with pytest.raises(InputError, match="both have a subset 'x'"):
        read_sources([Source(path=save(ROWS, f"{name}.csv")) for name in "ab"])


def test_pairs_and_single_texts_do_not_mix_and_nothing_is_no_source(save: Save) -> None:
    single = save(pd.DataFrame({"text": ["a"], "label": ["entailment"]}), "single.csv")
    with pytest.raises(InputError, match="one has pairs of texts, the other single texts"):
        read_sources([Source(path=save()), Source(path=single)])
    with pytest.raises(InputError, match="expected at least one"):
        read_sources([])


# -- saved folders and data sets ------------------------------------------------------------------


def test_saved_folders_have_the_names_of_their_labels(tmp_path: Path) -> None:
    numbered([1, 2, 0]).save_to_disk(str(tmp_path / "one"))
    splits = {"train": numbered([1]), "validation": numbered([1, 2, 0])}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "two"))
    expected = ["entailment", "contradiction", "neutral"]
    one, two = Source(path=tmp_path / "one"), Source(path=tmp_path / "two", split="validation")
    for source, name in ((one, "one"), (two, "two-validation")):
        examples = read_sources([source])
        assert list(examples.frame["label"]) == expected
        assert list(examples.frame["text_a"]) == ["a", "b", "c"]
        assert examples.name == name
    (tmp_path / "a.csv").touch()
    for source, message in (
        (replace(two, split=None), r"two: split is None; expected one of train, validation: name"),
        (replace(one, split="train"), r"one: has no splits, found split 'train'; leave it out"),
        (Source(path=tmp_path), r"cannot be read: .*; expected a file, or a folder saved by"),
        (
            Source(path=tmp_path / "a.csv", split="train"),
            "not a folder, so there is no split 'train'",
        ),
    ):
        with pytest.raises(InputError, match=message):
            read_sources([source])


def test_a_damaged_folder(tmp_path: Path) -> None:
    numbered([1]).save_to_disk(str(tmp_path / "one"))
    next((tmp_path / "one").glob("*.arrow")).write_bytes(b"no arrow")
    with pytest.raises(InputError, match=r"one: cannot be read: "):
        read_sources([Source(path=tmp_path / "one")])


def test_a_folder_laid_out_as_on_the_hub(save: Save, tmp_path: Path) -> None:
    save(ROWS[:1], "glue/mnli/train.csv")
    save(ROWS[1:], "glue/mnli/test.csv")
    card = "---\nconfigs:\n- config_name: mnli\n  data_files:\n" + "".join(
        f"  - split: {split}\n    path: mnli/{split}.csv\n" for split in ("train", "test")
    )
    (tmp_path / "glue" / "README.md").write_text(card + "---\n")
    source = Source(dataset=str(tmp_path / "glue"), config="mnli", split="test")
    assert [row[0] for row in rows([source])] == ["b", "c", "d"]
    assert source.name == "mnli-test"
    with pytest.raises(InputError, match="split is None; expected one of train, test"):
        read_sources([replace(source, split=None)])
    with pytest.raises(InputError, match=r"data set .*mnli, dev.*Unknown split"):
        read_sources([replace(source, split="dev")])
    with pytest.raises(InputError, match=r"data set .*'qqp' not found\. Available: .*mnli"):
        read_sources([replace(source, config="qqp")])


def test_without_a_network_the_files_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'nyu-mll/glue' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    source = Source(dataset="nyu-mll/glue", config="mnli", split="train")
    with pytest.raises(InputError) as caught:
        read_sources([source])
    message = str(caught.value)
    for part in ("nyu-mll/glue (mnli, train)", "Couldn't reach", "no network", "in the cache"):
        assert part in message
    assert message.endswith("or give files instead (path; for a named task, folder)")


# -- what a result depends on ---------------------------------------------------------------------


def content(*sources: Source) -> list[dict]:
    listed = sources_content(sources, digest)
    assert json.loads(json.dumps(listed)) == listed
    return listed


def test_content_follows_the_file_and_not_its_place(save: Save) -> None:
    here, there = (Source(path=save(ROWS, f"{name}.csv")) for name in ("a", "b"))
    assert content(here) == content(there)
    assert content(here) != content(Source(path=save(ROWS[:3], "c.csv")))
    tabs = Path(save()).with_suffix(".tsv")
    tabs.write_bytes(Path(here.path or "").read_bytes())
    assert content(here) != content(Source(path=tabs))
    text = tabs.with_suffix(".txt")
    text.write_bytes(tabs.read_bytes())
    assert content(Source(path=text)) == content(Source(path=tabs))


CHANGES: dict[str, Any] = {
    "columns": {"text_a": "hypothesis"},
    "label_map": {"neutral": "entailment"},
    "labels": ("neutral",),
    "subsets": ("x",),
    "subset": "mine",
    "max": 2,
    "skip_empty": True,
}


def test_content_follows_every_setting_that_changes_examples(save: Save) -> None:
    source = Source(path=save())
    for name, value in CHANGES.items():
        assert content(replace(source, **{name: value})) != content(source), name
    assert content(replace(source, seed=1)) == content(source)
    drawn = replace(source, max=2)  # the seed counts where there is a draw
    assert content(replace(drawn, seed=1)) != content(drawn)
    place = {"path", "dataset", "config", "split", "revision", "seed"}
    assert set(CHANGES) | place == set(asdict(source))


def test_names_of_several_sources_count_as_they_name_subsets(save: Save) -> None:
    plain = ROWS.drop(columns="subcase")
    a, b, c = (Source(path=save(plain, f"{name}.csv")) for name in "abc")
    assert content(a) == content(b)
    assert content(a, b) != content(a, c)
    named = [replace(source, subset="s") for source in (a, b, c)]
    assert content(*named[:2]) == content(named[0], named[2])


def test_content_of_a_saved_folder_is_that_of_its_examples(tmp_path: Path) -> None:
    numbered([1, 2]).save_to_disk(str(tmp_path / "one"))
    source = Source(path=tmp_path / "one")
    before = content(source)
    (tmp_path / "one" / "notes.txt").write_text("mine")
    assert content(source) == before
    (tmp_path / "one").rename(tmp_path / "two")
    assert content(Source(path=tmp_path / "two")) == before
    numbered([1, 1]).save_to_disk(str(tmp_path / "three"))
    assert content(Source(path=tmp_path / "three")) != before


def test_content_of_a_data_set_is_that_of_its_examples(save: Save, tmp_path: Path) -> None:
    save(ROWS, "hub/train.csv")
    source = Source(dataset=str(tmp_path / "hub"))
    before = content(source)
    save(ROWS, "copy/train.csv")
    assert content(replace(source, dataset=str(tmp_path / "copy"))) == before
    assert content(replace(source, labels=("neutral",))) != before
    save(ROWS.assign(premise=["A", "b", "c", "d"]), "other/train.csv")
    assert content(replace(source, dataset=str(tmp_path / "other"))) != before
    save(ROWS[:3], "hub/train.csv")
    assert content(source) != before, "the folder was read again"


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "path is None and dataset None; expected exactly one"),
        ({"path": "a", "dataset": "b"}, "expected exactly one"),
        ({"path": "a", "revision": "main"}, "source a: config and revision belong to a dataset"),
        ({"path": "a", "labels": "entailment"}, "labels is 'entailment'; expected a list"),
        (
            {"path": "a", "columns": {"text": "x"}},
            "columns: unknown role 'text'; roles are text_a, text_b",
        ),
        ({"path": "a", "max": 0}, "max is 0; expected 1 or more"),
        ({"path": "a", "seed": -1}, "seed is -1; expected one from 0"),
    ],
)
def test_settings_that_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Source(**given)


def test_labels_that_are_not_given_are_left_out_with_their_number(tmp_path: Path) -> None:
    numbered([1, -1, -1, 0]).save_to_disk(str(tmp_path / "part"))
    with pytest.warns(MechcoreWarning, match=r"skipped 2 of 4 examples without a label"):
        read = rows([Source(path=tmp_path / "part")])
    assert [row[0] for row in read] == ["a", "d"]
    assert len(rows([Source(path=tmp_path / "part")], labelled=False)) == 4
    numbered([-1, -1]).save_to_disk(str(tmp_path / "none"))
    with pytest.warns(MechcoreWarning), pytest.raises(InputError, match="no labelled example"):
        read_sources([Source(path=tmp_path / "none")])
