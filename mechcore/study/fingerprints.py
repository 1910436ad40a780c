"""What files hold, in a digest: of checkpoints and of users' data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from mechcore.errors import InputError

CHECKPOINT_FILES = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "*.bin",
    "*.bin.index.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
)
"""What a model and its tokenizer are read from; other files in the folder do not matter."""

_PART = 2**20
"""Bytes read at once."""

Hasher = Callable[[Path], str]
"""SHA-256 of a file, hexadecimal."""


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value, hexadecimal; equal values have equal digests."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_PART):
            digest.update(part)
    return digest.hexdigest()


def checkpoint_content(source: str, revision: str | None, hasher: Hasher = hash_file) -> Any:
    """What a checkpoint holds, as a JSON value.

    Args:
        source: directory, GGUF file or hub id.
        revision: of a hub id.
        hasher: of files.

    Returns:
        Digests by file name; of a hub id its commit.

    Raises:
        InputError: there is no such checkpoint.
    """
    path = Path(source)
    if path.is_file():
        return {path.suffix: hasher(path)}
    if not path.is_dir():
        return {"hub": source, "commit": _commit(source, revision)}
    files = {
        file.name: hasher(file)
        for file in sorted(path.iterdir())
        if file.is_file() and any(fnmatch(file.name, pattern) for pattern in CHECKPOINT_FILES)
    }
    if not files:
        raise InputError(f"checkpoint {source}: no config.json and no weights in this folder")
    return files


def _commit(source: str, revision: str | None) -> str:
    """The commit of a hub id, which is fetched as far as need be."""
    from mechcore.models.loading import read_config

    commit: str | None = getattr(read_config(source, revision), "_commit_hash", None)
    if commit is None:
        raise InputError(
            f"checkpoint {source}: cannot tell its commit, which results are kept under; expected "
            "a snapshot of the hub; name a local folder instead"
        )
    return commit
