"""Digests of the content of checkpoints and of users' data files."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
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
    "chat_template.*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
)
"""Files of a model and its tokenizer; other files in the folder do not matter."""

_SETTLED = 2.0
"""Seconds after a file's last change before its digest is cached: clocks may be coarse."""

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
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


class RememberedHashes:
    """`hash_file`, cached for as long as a file does not change."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], str] = {}

    def __call__(self, path: Path) -> str:
        """SHA-256 of a file, hexadecimal."""
        now, stat = time.time(), path.stat()
        times = (stat.st_mtime_ns, stat.st_ctime_ns)
        state = (path.resolve(), stat.st_size, *times, stat.st_ino, stat.st_dev)
        if state in self._known:
            return self._known[state]
        digest = hash_file(path)
        if now - max(times) / 1e9 > _SETTLED:
            self._known[state] = digest
        return digest


def checkpoint_content(source: str, revision: str | None, hasher: Hasher = hash_file) -> Any:
    """Digests of the files of a checkpoint (a folder or GGUF file), or the commit of a hub id."""
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


def architecture_code(source: str, revision: str | None) -> Sequence[object]:
    """The class of a checkpoint's architecture, looked up by name; none if it is unusable."""
    from mechcore.models.architectures.base import architecture_of
    from mechcore.models.loading import read_config

    with suppress(InputError):
        return [type(architecture_of(read_config(source, revision)))]
    return []


def _commit(source: str, revision: str | None) -> str:
    """The commit of a hub id, which is fetched if necessary."""
    from mechcore.models.loading import read_config

    if commit := getattr(read_config(source, revision), "_commit_hash", None):
        return str(commit)
    raise InputError(
        f"checkpoint {source}: its commit, which identifies results, is unknown; expected a "
        "snapshot of the hub; name a local folder instead"
    )
