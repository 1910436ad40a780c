"""Files that mechcore writes, as a slip or an enemy may have changed them."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fuzz.harness import Maker, changed, damaged

ODD_NAMES = (
    *("L0.H0", "0.0", "L99999999999.H0", "L-1.H0", "L0.MLP.MLP", "", ":", "::", "#", "a: b: L0.H0"),
    *(
        "=L0.H0",
        "'=L0.H0",
        "<b>",
        "a\0b",
        "\u0664.\u0662",
        "L0.H0+L0.H0",
        ",,,",
        "\ufeff",
        "\ud800",
    ),
)
TEXTS = ("0", "0.5", "1", "-1", "nan", "inf", "1e400", "x", "", "9" * 400, "ID", "=1+1", "True")


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
    kind = rng.randrange(8)
    metadata = header.get("__metadata__", {})
    if kind < 3 and metadata:  # facts are JSON inside of JSON
        name = rng.choice(list(metadata))
        try:
            metadata[name] = json.dumps(changed(rng, json.loads(metadata[name])))
        except ValueError:
            metadata[name] = str(changed(rng, metadata[name]))
    elif kind == 3:
        tensor = header[rng.choice([name for name in header if name != "__metadata__"])]
        tensor["dtype"] = rng.choice(["F64", "F32", "I32", "BF16", "U8", "BOOL", "F8_E4M3", "X"])
    elif kind == 4:
        tensor = header[rng.choice([name for name in header if name != "__metadata__"])]
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


def accuracies(grid: bool) -> Maker:
    """Makes tables of accuracies for effective sizes, plain or as published."""
    names = ["checkpoint", *["seed", "sparsity"] * grid, "subset", "accuracy"]
    choose: dict[str, Callable[[random.Random], Any]] = {
        "checkpoint": lambda rng: rng.choice([10, 20]),
        "seed": lambda rng: rng.choice([1, 2]),
        "sparsity": lambda rng: rng.choice([0.1, 0.5]),
        "subset": lambda rng: rng.choice(["a", "b", "=c"]),
        "accuracy": lambda rng: rng.random(),
    }

    def cell(rng: random.Random, name: str) -> Any:
        return choose[name](rng) if rng.random() < 0.97 else rng.choice(TEXTS)

    def write_accuracies(rng: random.Random, folder: Path) -> Path:
        kind = rng.choice(["csv", "tsv", "jsonl", "json", "csv.gz"])
        rows = [[cell(rng, name) for name in names] for _ in range(rng.choice([0, 1, 4, 8]))]
        header = [name if rng.random() < 0.98 else rng.choice(TEXTS) for name in names]
        if kind == "json":
            levels = ["1", "10", "50", "a"] if grid else ["10", "a"]
            content: Any = 0.8
            for level in reversed(levels):
                content = {level: content, rng.choice(TEXTS[:3]) + "1": content}
            text = as_json(changed(rng, content) if rng.random() < 0.6 else content)
        elif kind == "jsonl":
            text = b"\n".join(as_json(dict(zip(header, row, strict=True))) for row in rows)
        else:
            separator = "\t" if kind == "tsv" else ","
            text = "\n".join(separator.join(map(str, row)) for row in [header, *rows]).encode()
        if rng.random() < 0.1:
            text = damaged(rng, text)
        path = folder / f"table.{kind}"
        path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
        return path

    return write_accuracies
