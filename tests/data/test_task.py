"""Tasks: from Python, from YAML, and by name; errors name the file and the place in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mechcore.data import task as module
from mechcore.data.sources import Source, read_sources
from mechcore.data.task import TASKS, Task, find_task, read_task
from mechcore.errors import InputError

YAML = """
about: Mine.
classes: [no, yes]
train: train.csv
id:
  path: sub/dev.csv
  label_map: {0: no, 1: yes}
ood:
  - path: ${DATA}/hard.tsv
    labels: [non-yes]
    max: 10
  - dataset: someone/something
    config: plain
    split: test
    subset: hub
groups:
  both: [hard, hub]
"""


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.TASKS, "_added", {})


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def made(**changes: Any) -> Task:
    source = (Source(path="x.csv"),)
    settings: dict[str, Any] = {"name": "t", "train": source, "id": source, "ood": source}
    return Task(**{**settings, **changes})


def test_a_file_is_read_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", "/data/of mine")
    found = find_task(written(tmp_path, YAML))
    assert found == Task(
        name="mine",
        about="Mine.",
        classes=("no", "yes"),
        train=(Source(path=str(tmp_path / "train.csv")),),
        id=(Source(path=str(tmp_path / "sub/dev.csv"), label_map={"0": "no", "1": "yes"}),),
        ood=(
            Source(path="/data/of mine/hard.tsv", labels=("non-yes",), max=10),
            Source(dataset="someone/something", config="plain", split="test", subset="hub"),
        ),
        groups={"both": ("hard", "hub")},
    )
    assert read_task(written(tmp_path, f"name: other\n{YAML}", "x.yml")).name == "other"


def test_a_data_set_in_a_folder_begins_at_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, label in (("tasks", "mine"), ("elsewhere", "theirs")):
        (tmp_path / place / "rows").mkdir(parents=True)
        (tmp_path / place / "rows" / "test.csv").write_text(f"text,label\na,{label}\n")
    text = "".join(f"{split}: {{dataset: rows, split: test}}\n" for split in ("train", "id", "ood"))
    path = written(tmp_path / "tasks", text)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read_sources(find_task(path).id).label_names == ["mine"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("train: train.csv\n=>", ": no train; expected a path, or the settings of sources"),
        ("train: train.csv=>train: []", r"train is \(\); expected at least one source"),
        ("train: train.csv=>train: 5", "train.0: found 5"),
        ("about: Mine.=>abuot: Mine.", r"abuot: no such setting; expected name, train, id, ood"),
        ("max: 10=>most: 10", r"ood\.0\.most: no such setting; expected path, dataset"),
        ("max: 10=>max: ten", r"ood\.0\.max: found 'ten'; expected a valid integer"),
        ("max: 10=>max: 0", r"ood\.0: source: max is 0; expected 1 or more"),
        ("config: plain=>path: x.csv", r"ood\.1: source: path is '.*x\.csv' and dataset"),
        ("${DATA}=>${NOWHERE}", r"ood: path '\$\{NOWHERE\}/hard.tsv': the variable NOWHERE is not"),
        ("train.csv=>~nobody-at-all/x.csv", "train: path '~nobody-at-all/x.csv': "),
        ("[no, yes]=>[no, No]", "task mine: classes: found no, No; expected every name once"),
        ("[hard, hub]=>[]", "group 'both' is empty"),
        ("[hard, hub]=>[hub, hub]", "group 'both': found hub, hub; expected every name once"),
        ("[hard, hub]=>hub", r"groups\.both: found 'hub'"),
        (
            "both: [=>ID: [",
            "a group of out-of-domain subsets is named 'ID', as the mean",
        ),
        ("both: [=>mixed: [", "is named 'mixed', as the mean of ID and OOD is in tables; rename"),
        ("both: [=>all: [", "is named 'all', as all examples together are in tables; rename"),
        ("about: Mine.=>name: ' '", "name is ' '; expected a text"),
    ],
)
def test_errors_name_the_file_and_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, message: str
) -> None:
    monkeypatch.setenv("DATA", "data")
    monkeypatch.delenv("NOWHERE", raising=False)
    old, new = changed.split("=>")
    assert old in YAML
    path = written(tmp_path, YAML.replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        read_task(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.yaml", "[1]", "found list; expected settings by name"),
        ("x.yaml", "a: [", "invalid YAML"),
        ("x.toml", "a = 1", "expected a file that ends in .yaml, .yml"),
    ],
)
def test_other_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_task(written(tmp_path, text, name))


def test_a_file_says_itself_where_its_data_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leave the folder out"):
        find_task(written(tmp_path, YAML), tmp_path)


def test_tasks_of_ones_own_are_found_by_name(tmp_path: Path) -> None:
    seen: list[Path | None] = []

    def make(folder: Path | None) -> Task:
        seen.append(folder)
        return made(name="mine")

    TASKS.register("mine")(make)
    assert find_task("mine") == find_task("mine", str(tmp_path)) == made(name="mine")
    assert seen == [None, tmp_path]
    assert sorted(TASKS) == ["mine", "mnli-hans", "qqp-paws"]
    TASKS.register("mine")(lambda folder: made(name="newer"))  # a cell is run again
    assert find_task("mine").name == "newer"
    with pytest.raises(InputError, match="nowhere is not a folder"):
        find_task("mine", tmp_path / "nowhere")


def test_an_unknown_task_names_those_there_are() -> None:
    with pytest.raises(InputError, match=r"'mnli': no such task; expected mnli-hans, .*\.yaml"):
        find_task("mnli")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": ()}, r"task t: train is \(\)"),
        ({"ood": "x.csv"}, "task t: ood is .*; expected at least one source"),
        ({"name": ""}, "name is ''"),
        ({"classes": "yes"}, "classes: found 'yes'; expected a list"),
        ({"classes": ("not x", "not-X")}, "expected every name once"),
    ],
)
def test_tasks_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        made(**changes)
