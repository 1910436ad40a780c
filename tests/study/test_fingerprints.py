"""Digests of values, files and checkpoints: equal for equal content, wherever it lies."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from study.sources import checkpoint_like
from transformers import BertConfig

from mechcore.errors import InputError
from mechcore.study.step import checkpoint_content, digest_of, hash_file

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_a_digest_is_that_of_the_value(value: Any) -> None:
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shuffled(value[key]) for key in reversed(value)}
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    assert digest_of(shuffled(value)) == digest_of(value)
    assert digest_of([value]) != digest_of(value)
    assert len(digest_of(value)) == 64


@pytest.mark.parametrize("size", [0, 2**20, 2**20 + 1])
def test_files_of_any_size(tmp_path: Path, size: int) -> None:
    content = bytes(i % 251 for i in range(1000)) * (size // 1000 + 1)
    (tmp_path / "file").write_bytes(content[:size])
    assert hash_file(tmp_path / "file") == hashlib.sha256(content[:size]).hexdigest()


def test_a_checkpoint_is_what_its_files_hold(tmp_path: Path) -> None:
    path = checkpoint_like(tmp_path / "model")
    content = checkpoint_content(str(path), None)
    assert content == {
        name: hashlib.sha256((path / name).read_bytes()).hexdigest()
        for name in ("config.json", "model.safetensors", "tokenizer.json")
    }
    moved = shutil.copytree(path, tmp_path / "elsewhere" / "other")
    assert checkpoint_content(str(moved), "any revision") == content


def test_whatever_is_read_matters_and_nothing_else(tmp_path: Path) -> None:
    path = checkpoint_like(tmp_path / "model")
    before = checkpoint_content(str(path), None)
    for name in ("README.md", "optimizer.pt", "x/config.json"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("new")
        assert checkpoint_content(str(path), None) == before
    for name in (
        *("config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
        *("pytorch_model.bin", "tokenizer_config.json", "special_tokens_map.json"),
        *("vocab.txt", "merges.txt", "sentencepiece.bpe.model"),
    ):
        (path / name).write_text("new")
        before |= {name: hashlib.sha256(b"new").hexdigest()}
        assert checkpoint_content(str(path), None) == before


def test_a_file_is_known_by_its_content_and_kind(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_text("weights")
    shutil.copy(tmp_path / "a.gguf", tmp_path / "b.gguf")
    content = checkpoint_content(str(tmp_path / "a.gguf"), None)
    assert content == checkpoint_content(str(tmp_path / "b.gguf"), None)
    assert content == {".gguf": hashlib.sha256(b"weights").hexdigest()}


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"no config\.json and no weights"):
        checkpoint_content(str(tmp_path), None)
    with pytest.raises(
        InputError, match="checkpoint no-such/model: neither a local checkpoint nor a reachable hub"
    ):
        checkpoint_content("no-such/model", None)


def test_a_hub_id_is_known_by_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the hub's cache holds tells the commit, so that nothing need be hashed."""
    asked, commit = [], "0123456789abcdef0123456789abcdef01234567"

    def read_config(source: str, revision: str | None) -> BertConfig:
        asked.append((source, revision))
        config = BertConfig()
        config._commit_hash = commit if revision == "v1" else None
        return config

    monkeypatch.setattr("mechcore.models.loading.read_config", read_config)
    assert checkpoint_content("org/name", "v1") == {"hub": "org/name", "commit": commit}
    assert asked == [("org/name", "v1")]
    with pytest.raises(InputError, match=r"org/name: its commit.*a local folder"):
        checkpoint_content("org/name", None)
