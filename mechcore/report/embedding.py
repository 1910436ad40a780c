"""Content carried inside a page: data for its script, and files to download from it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechcore.wording import visible

SVG, CSV, JSON = "image/svg+xml", "text/csv;charset=utf-8", "application/json"

_IN_SCRIPTS = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def script_json(content: Any) -> str:
    r"""JSON that means the same inside a script of a page, whatever its texts hold.

    >>> script_json(["</script>"])
    '["\\u003c/script\\u003e"]'

    Raises:
        ValueError: a number is not finite, which JSON does not know.
    """
    # All but ASCII is escaped too, and so the line separators that would end a line of a script.
    return json.dumps(content, allow_nan=False, separators=(",", ":")).translate(_IN_SCRIPTS)


def data_uri(content: bytes, kind: str) -> str:
    """An address that is the content itself."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


@dataclass(frozen=True)
class Download:
    """A file that the page carries: its name, its size in bytes, and its content as an address."""

    name: str
    size: int
    uri: str


def download(path: Path, kind: str = CSV) -> Download:
    """Carry a file."""
    content = path.read_bytes()
    return Download(visible(path.name), len(content), data_uri(content, kind))
