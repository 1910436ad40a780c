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
    cells = read_examples(path).frame[["text_a", "text_b", "label"]]
    assert cells.to_numpy().tolist() == [row.split("\t") for row in rows]


def test_quotes_of_csv_that_close_their_cell(write: Write) -> None:
    long = "long " * 100_000
    rows = ['"She said ""no"", he",5" pipe,0', f'"{long}","two\r\nlines",1']
    limit = csv.field_size_limit()
    path = write("x.csv", "premise,hypothesis,label\r\n" + "\r\n".join(rows))
    cells = read_table(path).to_numpy().tolist()
    assert cells == [['She said "no", he', '5" pipe', "0"], [long, "two\r\nlines", "1"]]
    assert csv.field_size_limit() == limit
    short = read_table(write("short.csv", 'premise,hypothesis,label\n"""a"" b",c\n'))
    assert short.iloc[0].tolist() == ['"a" b', "c", None]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("damage", ["cut", "changed", "plain"])
def test_broken_compression(tmp_path: Path, kind: str, damage: str) -> None:
    whole = gzip.compress(b"premise,label\na,b\n" * 1000)
    path = tmp_path / f"x.{kind}.gz"
    changed = whole[:40] + b"zzzzzz" + whole[46:]
    path.write_bytes({"cut": whole[:-12], "changed": changed, "plain": b"premise,label"}[damage])
    with pytest.raises(InputError, match=rf"cannot be read as \.{kind}: "):
        read_examples(path)


HEADER = "premise,hypothesis,label\n"
LINE = '{"text": "a", "label": "x"}\n'
BROKEN = [
    # Quotes that do not close their cell: pandas would take the first two rows for one.
    ("x.csv", '"She said \\"no\\", he",b,0\n"c","d",1', "begins in line 2: ',' expected.*doubled"),
    ("x.csv", 'a,b,0\n"c,d,1\ne,f,0', "begins in line 3: unexpected end of data.*doubled"),
    ("x.csv", '"a\nb",c,0\n"d" ,e,1', "begins in line 4: ',' expected.*doubled"),
    ("x.csv", '"a\nb",c,e\nd,e,f,', "line 4 has 4 cells, the header 3"),
    *(
        (name, text.replace(",", separator), message)
        for name, separator, mark in (("x.csv", ",", "comma"), ("x.tsv", "\t", "tab"))
        for text, message in (
            (
                "a,b,e\nc,d,e,f",
                f"line 3 has 4 cells, the header 3; quote cells that contain a {mark}",
            ),
            ("a\rb,c,e\nd,e,f", "the row that begins in line 2: .*no carriage return"),
            ("a,b,e\npremise,hypothesis,label", "line 3 repeats the header; expected it once"),
        )
    ),
    ("data.jsonl", "[1]", "line 2: found a list; expected an object"),
    ("data.jsonl", "5", "line 2: found a int; expected an object"),
    ("data.jsonl", "{", "line 2: Expecting property name"),
]


@pytest.mark.parametrize(("name", "rows", "message"), BROKEN)
def test_rows_that_do_not_fit(write: Write, name: str, rows: str, message: str) -> None:
    first = {".csv": HEADER, ".tsv": HEADER.replace(",", "\t"), ".jsonl": LINE}[Path(name).suffix]
    wanted = rf"{name}: cannot be read as \{Path(name).suffix}: .*{message}"
    with pytest.raises(InputError, match=wanted):
        read_table(write(name, f"{first}{rows}\n"))


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_rows_whatever_ends_them(write: Write, kind: str) -> None:
    cells = [["premise", "label"], ["a\0b\u2028c\x85d", "x"], ["NA", "null"], ["1e5", "007"]]
    lines = [",\t"[kind == "tsv"].join(row) for row in cells]
    for ends in (["\n"] * 4, ["\r\n", "\n", "\r\n", ""], ["\r\n", "\n \n"] * 2):
        text = "".join(line + end for line, end in zip(lines, ends, strict=True))
        table = read_table(write(f"x.{kind}", text))
        assert [[*table.columns], *table.to_numpy().tolist()] == cells


def test_tabs_in_a_file_of_commas_are_suspected(write: Write) -> None:
    path = write("x.csv", "premise\tlabel\na, b\tx\n")
    with pytest.raises(InputError, match=r"line 2 has 2 cells, the header 1; .*is this one column"):
        read_table(path)
