"""Users' files: every format, every known name of a column, and nothing dropped in silence."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mechcore.data.examples import Examples
from mechcore.data.readers import examples_of, read_examples, with_meanings
from mechcore.errors import InputError, MechcoreWarning

ROWS = [
    {"premise": "A man, say, sleeps.", "hypothesis": 'He "sleeps".', "label": "entailment"},
    {"premise": "Zwölf Äpfel", "hypothesis": "NA", "label": "neutral"},
    {"premise": "2020-01-01", "hypothesis": "007", "label": "contradiction"},
]


Write = Callable[[str, "str | bytes"], Path]


def columns(examples: Examples) -> dict[str, list[str]]:
    return examples.frame.to_dict("list")


def saved(frame: pd.DataFrame, path: Path) -> Path:
    """A table in the format of its file's name."""
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif "json" in path.name:
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, sep="\t" if ".tsv" in path.name else ",", index=False)
    return path


# -- formats --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ending", ["csv", "tsv", "jsonl", "ndjson", "parquet", "csv.gz", "tsv.gz", "jsonl.gz"]
)
def test_every_format_gives_the_same_examples(tmp_path: Path, ending: str) -> None:
    path = saved(pd.DataFrame(ROWS), tmp_path / f"dev.{ending}")
    examples = read_examples(path)
    assert columns(examples) == {
        "text_a": [row["premise"] for row in ROWS],
        "text_b": [row["hypothesis"] for row in ROWS],
        "label": ["entailment", "neutral", "contradiction"],
        "subset": ["all"] * 3,
    }
    assert examples.name == "dev"
    assert read_examples(str(path), name="id").name == "id"


letters = st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"))
texts = st.text(st.one_of(letters, st.sampled_from("\"', ;#\\ab")), min_size=1, max_size=12).filter(
    lambda text: text.strip() == text != ""
)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_any_text_survives(tmp_path: Path, ending: str, pairs: list[tuple[str, str]]) -> None:
    frame = pd.DataFrame(pairs, columns=["premise", "hypothesis"]).assign(label="x")
    path = saved(frame, tmp_path / f"any.{ending}")
    table = read_examples(path).frame
    assert list(zip(table["text_a"], table["text_b"], strict=True)) == pairs


def test_a_byte_order_mark_and_windows_line_ends(write: Write) -> None:
    for name, separator in (("x.csv", ","), ("x.tsv", "\t")):
        text = f"premise{separator}label\r\na{separator}e\r\n".encode("utf-8-sig")
        assert columns(read_examples(write(name, text)))["text_a"] == ["a"]
        assert columns(read_examples(write(name, text)))["label"] == ["e"]


# -- columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["premise", "hypothesis", "label"], ("premise", "hypothesis", "label", None)),  # HF NLI
        (["index", "sentence1", "sentence2", "label"], ("sentence1", "sentence2", "label", None)),
        (  # MultiNLI: the annotators' own labels are there, too
            ["sentence1", "sentence2", "label1", "label2", "gold_label"],
            ("sentence1", "sentence2", "gold_label", None),
        ),
        (  # HANS
            ["gold_label", "sentence1", "sentence2", "heuristic", "subcase", "template"],
            ("sentence1", "sentence2", "gold_label", "subcase"),
        ),
        (["id", "sentence1", "sentence2", "label"], ("sentence1", "sentence2", "label", None)),
        (  # QQP
            ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
            ("question1", "question2", "is_duplicate", None),
        ),
        (["idx", "question1", "question2", "label"], ("question1", "question2", "label", None)),
        (["index", "question", "sentence", "label"], ("question", "sentence", "label", None)),
        (["question", "passage", "idx", "label"], ("question", "passage", "label", None)),  # BoolQ
        (["idx", "sentence", "label"], ("sentence", None, "label", None)),  # SST-2, CoLA
        (["text", "label"], ("text", None, "label", None)),  # IMDB and many others
        (["text_a", "text_b", "label", "subset"], ("text_a", "text_b", "label", "subset")),
    ],
)
def test_known_columns(write: Write, names: list[str], expected: tuple[str | None, ...]) -> None:
    path = write("file.csv", ",".join(names) + "\n" + ",".join(f"<{n}>" for n in names) + "\n")
    cells = columns(read_examples(path))
    defaults = ("", "", "", "all")
    for split, name, default in zip(cells, expected, defaults, strict=True):
        assert cells[split] == [default if name is None else f"<{name}>"]


def test_other_columns_are_named_by_the_user(write: Write) -> None:
    path = write("x.csv", "premise,left,right,gold,kind\np,a,b,e,k\n")
    given = {"text_a": "left", "text_b": "right", "label": "gold", "subset": "kind"}
    cells = columns(read_examples(path, columns=given))
    assert cells == {"text_a": ["a"], "text_b": ["b"], "label": ["e"], "subset": ["k"]}


@pytest.mark.parametrize(
    ("cells", "given", "expected"),
    [
        ({"template": "uvuv"}, {}, ["u", "v", "u", "v"]),
        ({"cluster": [1.0, 2.0, None, 1.0]}, {}, ["1", "2", "", "1"]),
        ({"kind": ["u", "", "u", "v"]}, {"cluster": "kind"}, ["u", "", "u", "v"]),
        ({}, {"cluster": "text_a"}, ["a", "a", "b", "b"]),  # what it serves as
        ({"subset": "xxyy"}, {"cluster": "subset"}, ["x", "x", "y", "y"]),
        ({"template": "uuuu"}, {}, None),  # of the prompt, say
        ({"cluster": [[1], [2], [3], [4]]}, {}, None),
        ({}, {}, None),
    ],
)
def test_clusters_have_a_column(cells: dict, given: dict, expected: list[str] | None) -> None:
    table = pd.DataFrame(
        {"text_a": list("aabb"), "label": "l"} | {n: [*c] for n, c in cells.items()}
    )
    for skip_empty in (False, True):
        frame = examples_of(table, "x", name="x", columns=given, skip_empty=skip_empty).frame
        assert (frame["cluster"].tolist() if "cluster" in frame else None) == expected


def test_texts_that_are_not_read_are_named(write: Write) -> None:
    path = write("x.csv", "question,context,date,label\nis it,it is so in most cases,6 May,e\n")
    with pytest.warns(MechcoreWarning) as caught:
        assert columns(read_examples(path))["text_b"] == [""]
    assert [str(warning.message) for warning in caught] == [
        f"{path}: texts are read only from column question, but context also holds texts: for "
        "pairs, add --columns text_b=context; for single texts, --columns "
        "text_a=question (columns= in Python)"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for split, name, text in (
            ("text_a", "question", "is it"),
            ("text_b", "context", "it is so in most cases"),
        ):
            assert columns(read_examples(path, columns={split: name}))[split] == [text]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"label": "gold"},
            r"x\.csv: no column 'gold' for label; found premise, label: name one of them with "
            r"--columns label=NAME \(columns= in Python\)",
        ),
        ({"cluster": "topic"}, r"no column 'topic' for cluster; found premise, label: name"),
        ({"text": "premise"}, "unknown role 'text'; roles are text_a, text_b, label, subset"),
    ],
)
def test_columns_that_cannot_be_mapped(write: Write, given: Any, message: str) -> None:
    path = write("x.csv", "premise,label\na,e\n")
    with pytest.raises(InputError, match=message):
        read_examples(path, columns=given)
    if "cluster" in given:
        assert read_examples(path, columns=given, labelled=False).clusters is None


# -- labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_labels_may_be_whole_numbers_and_be_given_names(tmp_path: Path, ending: str) -> None:
    frame = pd.DataFrame({"text": ["a", "b", "c"], "label": [0, 2, 0]})
    path = saved(frame, tmp_path / f"x.{ending}")
    assert columns(read_examples(path))["label"] == ["0", "2", "0"]
    named = read_examples(path, label_map={"0": "entailment", "1": "unused"})
    assert columns(named)["label"] == ["entailment", "2", "entailment"]


def test_whole_numbers_read_as_whole_with_all_their_digits(write: Write) -> None:
    path = write("x.jsonl", '{"text": "a", "label": 1.0}\n{"text": "b", "label": 0.0}\n')
    assert columns(read_examples(path))["label"] == ["1", "0"]
    path = write("data.jsonl", f'{{"text": "a", "label": {10**30 + 1}}}')
    assert columns(read_examples(path))["label"] == [str(10**30 + 1)]


def test_examples_without_a_gold_label_are_left_out_with_their_number(write: Write) -> None:
    rows = "a\tb\t-\nc\td\tneutral\ne\tf\t-\n"
    path = write("dev.tsv", f"sentence1\tsentence2\tgold_label\n{rows}")
    with pytest.warns(MechcoreWarning, match="skipped 2 of 3 examples without a label") as seen:
        cells = columns(read_examples(path))
    assert cells["text_a"] == ["c"]
    assert len(seen) == 1
    assert seen[0].filename == __file__


@pytest.mark.parametrize(("ending", "none"), [("csv", "-1"), ("tsv", -1.0), ("parquet", -1.0)])
def test_rows_of_label_minus_one_are_reported_and_can_be_left_out(
    tmp_path: Path, ending: str, none: Any
) -> None:
    frame = pd.DataFrame({"text": ["a", "b", "c"], "label": [type(none)(0), none, type(none)(1)]})
    path = saved(frame, tmp_path / f"x.{ending}")
    with pytest.warns(
        MechcoreWarning, match=r"1 of 3 examples have the label -1, .* add --label-map -1=- \("
    ):
        assert len(read_examples(path)) == 3
    with pytest.warns(MechcoreWarning, match="skipped 1 of 3 examples without a label") as caught:
        labels = read_examples(path, label_map={"0": "e", "1": "n", "-1": "-"}).frame["label"]
    assert (labels.tolist(), len(caught)) == (["e", "n"], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in ({"-1": "bad"}, {-1: "bad"}):
            assert "bad" in columns(read_examples(path, label_map=given))["label"]
        assert len(read_examples(path, labelled=False)) == 3


@pytest.fixture
def classes(tmp_path: Path) -> Callable[..., Path]:
    """Writes Parquet as `datasets` does, with the names of labels."""

    def classes(labels: list[Any], names: list[str]) -> Path:
        path = tmp_path / "classes.parquet"
        features = datasets.Features(
            {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)}
        )
        texts = [*"abcdef"[: len(labels)]]
        data = datasets.Dataset.from_dict({"text": texts, "label": labels}, features)
        data.to_parquet(str(path))
        return path

    return classes


def test_names_of_labels_in_parquet(classes: Callable[..., Path]) -> None:
    path = classes([1, 0, -1, None], ["pos", "neg"])
    for meanings, expected in (
        ({}, ["neg", "pos"]),
        ({"0": "good", "1": "bad"}, ["bad", "good"]),  # numbers may be meanings meanings as ever
        ({"1.0": "bad"}, ["bad", "pos"]),
        ({"neg": "bad"}, ["bad", "pos"]),
        ({"-1": "odd"}, ["neg", "pos", "odd"]),
    ):
        n = 4 - len(expected)
        with pytest.warns(MechcoreWarning, match=f"skipped {n} of 4 examples without a label"):
            assert columns(read_examples(path, label_map=meanings))["label"] == expected
    with pytest.warns(
        MechcoreWarning, match="label 0 of column label is pos in the file, but neg in"
    ):
        read_examples(path, label_map={"0": "neg", "1": "Pos"})
    numbers = classes([1, 0], ["1", "0"])
    assert columns(read_examples(numbers))["label"] == ["1", "0"]


@pytest.mark.parametrize("number", [2, -2, -100, 0.5])
def test_numbers_that_name_no_label(classes: Callable[..., Path], number: int) -> None:
    table = pyarrow.parquet.read_table(classes([1, 0], ["pos", "neg"]))
    path = Path(classes([1, 0], ["pos", "neg"]))
    table = table.set_column(1, "label", pyarrow.array([1, number]))
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(InputError, match=rf"row 2, column label: found {number}; expected 0 to 1"):
        read_examples(path)


@pytest.mark.parametrize(
    ("table", "split", "pair", "differ"),
    [
        ({"text": "ab", "gold_label": "xy", "label": "xx"}, "label", "gold_label and label", 1),
        ({"text": "ab", "gold_label": "xy", "label": "yx"}, "label", "gold_label and label", 2),
        ({"text": "ab", "label": "xy", "labels": "xz"}, "label", "label and labels", 1),
        ({"premise": "ab", "sentence1": "cd", "label": "xy"}, "text_a", "premise and sentence1", 2),
        ({"sentence": "ab", "text": "ad", "label": "xy"}, "text_a", "sentence and text", 1),
        ({"question1": "ab", "question": "ac", "label": "xy"}, "text_a", "question1 and q", 1),
        ({"text_a": "ab", "hypothesis": "cd", "passage": "ce", "label": "xy"}, "text_b", "hypo", 1),
        ({"text": "ab", "label": "xy", "subset": "pp", "subcase": "pq"}, "subset", "subset and", 1),
    ],
)
def test_two_columns_that_differ_and_could_serve_for_one_role(
    tmp_path: Path, table: dict[str, str], split: str, pair: str, differ: int
) -> None:
    path = saved(pd.DataFrame({k: [*v] for k, v in table.items()}), tmp_path / "x.csv")
    with pytest.warns(MechcoreWarning) as caught:
        cells = columns(read_examples(path))
    assert len(caught) == 1
    message = str(caught[0].message)
    assert f"columns {pair}" in message
    assert f"could both be {split} and differ in {differ} of 2 rows" in message
    chosen = message.split(": columns ")[1].split(" and ")[0]
    assert cells[split] == [*table[chosen]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_examples(path, columns={split: chosen})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "table",
    [
        {"text": "ab", "gold_label": "xy", "label": "xy"},
        {"text": "ab", "gold_label": "xy", "label": ["", ""]},
        {"premise": "ab", "sentence1": "ab", "label": "xy"},
        {"question": "ab", "sentence": "cd", "label": "xy"},
    ],
)
def test_columns_that_say_the_same_or_serve_for_another_role(tmp_path: Path, table: Any) -> None:
    read_examples(saved(pd.DataFrame({k: [*v] for k, v in table.items()}), tmp_path / "x.csv"))


def test_words_that_look_like_missing_values_are_texts(write: Write) -> None:
    path = write("x.csv", "premise,hypothesis,label\nNA,null,None\nnan,NaN,n/a\n")
    cells = columns(read_examples(path))
    assert (cells["text_a"], cells["text_b"], cells["label"]) == (
        ["NA", "nan"],
        ["null", "NaN"],
        ["None", "n/a"],
    )


THREE = "premise,hypothesis,label\na,b,e\nc,d,f\n"
EMPTY = r"is empty|no labelled example"
ONE_COLUMN = "is this one column. Commas separate those of .csv, tabs of .tsv and .txt$"
REFUSED = [
    ("x.csv", THREE + ",b,e\n", r"x\.csv: row 3, column premise: empty"),
    ("x.csv", THREE + '"  ",b,e\n', "row 3, column premise: empty"),
    ("x.csv", THREE + "a,,e\n", "row 3, column hypothesis: empty"),
    ("x.csv", THREE + "a,b,\n", "row 3, column label: empty"),
    ("short.csv", THREE + "c,d\n", "row 3, column label: empty"),
    *(
        (
            "x.jsonl",
            f'{{"text": "a", "label": "e"}}\n{{"text": "b"{label}}}\n',
            "row 2, column label",
        )
        for label in ("", ', "label": null', ', "label": ""')
    ),
    *((f"empty.{ending}", "", EMPTY) for ending in ("csv", "tsv", "jsonl")),
    *(("header.csv", "premise,label\n", EMPTY), ("header.tsv", "premise\tlabel\n", EMPTY)),
    ("lines.jsonl", "\n\n", EMPTY),
    ("x.tsv", "premise,label\nx\n", f"found premise,label: {ONE_COLUMN}"),
    ("x.csv", "premise;label\nx\n", f"found premise;label: {ONE_COLUMN}"),
    ("x.txt", "a|b\nx\n", rf"found a\|b: {ONE_COLUMN}"),
    ("long.csv", "premise,label\na,e\nb,f,g\n", "line 3 has 3 cells, the header 2"),
    ("all_long.csv", "premise,label\na,e,f\nb,f,g\n", "line 2 has 3 cells, the header 2"),
    ("all_long.tsv", "premise\tlabel\na\te\tf\n", "line 2 has 3 cells, the header 2"),
    ("open.csv", 'premise,label\n"a,e\nb,f\n', "begins in line 2: unexpected end of data"),
    ("latin.csv", "premise,label\nü,e\n".encode("latin-1"), "byte 0xfc is not UTF-8: save the"),
    ("latin.tsv", "premise\tlabel\nü\te\n".encode("latin-1"), "byte 0xfc is not UTF-8: save the"),
    ("bad.jsonl", '{"text": "a"\n', "cannot be read as .jsonl"),
    ("bad.parquet", b"PAR1 and no more", "cannot be read as .parquet"),
    ("x.jsonl", '{"text": "a \\ud800", "label": "x"}', r"column text: found half a char.*ud800"),
    ("x.csv", "text,label,subset\na,x,all\nb,x,other\n", "examples 'x': a subset is named 'all'"),
    *(
        ("dev_and_test.tsv", paws, r"column text_a has values such as .*generate_data\.py")
        for paws in (  # built by Python 3, or not at all
            "id\tsentence1\tsentence2\tlabel\n1\tb'How old ?'\tb\"Old who's ?\"\t0\n",
            "id\tqid1\tsentence1\tqid2\tsentence2\tlabel\n1\t7\t0/1/(7, 2):(8, 0)\t8\t0/3/1\t0\n",
        )
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), REFUSED)
def test_broken_files(write: Write, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_examples(write(name, content))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "rows", "subsets", "labels"),
    [
        ("mnli_dev_matched", 9815, 1, ["contradiction", "entailment", "neutral"]),
        ("hans_validation", 30000, 30, ["entailment", "non-entailment"]),
        ("paws_qqp", 12663, 1, ["0", "1"]),
    ],
)
def test_real_files_are_read_whole(
    real_data: Path, name: str, rows: int, subsets: int, labels: list[str]
) -> None:
    examples = read_examples(real_data / "data" / f"{name}.tsv.gz")
    assert (len(examples), len(examples.subset_names)) == (rows, subsets)
    assert examples.label_names == labels
    assert examples.two_segments


def test_unlabelled_files_need_no_column_that_is_mapped_for_others(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("context,claim\na b,a\n")
    columns = {"text_a": "context", "text_b": "claim", "label": "verdict", "subset": "pattern"}
    frame = read_examples(path, columns=columns, labelled=False).frame
    assert frame.iloc[0].tolist() == ["a b", "a", "", "all"]
    with pytest.raises(InputError, match="no column 'verdict'"):
        read_examples(path, columns=columns)
    with pytest.raises(InputError, match="no column 'claims'"):
        read_examples(path, columns={**columns, "text_b": "claims"}, labelled=False)


@pytest.mark.parametrize("name", ["data.csv", "data.tsv"])
def test_columns_of_one_name(write: Write, name: str) -> None:
    separator = "\t" if name.endswith("tsv") else ","
    rows = [["premise", "label", "x", "x"], ["a", "0", "1", "2"]]
    text = "\n".join(separator.join(row) for row in rows)
    assert len(read_examples(write(name, text))) == 1  # those that are not read may be
    again = text.replace("x", "label", 1)
    with pytest.raises(InputError, match="2 columns are named label; expected one: rename"):
        read_examples(write(name, again))


def test_bytes_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": [b"\xff"], "label": ["x"]}), path)
    with pytest.raises(InputError, match=r"row 1, column text: expected text, found b'.xff'"):
        read_examples(path)


MULTINLI = (
    "gold_label\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
    "\tsentence1\tsentence2\tpromptID\tpairID\tgenre\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\n"
    'neutral\t( The ( new rights ) )\t( Everyone )\t(ROOT (NP (DT The)))\t(ROOT (NP (NN "x")))'
    '\t"The new rights are nice," he said\tEveryone "likes" them\t31\t31n\tfiction'
    "\tneutral\tentailment\tneutral\tneutral\tneutral\n"
    "-\t( a )\t( b )\t(ROOT a)\t(ROOT b)\tNobody agreed\ton this\t32\t32e\tslate"
    "\tneutral\tentailment\tcontradiction\tneutral\tentailment\n"
    "entailment\t( a )\t( b )\t(ROOT a)\t(ROOT b)\tHe slept.\tHe was asleep.\t33\t33e\tslate"
    "\tentailment\t\t\t\t\n"
)

QQP = (
    "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    '133273\t213221\t213222\tWhat is "NA"?\tIs "it\t0\n'
    "402555\t536040\t536041\tHow do I control my anger?\tHow do I stay calm?\t1\n"
)


@pytest.mark.parametrize("name", ["multinli_1.0_train.txt", "multinli_1.0_train.txt.gz"])
def test_multinli_as_tab_separated_text(write: Write, name: str) -> None:
    with pytest.warns(MechcoreWarning, match="skipped 1 of 3 examples without a label"):
        examples = read_examples(write(name, MULTINLI))
    assert columns(examples) == {
        "text_a": ['"The new rights are nice," he said', "He slept."],
        "text_b": ['Everyone "likes" them', "He was asleep."],
        "label": ["neutral", "entailment"],
        "subset": ["all", "all"],
    }


BROKEN = (
    "7\t1\t2\tWhat is it?\t\t0\n"  # has no second question
    "8\t3\t4\tWhat is\n that?\tWhat?\t1\n"  # and one that is broken in two
)


def test_rows_that_lack_a_question_are_left_out_when_asked(write: Write) -> None:
    path = write("train.tsv", QQP + BROKEN)
    with pytest.raises(InputError, match=r"row \d, column question\d: empty"):
        read_examples(path)
    with pytest.warns(MechcoreWarning, match="skipped 3 of 5 examples that lack a text or label"):
        examples = read_examples(path, skip_empty=True)
    assert columns(examples)["label"] == ["0", "1"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read_examples(write("whole.tsv", QQP), skip_empty=True)) == 2
    with (
        pytest.warns(MechcoreWarning),
        pytest.raises(InputError, match="no labelled example; expected at least one row"),
    ):
        read_examples(write("none.tsv", QQP.splitlines()[0] + "\n" + BROKEN), skip_empty=True)


@pytest.mark.parametrize("kept", [["b'a'", "b"], ["b'a", "b'c'"]])
def test_other_texts_are_no_bytes(write: Write, kept: list[str]) -> None:
    lines = [json.dumps({"text": text, "label": "x"}) for text in kept]
    assert columns(read_examples(write("x.jsonl", "\n".join(lines))))["text_a"] == kept


@pytest.mark.parametrize("given", ["Yes ", "Yes", " Yes"])
@pytest.mark.parametrize("number", ["0", "0.0", "0."])
def test_meanings_do_not_hang_on_spaces_or_on_how_a_whole_number_is_written(
    given: str, number: str
) -> None:
    labels = pd.Series(["Yes ", "Yes", "0", "0.0", " 0 ", "0.5", "No"], dtype=object)
    meanings = with_meanings(labels, {given: "entailment", number: "neutral"})
    assert meanings.tolist() == ["entailment"] * 2 + ["neutral"] * 3 + ["0.5", "No"]
    both = with_meanings(labels[2:4], {"0": "a", "0.0": "b"})  # as it is written comes first
    assert both.tolist() == ["a", "b"]


def test_rows_keep_their_numbers_when_others_are_left_out(write: Write) -> None:
    path = write("x.jsonl", '{"text": "", "label": "a"}\n{"text": [1], "label": "a"}\n')
    with (
        pytest.warns(MechcoreWarning, match="skipped 1 of 2"),
        pytest.raises(InputError, match="row 2, column text: expected text"),
    ):
        read_examples(path, skip_empty=True)
