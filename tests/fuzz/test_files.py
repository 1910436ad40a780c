"""Hostile files: masks, subnetworks, means, checkpoints, and tables of examples."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import helpers
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from fuzz.harness import (
    ODD_VALUES,
    Maker,
    as_json,
    changed,
    changed_tensors,
    check_all,
    copies,
    damaged,
)
from helpers import Cases, padded, texts

from mechcore.components import Mask, ModelShape
from mechcore.data.encoding import encode
from mechcore.data.readers import read_examples
from mechcore.identity import Identity
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model, load_tokenizer
from mechcore.models.protocol import forward
from mechcore.pruning.subnetwork import HISTORY, Subnetwork
from mechcore.steps.config import ModelConfig
from mechcore.steps.inputs import open_model
from mechcore.worlds.embedded import tiny_encoder_dir

SHAPE = ModelShape(2, 4)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def masks(tmp_path: Path) -> list[Path]:
    """A mask, and several masks in one file."""
    mask = Mask.full(SHAPE).without("L0.H1", "L1.MLP")
    paths = [tmp_path / name for name in ("one.safetensors", "two.safetensors")]
    mask = mask.with_identity(Identity(2, 4, 4, 16, "float32", "a" * 64))
    for path, saved in zip(paths, (mask, Mask.stack([mask, ~mask])), strict=True):
        saved.save(path)
    return paths


def test_masks(masks: list[Path], work: Path) -> None:
    check_all(work, 120, copies(masks), lambda path: repr(Mask.load(path)))


def test_subnetworks(tmp_path: Path, work: Path) -> None:
    history = pd.DataFrame([[0.0] * len(HISTORY)] * 2, columns=list(HISTORY))
    mask = Mask.full(SHAPE).without("L0.H1")
    path = tmp_path / "subnetwork.safetensors"
    Subnetwork(mask, 0.5, 42, torch.randn(2, 5), "l0", history).save(path)
    check_all(work, 80, copies([path]), lambda path: Subnetwork.load(path).name)


def test_means(cases: Cases, tmp_path: Path, work: Path) -> None:
    model = cases.get("bert").model
    path = tmp_path / "means.safetensors"
    MeanActivations.compute(model, padded(texts(), "right"), n_samples=2).save(path)
    check_all(work, 80, copies([path]), lambda path: MeanActivations.load(path, model))


SMALL = ("config.json", "tokenizer.json", "tokenizer_config.json")
WEIGHTS = "model.safetensors"
ADDED = (
    *("pytorch_model.bin", "model.safetensors.index.json", "adapter_config.json", "vocab.txt"),
    *("special_tokens_map.json", "added_tokens.json", "generation_config.json", "merges.txt"),
    *("chat_template.jinja", "spiece.model", "modeling_bert.py", "processor_config.json"),
)
KEYS = (
    *("auto_map", "quantization_config", "transformers_weights", "attn_implementation"),
    *("torch_dtype", "dtype", "tie_word_embeddings", "num_labels", "hidden_act", "rope_scaling"),
    *("tokenizer_class", "model_type", "architectures", "id2label", "pad_token_id", "is_decoder"),
    *("num_hidden_layers", "num_attention_heads", "max_position_embeddings", "vocab_size"),
)


def changed_checkpoints(original: Path) -> Maker:
    """Makes copies of a checkpoint in which one file is damaged, changed, lost or added."""

    def write_changed_checkpoint(rng: random.Random, folder: Path) -> Path:
        path = Path(shutil.copytree(original, folder / "checkpoint"))
        file = path / rng.choice([*SMALL, "config.json", "config.json", WEIGHTS])
        content = file.read_bytes()
        kind = rng.randrange(10)
        if kind == 0:
            file.unlink()
        elif kind == 1:
            file.write_bytes(damaged(rng, content))
        elif kind == 2:
            other = rng.choice([b"", b"{}", b"[]", b"[" * 10**5, content])
            (path / rng.choice(ADDED)).write_bytes(other)
        elif file.name == WEIGHTS:
            file.write_bytes(changed_tensors(rng, content))
        elif kind < 6:
            values = json.loads(content)
            values[rng.choice(KEYS)] = rng.choice(ODD_VALUES)
            file.write_bytes(as_json(values))
        else:
            file.write_bytes(as_json(changed(rng, json.loads(content))))
        return path

    return write_changed_checkpoint


def foreign_tokenizers(original: Path) -> Maker:
    """Makes copies of a checkpoint whose tokenizer has ids moved, or tokens more or less."""

    def write_foreign_tokenizer(rng: random.Random, folder: Path) -> Path:
        path = Path(shutil.copytree(original, folder / "checkpoint"))
        file = path / "tokenizer.json"
        content = json.loads(file.read_text())
        words = content["model"]["vocab"]
        kind = rng.randrange(4)
        if kind == 0:  # a larger vocabulary
            words |= {f"more{i}": len(words) + i for i in range(rng.choice([1, 5, 1000]))}
        elif kind == 1:  # the ids of one
            moved = rng.choice([w for w in words if not w.startswith("[")])
            words[moved] = rng.choice([helpers.VOCABULARY - 1, helpers.VOCABULARY, 30_000, 2**31])
        elif kind == 2:  # a smaller one
            for word in [w for w in words if not w.startswith("[")][rng.randrange(1, 5) :]:
                del words[word]
        file.write_text(json.dumps(content))
        return path

    return write_foreign_tokenizer


def test_foreign_tokenizers(cases: Cases, tmp_path: Path) -> None:
    words = helpers.word_tokenizer().get_vocab()
    text = " ".join(word for word in words if not word.startswith("["))

    def read(path: Path) -> None:
        loaded = open_model(ModelConfig(source=str(path)))
        ids = loaded.tokenizer([f"{text} more0 more4 more999"], return_tensors="pt")
        assert forward(loaded.model, ids).isfinite().all()

    tally = check_all(tmp_path, 60, foreign_tokenizers(cases.path("bert")), read)
    assert min(tally.read, tally.refused) >= 10


def test_checkpoints(cases: Cases, tmp_path: Path) -> None:
    def read(path: Path) -> None:
        load_model(path)
        load_tokenizer(path)("the cat saw")

    check_all(tmp_path, 75, changed_checkpoints(cases.path("bert")), read)


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
