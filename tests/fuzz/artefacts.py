"""Files that mechcore writes, as a slip or an enemy may have changed them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fuzz.harness import Maker, changed, damaged


def copies(originals: Sequence[Path]) -> Maker:
    """Makes changed copies of files: of their bytes, or of the JSON that they hold."""

    def write_changed_copy(rng: random.Random, folder: Path) -> Path:
        original = rng.choice(originals)
        content = original.read_bytes()
        if rng.random() < 0.04:
            content = rng.choice([b"", b"{}", b"[]", b"null", b"\0" * 100, b"[" * 10**5])
        elif rng.random() < 0.35:
            content = damaged(rng, content)
        elif original.suffix == ".json":
            content = as_json(changed(rng, json.loads(content)))
        elif original.suffix == ".safetensors":
            content = changed_tensors(rng, content)
        path = folder / original.name
        path.write_bytes(content)
        return path

    return write_changed_copy


def as_json(content: Any) -> bytes:
    return json.dumps(content).encode()


def changed_tensors(rng: random.Random, content: bytes) -> bytes:
    """A safetensors file with another header: tensors, shapes, types, places or metadata."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    kind, metadata = rng.randrange(8), header.get("__metadata__", {})
    tensor = header[rng.choice([name for name in header if name != "__metadata__"])]
    if kind < 3 and metadata:  # facts are JSON inside of JSON
        name = rng.choice(list(metadata))
        try:
            metadata[name] = json.dumps(changed(rng, json.loads(metadata[name])))
        except ValueError:
            metadata[name] = str(changed(rng, metadata[name]))
    elif kind == 3:
        tensor["dtype"] = rng.choice(["F64", "F32", "I32", "BF16", "U8", "BOOL", "F8_E4M3", "X"])
    elif kind == 4:
        tensor["shape"] = rng.choice([tensor["shape"][::-1], [*tensor["shape"], 1], [-1], [], [0]])
    elif kind == 5:
        numbers = bytearray(content[end:])
        for _ in range(min(4, len(numbers) // 8)):
            at = 4 * rng.randrange(len(numbers) // 4)
            numbers[at : at + 4] = rng.choice([b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\0\xc0"])
        content = content[:end] + bytes(numbers)
    else:
        header = changed(rng, header)
    text = as_json(header)
    if rng.random() < 0.02:
        return rng.choice([0, 2**40, 2**63, len(text) - 1]).to_bytes(8, "little") + text
    return len(text).to_bytes(8, "little") + text + content[end:]
