"""Tables of examples as they come from the wild, or from an enemy."""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from fuzz.harness import ODD_VALUES, damaged

NAMES = ("premise", "hypothesis", "label", "subset", "text_a", "text_b", "sentence1", "sentence")
ODD_NAMES = ("", " ", "label", "premise", "=1+1", "<script>", "a\tb", 'a"b', "Label", "\ufeff", "0")
TEXTS = (
    *("The cat saw the dog.", "Who ran?", "yes", "entailment", "0", "1", "-1", "1.0", "1e5"),
    *("", " ", "nan", "NA", "None", "null", "-", "inf", "all", "007", "true", "2020-01-01"),
    *("=1+1", "+1", "@SUM(A1)", "'=x", "\t=1", "<script>alert(1)</script>", "&amp;", "{{7*7}}"),
    *('a "quoted" word', '"', '""', "a,b", "a\tb", "a\nb", "a\rb", "\r\n", "\\", "\\n", "#"),
    *("Grüße", "日本語", "🙂", "\u202eright to left", "a\u0000b", "\u2028", "\ufeff", "e\u0301"),
)


def write_examples(rng: random.Random, folder: Path) -> Path:
    """A table in any of the formats, odd in one way or many."""
    kind = rng.choice(["csv", "tsv", "jsonl", "parquet", "csv.gz", "tsv.gz", "jsonl.gz"])
    stem = rng.choice(["data"] * 12 + ["a b", "ü", "<b>", "=x", "a.b", "-x", "x" * 200, "a\nb"])
    path = folder / f"{stem}.{kind}"
    if kind == "parquet":
        content = _parquet(rng)
    else:
        write = _json_lines if kind.startswith("jsonl") else _delimited
        text = write(rng, "\t" if kind.startswith("tsv") else ",")
        content = _encoded(rng, text)
    if rng.random() < 0.15:
        content = damaged(rng, content)
    if kind.endswith("gz"):
        content = _compressed(rng, content)
    path.write_bytes(rng.choice([b"", b"\n", b"\0"]) if rng.random() < 0.02 else content)
    return path


def _columns(rng: random.Random) -> list[str]:
    names = ["premise", "hypothesis", "label"]
    if rng.random() < 0.4:
        names.append("subset")
    if rng.random() < 0.15:
        names[rng.randrange(len(names))] = rng.choice(NAMES)
    if rng.random() < 0.1:
        names.insert(rng.randrange(len(names) + 1), rng.choice(ODD_NAMES))
    return names


def _text(rng: random.Random) -> str:
    if rng.random() < 0.002:
        return rng.choice(["a", "a b ", "é", '"', "\U0001f600"]) * rng.choice([1000, 10**6])
    calm = rng.random() < 0.95
    return rng.choice(TEXTS[:4]) if calm else rng.choice(TEXTS)


def _delimited(rng: random.Random, separator: str) -> str:
    rows: list[Sequence[str]] = [_columns(rng)]
    for _ in range(rng.choice([0, 1, 1, 3, 3, 3, 5, 5, 10])):
        row = [_text(rng) for _ in rows[0]]
        if rng.random() < 0.05:
            row = row[: rng.randrange(len(row) + 1)] if rng.random() < 0.5 else [*row, "more"]
        rows.append(row)
    end = rng.choice(["\n", "\n", "\r\n", "\r"])
    if rng.random() < 0.3:  # as programs write that know nothing of quotes
        return end.join(separator.join(row) for row in rows)
    file = io.StringIO()
    quoting: Any = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    csv.writer(file, delimiter=separator, lineterminator=end, quoting=quoting).writerows(rows)
    return file.getvalue() + rng.choice(["", "", end, "\x1a"])


def _value(rng: random.Random) -> Any:
    return _text(rng) if rng.random() < 0.97 else rng.choice(ODD_VALUES)


def _json_lines(rng: random.Random, _: str) -> str:
    names = _columns(rng)
    lines = []
    for _ in range(rng.choice([0, 1, 1, 3, 3, 3, 5, 5, 10])):
        line = json.dumps({name: _value(rng) for name in names}, ensure_ascii=rng.random() < 0.8)
        if rng.random() < 0.05:
            line = line.replace('"label"', '"premise"')  # a key that occurs twice
        if rng.random() < 0.03:
            deep = rng.choice([10, 500, 100_000])
            line = rng.choice(
                ["[]", "5", "null", "{}", "{", '"x"', '{"a":' * deep, "[" * deep + "]" * deep]
            )
        lines.append(line)
    if rng.random() < 0.05:
        return json.dumps([json.loads(line) for line in lines if line.startswith('{"p')])
    return rng.choice(["\n", "\n", "\r\n", "\n\n", "\r"]).join(lines)


def _parquet(rng: random.Random) -> bytes:
    names = _columns(rng)
    n = rng.choice([0, 1, 3, 3, 10])
    file = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_arrays([_array(rng, n) for _ in names], names), file)
    return file.getvalue()


def _array(rng: random.Random, n: int) -> pa.Array:
    if rng.random() < 0.8:
        texts = [_text(rng) for _ in range(n)]
        return pa.array(texts, pa.string()).dictionary_encode() if n == 3 else pa.array(texts)
    now = datetime.datetime(2020, 1, 1)
    make: Any = rng.choice(
        [
            lambda: rng.choice([0, 1, 2]),
            lambda: rng.choice([0.0, 1.0, None]),
            lambda: rng.choice([float("nan"), float("inf"), 0.5, 1e300]),
            lambda: rng.choice([True, False]),
            lambda: rng.choice(["a", None]),
            lambda: rng.choice([b"a", b"\xff"]),
            lambda: rng.choice([[1], [], None]),
            lambda: {"a": 1},
            lambda: now,
            lambda: now.date(),
            lambda: now - now,
            lambda: decimal.Decimal("1.0"),
            lambda: 2**62,
            lambda: None,
        ]
    )
    return pa.array([make() for _ in range(n)])


def _encoded(rng: random.Random, text: str) -> bytes:
    encoding = rng.choice(["utf-8"] * 40 + ["utf-8-sig", "utf-16", "latin-1", "cp1252", "utf-32"])
    errors = "surrogatepass" if encoding.startswith("utf") else "replace"
    return text.encode(encoding, errors)


def _compressed(rng: random.Random, content: bytes) -> bytes:
    whole = gzip.compress(content, 1)
    match rng.randrange(16):
        case 0:
            return whole[: rng.randrange(len(whole))]
        case 1:
            return damaged(rng, whole)
        case 2:
            return content
        case 3:
            return whole + whole
        case 4:
            return whole + b"rest"
        case 5 if rng.random() < 0.2:  # much from little
            return gzip.compress(b"premise,label\n" + b"a b " * 500_000 + b",0\n", 9)
        case _:
            return whole
