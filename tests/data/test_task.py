"""Tasks: from Python, from YAML, and by name; errors name the file and the place in it."""

from __future__ import annotations

import gzip
import itertools
import warnings
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest

from mechcore.data import task as module
from mechcore.data.labels import LabelMap
from mechcore.data.sources import Source, read_sources
from mechcore.data.task import OFFICIAL, TASKS, Task, find_task, read_task
from mechcore.errors import InputError, MechcoreWarning

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
    task = find_task(written(tmp_path, YAML))
    assert task == Task(
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


# -- The named tasks find official files wherever they usually are, and say what is missing


GROUPS = find_task("mnli-hans").groups
ENTAILED, NON_ENTAILED = GROUPS["OOD-E"], GROUPS["OOD"]
HEURISTICS = {"l": "lexical_overlap", "s": "subsequence", "c": "constituent"}


def put(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())


def mnli(*texts: str) -> str:
    lines = [f"{text}\tthey say\tneutral" for text in texts]
    return "\n".join(["sentence1\tsentence2\tgold_label", *lines]) + "\n"


def hans(prefixed: bool = False, dashes: bool = False) -> str:
    rows = []
    for subcase in (*ENTAILED, *NON_ENTAILED):
        label = "entailment" if subcase in ENTAILED else "non-entailment"
        name = f"{HEURISTICS[subcase[0]]}_{subcase}" if prefixed else subcase
        name = name.replace("/", "-") if dashes else name
        rows += [f"{label}\tpremise {i}\thypothesis\t{name}" for i in range(2)]
    return "\n".join(["gold_label\tsentence1\tsentence2\tsubcase", *rows]) + "\n"


QQP = "id\tquestion1\tquestion2\tis_duplicate\n1\ta b\tb a\t0\n2\tc\tc d\t1\n3\te\t\t1\n"
PAWS = "id\tsentence1\tsentence2\tlabel\n1\tf g\tg f\t0\n2\th i\ti h\t1\n3\tj k\tk j\t0\n"


def mnli_folder(folder: Path) -> Path:
    put(folder, "multinli_1.0/multinli_1.0_train.txt", mnli("train"))
    put(folder, "MNLI/dev_matched.tsv", mnli("matched"))
    put(folder, "mnli_dev_mismatched.tsv.gz", mnli("mis", "matched"))
    put(folder, "hans/heuristics_evaluation_set.txt", hans())
    return folder


def qqp_folder(folder: Path) -> Path:
    put(folder, "QQP/train.tsv", QQP)
    put(folder, "qqp_dev.tsv.gz", QQP)
    put(folder, "paws_qqp/dev_and_test.tsv", PAWS)
    return folder


@pytest.mark.parametrize(("prefixed", "dashes"), [(False, False), (True, False), (True, True)])
def test_mnli_and_hans(tmp_path: Path, prefixed: bool, dashes: bool) -> None:
    folder = mnli_folder(tmp_path)
    put(folder, "hans/heuristics_evaluation_set.txt", hans(prefixed, dashes))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = find_task("mnli-hans", folder)
    assert list(read_sources(task.train).frame["text_a"]) == ["train"]
    test = read_sources(task.id)
    assert list(test.frame["text_a"]) == ["matched", "mis", "matched"]
    assert list(test.frame["subset"]) == ["matched", "mismatched", "mismatched"]
    ood = read_sources(task.ood)
    assert sorted(ood.label_names) == ["entailment", "non-entailment"]
    assert len(ood) == 60
    halves = task.groups["OOD"], task.groups["OOD-E"]
    assert sorted(itertools.chain(*halves)) == sorted(ood.subset_names)
    for half, label in zip(halves, ("non-entailment", "entailment"), strict=True):
        part = ood.frame[ood.frame["subset"].isin(half)]
        assert (len(half), len(part), set(part["label"])) == (15, 30, {label})
    ends = ["object_swap", "ln_preposition", "cn_embedded_under_if", "cn_embedded_under_verb"]
    for name, end in zip(task.groups["main text"], ends, strict=True):
        assert name.endswith(end)
        assert name in ood.subset_names
    assert task.classes == ("entailment", "neutral", "contradiction")
    assert LabelMap.between(ood.label_names, task.classes).correct["non-entailment"] == {1, 2}


def test_hans_without_a_subcase(tmp_path: Path) -> None:
    folder = mnli_folder(tmp_path)
    part = [line for line in hans().splitlines() if "\tcn_adverb" not in line]
    put(folder, "hans/heuristics_evaluation_set.txt", "\n".join(part))
    with pytest.raises(InputError, match="no subcase cn_adverb; expected HANS"):
        find_task("mnli-hans", folder)


def test_qqp_and_paws(tmp_path: Path) -> None:
    task = find_task("qqp-paws", qqp_folder(tmp_path))
    for split in (task.train, task.id):
        with pytest.warns(MechcoreWarning, match="skipped 1 of 3 examples that lack a text"):
            frame = read_sources(split).frame
        assert list(frame["label"]) == ["not_duplicate", "duplicate"]
    ood = read_sources(task.ood).frame
    assert sorted(ood["text_a"]) == ["f g", "h i", "j k"]
    assert list(ood["label"]) == list(ood["subset"])
    assert task.classes == ("not_duplicate", "duplicate")


def train_path(folder: Path) -> str:
    return str(Path(find_task("mnli-hans", folder).train[0].path or "").relative_to(folder))


def test_the_best_file_is_taken(tmp_path: Path) -> None:
    folder = mnli_folder(tmp_path)
    (folder / "multinli_1.0/multinli_1.0_train.txt").unlink()
    for name in ("mnli_train_29k.tsv.gz", "MNLI/train.tsv", "multinli_1.0_train.jsonl"):
        put(folder, name, mnli("train"))
        assert train_path(folder) == name


def test_two_files_that_serve_equally_well(tmp_path: Path) -> None:
    folder = mnli_folder(tmp_path)
    put(folder, "multinli_1.0_train.txt", mnli("train"))
    with pytest.raises(InputError) as caught:
        find_task("mnli-hans", folder)
    both = "multinli_1.0/multinli_1.0_train.txt and multinli_1.0_train.txt both are MNLI training"
    assert both in str(caught.value)


def test_saved_folders_are_found(tmp_path: Path) -> None:
    folder = mnli_folder(tmp_path)
    for name in ("multinli_1.0/multinli_1.0_train.txt", "MNLI/dev_matched.tsv"):
        (folder / name).unlink()
    columns = {"premise": ["a"], "hypothesis": ["b"], "label": [2]}
    names = datasets.ClassLabel(names=["entailment", "neutral", "contradiction"])
    part = datasets.Dataset.from_dict(columns).cast_column("label", names)
    splits = {"train": part, "validation_matched": part}
    datasets.DatasetDict(splits).save_to_disk(str(folder / "mnli"))
    task = find_task("mnli-hans", folder)
    assert task.train[0].split == "train"
    assert list(read_sources(task.train).frame["label"]) == ["contradiction"]
    assert read_sources(task.id).subset_names == ["matched", "mismatched"]


def test_matched_examples_alone_are_reported(tmp_path: Path) -> None:
    folder = mnli_folder(tmp_path)
    (folder / "mnli_dev_mismatched.tsv.gz").unlink()
    with pytest.warns(MechcoreWarning, match="no MNLI mismatched validation examples") as seen:
        task = find_task("mnli-hans", folder)
    assert seen[0].filename == __file__
    assert read_sources(task.id).subset_names == ["matched"]


def test_everything_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        find_task("mnli-hans", tmp_path)
    message = str(caught.value)
    for part in ("MNLI training examples", "MNLI matched validation examples", "HANS evaluation"):
        assert f"no {part}" in message
    for key in (("mnli", "train"), ("jhu-cogsci/hans", "validation")):
        assert OFFICIAL[key].looked_for in message
    for part in ("nyu-mll/glue", "jhu-cogsci/hans", "tommccoy1/hans", "heuristics_evaluation_set"):
        assert part in message


def test_without_a_folder_sources_are_data_sets() -> None:
    task = find_task("mnli-hans")
    glue = [(s.dataset, s.config, s.split, s.subset) for s in (*task.train, *task.id)]
    assert glue == [
        ("nyu-mll/glue", "mnli", "train", None),
        ("nyu-mll/glue", "mnli", "validation_matched", "matched"),
        ("nyu-mll/glue", "mnli", "validation_mismatched", "mismatched"),
    ]
    assert [(s.dataset, s.split) for s in task.ood] == [("jhu-cogsci/hans", "validation")]
    assert len(task.ood[0].subsets) == 30
    assert "ln_subject/object_swap" in task.ood[0].subsets


def test_paws_needs_a_file() -> None:
    with pytest.raises(InputError, match=r"not on the hub.*give a folder with .*dev_and_test\.tsv"):
        find_task("qqp-paws")


@pytest.mark.real
def test_real_files(real_data: Path) -> None:
    with pytest.warns(MechcoreWarning, match="mismatched"):
        task: Task = find_task("mnli-hans", real_data / "data")
    ood = read_sources(task.ood)
    assert ood.frame["subset"].value_counts().to_dict() == dict.fromkeys(
        [*task.groups["OOD"], *task.groups["OOD-E"]], 1000
    )
    inside = read_sources(task.id)
    assert len(inside) == 9815
    assert inside.clusters is not None
    assert ood.clusters is not None
    templates = pd.read_csv(real_data / "data/hans_validation.tsv.gz", sep="\t")["template"]
    counts = [inside.frame["text_a"].nunique(), templates.nunique()]
    assert [inside.clusters.max() + 1, ood.clusters.max() + 1] == counts
    assert read_sources(task.train).clusters is None
    assert len(read_sources(task.train)) == 29340
    with pytest.raises(InputError, match=r"no QQP train examples: looked for QQP/train\.tsv"):
        find_task("qqp-paws", real_data / "data")
