"""Hostile files of examples: as they come from the wild, or from an enemy."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from fuzz.harness import ODD_VALUES, check_all, damaged

from mechcore.data.encoding import encode
from mechcore.data.readers import read_examples
from mechcore.models import load_tokenizer
from mechcore.worlds.embedded import tiny_encoder_dir

ODD_NAMES = ("", " ", "label", "premise", "=1+1", "<script>", "a\tb", 'a"b', "Label", "\ufeff", "0")
TEXTS = (
    *("The cat saw the dog.", "Who ran?", "yes", "entailment", "0", "1", "-1", "1.0", "1e5"),
    *("", " ", "nan", "NA", "None", "null", "-", "inf", "all", "007", "true", "2020-01-01"),
    *("=1+1", "@SUM(A1)", "\t=1", "<script>alert(1)</script>", "&amp;", "{{7*7}}", "x" * 10**6),
    *('a "quoted" word', '"', '""', "a,b", "a\tb", "a\nb", "a\rb", "\r\n", "\\", "\\n", "#"),
    *("Grüße", "日本語", "🙂", "\u202eright to left", "a\u0000b", "\u2028", "\ufeff", "e\u0301"),
)
KINDS = ("csv", "tsv", "jsonl", "parquet", "csv.gz", "tsv.gz", "jsonl.gz")


def write_examples(rng: random.Random, folder: Path) -> Path:
    """A table in any of the formats, odd in one way or many."""
    kind = rng.choice(KINDS)
    stem = rng.choice(["data"] * 12 + ["a b", "ü", "<b>", "=x", "a.b", "-x", "x" * 200, "a\nb"])
    path = folder / f"{stem}.{kind}"
    names = ["premise", "hypothesis", "label", *(["subset"] if rng.random() < 0.4 else [])]
    if rng.random() < 0.2:
        names[rng.randrange(len(names))] = rng.choice([*ODD_NAMES, "text_a", "sentence"])
    rows = [[_value(rng, kind) for _ in names] for _ in range(rng.choice([0, 1, 3, 3, 5, 10]))]
    content = _written(rng, kind, names, rows)
    if rng.random() < 0.15:
        content = damaged(rng, content)
    if kind.endswith("gz"):
        content = gzip.compress(content, 1)
        content = damaged(rng, content) if rng.random() < 0.1 else content
    path.write_bytes(rng.choice([b"", b"\n", b"\0"]) if rng.random() < 0.02 else content)
    return path


def _value(rng: random.Random, kind: str) -> Any:
    if kind.startswith("jsonl") and rng.random() < 0.03:
        return rng.choice(ODD_VALUES)
    return rng.choice(TEXTS[:4] if rng.random() < 0.95 else TEXTS)


def _written(rng: random.Random, kind: str, names: list[str], rows: list[list[Any]]) -> bytes:
    if kind == "parquet":
        columns = [pa.array([row[i] for row in rows], pa.string()) for i in range(len(names))]
        if rng.random() < 0.4:
            odd: Any = rng.choice([[0, 1], [0.0, None], [b"\xff"], [[1], []], [{"a": 1}], [True]])
            columns[-1] = pa.array([odd[i % len(odd)] for i in range(len(rows))])
        file = io.BytesIO()
        pyarrow.parquet.write_table(pa.Table.from_arrays(columns, names), file)
        return file.getvalue()
    end = rng.choice(["\n", "\n", "\r\n", "\r"])
    if kind.startswith("jsonl"):
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
        if rng.random() < 0.1:
            lines.append(rng.choice(["[]", "5", "null", "{", '{"a":' * 10**5, '{"a": 1, "a": 2}']))
        text = end.join(lines)
    else:
        separator = "\t" if kind.startswith("tsv") else ","
        if rows and rng.random() < 0.1:
            rows[-1] = rows[-1][:-1] if rng.random() < 0.5 else [*rows[-1], "more"]
        file_of_text = io.StringIO()
        writer = csv.writer(file_of_text, delimiter=separator, lineterminator=end)
        writer.writerows([names, *rows])
        text = file_of_text.getvalue()
        if rng.random() < 0.3:  # as programs write that know nothing of quotes
            text = end.join(separator.join(row) for row in [names, *rows])
    encoding = rng.choice(["utf-8"] * 20 + ["utf-8-sig", "utf-16", "latin-1"])
    return text.encode(encoding, "surrogatepass" if encoding.startswith("utf") else "replace")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(tiny_encoder_dir())


@pytest.mark.parametrize("labelled", [True, False])
def test_examples(tmp_path: Path, tokenizer: Any, labelled: bool) -> None:
    def read(path: Path) -> None:
        examples = read_examples(path, labelled=labelled)
        assert examples.fingerprint
        assert len(examples.sample(2, seed=0)) <= 2
        encoded = encode(examples, tokenizer, max_length=48, words=True)
        assert max(map(len, encoded.input_ids)) <= 48
        assert len(encoded) == len(examples)

    check_all(tmp_path, 180, write_examples, read)
