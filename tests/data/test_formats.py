"""Tables in users' files: every format, quotes and tabs, and files that are broken."""

import csv
import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mechcore.data.formats import kind_of_file, read_table
from mechcore.data.readers import read_examples
from mechcore.errors import InputError

Write = Callable[[str, "str | bytes"], Path]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.csv", ".csv"),
        ("a.b.tsv.gz", ".tsv.gz"),
        ("a.txt", ".tsv"),
        ("a.ndjson", ".jsonl"),
        ("a.jsonl.gz", ".jsonl.gz"),
        ("a.parquet", ".parquet"),
    ],
)
def test_kinds_of_files(write: Write, name: str, kind: str) -> None:
    assert kind_of_file(write(name, "")) == kind


@pytest.mark.parametrize("name", ["x.text", "x", "x.gz", "x.csv.zip", "x.json", "x.parquet.gz"])
def test_unknown_kinds_of_files(write: Write, name: str) -> None:
    with pytest.raises(InputError, match=r"expected \.csv, \.tsv, \.jsonl or \.parquet"):
        read_examples(write(name, "premise,label\na,b\n"))


def test_a_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "no.csv", tmp_path):
        with pytest.raises(InputError, match="no such file"):
            read_examples(path)


BREAKS = re.compile(r"[\t\n]")
CELLS = st.text(alphabet='ab "\t\n', max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(CELLS, CELLS, st.sampled_from("xy")), min_size=1, max_size=5))
def test_any_table_that_pandas_writes_reads_back_or_is_refused(
    tmp_path: Path, rows: list[tuple[str, str, str]]
) -> None:
    table = pd.DataFrame(rows, columns=["premise", "hypothesis", "label"])
    table.to_csv(tmp_path / "x.tsv", sep="\t", index=False)
    for labelled in (True, False):
        try:
            texts = read_examples(tmp_path / "x.tsv", labelled=labelled).frame
        except InputError:
            assert not table.map(str.strip).all(axis=None) or table.map(BREAKS.search).any(
                axis=None
            )
        else:
            read = texts[["text_a", "text_b", "label"]].to_numpy().tolist()
            assert read == table.to_numpy().tolist()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "rows",
    [
        ['"Well\tno\tneutral', "b\tc\tneutral"],  # never closed
        ['"Well\tno\tneutral', 'said" he\tc\tneutral'],  # closed within a text
        ['"Well\tno\tneutral', 'said"\tc\tneutral', 'd "e" f\tg\tneutral'],  # one in a bare text
        ['"Well\tno\tneutral', 'b\tc"\tneutral'],  # in another column
    ],
)
def test_unbalanced_quotes_are_plain_characters(write: Write, rows: list[str]) -> None:
    path = write("dev.tsv", "sentence1\tsentence2\tgold_label\n" + "\n".join(rows) + "\n")
    found = read_examples(path).frame[["text_a", "text_b", "label"]]
    assert found.to_numpy().tolist() == [row.split("\t") for row in rows]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        # pandas would take the first two for one row, without a word
        (['"She said \\"no\\", he",b,0', '"c","d",1'], "row that begins in line 2: ',' expected"),
        (["a,b,0", '"c,d,1', "e,f,0"], "row that begins in line 3: unexpected end of data"),
        (['"a\nb",c,0', '"d" ,e,1'], "row that begins in line 4: ',' expected"),
    ],
)
def test_quotes_of_csv_that_do_not_close_their_cell(
    write: Write, rows: list[str], message: str
) -> None:
    path = write("x.csv", "premise,hypothesis,label\n" + "\n".join(rows) + "\n")
    with pytest.raises(
        InputError, match=rf"x\.csv: cannot be read as \.csv: the {message}.*doubled"
    ):
        read_table(path)


def test_quotes_of_csv_that_close_their_cell(write: Write) -> None:
    long = "long " * 100_000
    rows = ['"She said ""no"", he",5" pipe,0', f'"{long}","two\r\nlines",1']
    limit = csv.field_size_limit()
    path = write("x.csv", "premise,hypothesis,label\r\n" + "\r\n".join(rows))
    found = read_table(path).to_numpy().tolist()
    assert found == [['She said "no", he', '5" pipe', "0"], [long, "two\r\nlines", "1"]]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("damage", ["cut", "changed", "plain"])
def test_broken_compression(tmp_path: Path, kind: str, damage: str) -> None:
    whole = gzip.compress(b"premise,label\na,b\n" * 1000)
    path = tmp_path / f"x.{kind}.gz"
    changed = whole[:40] + b"zzzzzz" + whole[46:]
    path.write_bytes({"cut": whole[:-12], "changed": changed, "plain": b"premise,label"}[damage])
    with pytest.raises(InputError, match=rf"cannot be read as \.{kind}: "):
        read_examples(path)


def test_keys_that_occur_twice(write: Write) -> None:
    path = write("data.jsonl", '{"text": "a", "label": "x"}\n{"text": "a", "label": 0, "label": 1}')
    with pytest.raises(InputError, match=r"line 2: a key occurs twice among text, label, label"):
        read_examples(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "line 2: found a list; expected an object"),
        ("5", "line 2: found a int; expected an object"),
        ("[" * 100_000, "line 2: "),
        ("{", "line 2: Expecting property name"),
    ],
)
def test_lines_that_are_no_objects(write: Write, line: str, message: str) -> None:
    path = write("data.jsonl", f'{{"text": "a", "label": "x"}}\n{line}')
    with pytest.raises(InputError, match=rf"cannot be read as \.jsonl: {message}"):
        read_examples(path)


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_rows_whatever_ends_them(write: Write, kind: str) -> None:
    cells = [["premise", "label"], ["a\0b\u2028c\x85d", "x"], ["NA", "null"], ["1e5", "007"]]
    lines = [",\t"[kind == "tsv"].join(row) for row in cells]
    for ends in (["\n"] * 4, ["\r\n", "\n", "\r\n", ""], ["\r\n", "\n \n"] * 2):
        text = "".join(line + end for line, end in zip(lines, ends, strict=True))
        table = read_table(write(f"x.{kind}", text))
        assert [[*table.columns], *table.to_numpy().tolist()] == cells


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a,b,e", "c,d,e,f"], "line 3 has 4 cells, the header 3; put cells that have a comma in"),
        (['"a\nb",c,e', "d,e,f,"], "line 4 has 4 cells, the header 3"),
        (["a\rb,c,e", "d,e,f"], "the row that begins in line 2: it has a carriage return; remove"),
        (["a,b,e", "premise,hypothesis,label"], "line 3 repeats the header; expected it once"),
    ],
)
def test_rows_that_do_not_fit_the_header(write: Write, rows: list[str], message: str) -> None:
    text = "premise,hypothesis,label\n" + "\n".join(rows) + "\n"
    with pytest.raises(InputError, match=rf"x\.csv: cannot be read as \.csv: {message}"):
        read_table(write("x.csv", text))
    if '"' not in text:
        with pytest.raises(InputError, match=message.replace("comma", "tab")):
            read_table(write("x.tsv", text.replace(",", "\t")))


def test_tabs_in_a_file_of_commas_are_suspected(write: Write) -> None:
    path = write("x.csv", "premise\tlabel\na, b\tx\n")
    with pytest.raises(InputError, match=r"line 2 has 2 cells, the header 1; .*is this one column"):
        read_table(path)
