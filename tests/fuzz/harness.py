"""Hostile files by the hundred: either they are read, or an `InputError` names the file.

A case is made from its number alone; ``MECHCORE_FUZZ=10`` tries ten times as many.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mechcore.errors import InputError, MechcoreWarning

TIMES = int(os.environ.get("MECHCORE_FUZZ", "1"))
LONGEST_MESSAGE = 6000
"""Characters; a message may quote one odd value, but no whole file."""

Maker: TypeAlias = Callable[[random.Random, Path], Path]
"""Writes one case into an empty folder and says where."""


@dataclass
class Tally:
    """How many cases were read, and how many refused."""

    read: int = 0
    refused: int = 0


def check_all(folder: Path, number: int, make: Maker, read: Callable[[Path], Any]) -> Tally:
    """Try ``number`` cases, or as many times more as asked for, and fail if any went wrong."""
    tally, wrong = Tally(), []
    for case in range(number * TIMES):
        place = folder / str(case)
        place.mkdir()
        path = make(random.Random(f"{make.__name__} {case}"), place)
        problem = _problem(path, place, read, tally)
        if problem:
            wrong.append(f"{make.__name__}, case {case}, {path.name!r}: {problem}")
        shutil.rmtree(place)
    shown = "\n".join(wrong[:20])
    assert not wrong, f"{len(wrong)} of {number * TIMES} cases went wrong:\n{shown}"
    assert tally.read, "no case was read: they try nothing"
    assert tally.refused, "no case was refused: they are not hostile"
    return tally


def _problem(path: Path, place: Path, read: Callable[[Path], Any], tally: Tally) -> str | None:
    """What is wrong with what happens to one case; None if nothing."""
    before = _listing(place)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for fine in (MechcoreWarning, DeprecationWarning, FutureWarning):
                warnings.simplefilter("ignore", fine)
            read(path)
        tally.read += 1
    except InputError as error:
        tally.refused += 1
        message = str(error)
        if str(path) not in message:
            return f"the message does not name the file: {message[:300]}"
        if len(message.replace(str(path), "")) > LONGEST_MESSAGE:
            return f"a message of {len(message)} characters: {message[:300]}"
    except BaseException as error:  # a panic of compiled code is none of Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)
        inside = [step for step in where if "mechcore" in step.filename]
        own = (inside or where)[-1]
        return f"{type(error).__name__} at {Path(own.filename).name}:{own.lineno}: {error}"[:400]
    return None if _listing(place) == before else f"wrote {_listing(place) - before}"


def _listing(place: Path) -> set[tuple[str, int]]:
    return {(str(path.relative_to(place)), path.stat().st_size) for path in place.rglob("*")}


def damaged(rng: random.Random, content: bytes) -> bytes:
    """The content with random bytes lost, changed, repeated or added."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at, length = rng.randrange(len(data) + 1), rng.choice([1, 1, 40, len(data)])
        odd = rng.choice([b"\0", b"\r", b"\n", b"\xff", b'"', b"\xed\xa0\x80", b"\xff\xfe"])
        lost, added = data[at : at + length], rng.choice([b"", odd, rng.randbytes(9)])
        data[at : at + length] = rng.choice([added, lost + lost, bytes(b ^ 4 for b in lost)])
    return bytes(data)


ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 10**6, 2**31, 2**63, 10**30, -(10**30)),
    *(0.5, 1e308, float("nan"), float("inf"), -float("inf")),
    *("", " ", "x", "0", "-1", "nan", "../x", "/etc/passwd", "a\0b", "\ud800", "=1+1", "<b>"),
    *("L0.H0", "True", "null", "{}", "http://example.org/x", "\u202e", "x" * 5000),
    *([], {}, [1, "a", None], {"a": {"b": []}}, [[]], [[[[[[0]]]]]], {"": ""}),
)
"""Values that are seldom what a file's reader expects."""


def changed(rng: random.Random, content: Any) -> Any:
    """Nested lists and objects with a random part replaced, removed, renamed or added."""
    if not isinstance(content, (dict, list)) or not content or rng.random() < 0.15:
        return rng.choice(ODD_VALUES)
    parts = content.items() if isinstance(content, dict) else enumerate(content)
    new: dict[Any, Any] = dict(parts)
    key, kind = rng.choice(list(new)), rng.randrange(6)
    if kind == 0:
        del new[key]
    elif kind == 1:
        new[rng.choice(["x", "", "a\0b", "__class__", f"{key} "])] = new.pop(key)
    elif kind == 2:
        new[rng.choice(list(new))] = new[key]
    else:
        new[key] = changed(rng, new[key])
    return new if isinstance(content, dict) else list(new.values())


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
