"""Content embedded in a page: data for its script, and files to download."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

from mechcore.wording import visible

SVG, CSV, JSON = "image/svg+xml", "text/csv;charset=utf-8", "application/json"

_IN_SCRIPTS = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def script_json(content: Any) -> str:
    """JSON that is safe inside a script element; raises ValueError if a number is not finite."""
    # Everything except ASCII is escaped, including line separators that would end a script line.
    return json.dumps(content, allow_nan=False, separators=(",", ":")).translate(_IN_SCRIPTS)


def data_uri(content: bytes, kind: str) -> str:
    """A data URI with the content; tables, mostly digits and commas, are shorter if escaped."""
    encoded = f";base64,{base64.b64encode(content).decode('ascii')}"
    if kind == CSV:
        encoded = min(encoded, f",{quote_from_bytes(content, safe=',:()+')}", key=len)
    return f"data:{kind}{encoded}"


@dataclass(frozen=True)
class Download:
    """A file embedded in the page: its name, its size in bytes, and its content as a data URI."""

    name: str
    size: int
    uri: str


def download(path: Path, kind: str = CSV) -> Download:
    """Embed a file."""
    content = path.read_bytes()
    return Download(visible(path.name), len(content), data_uri(content, kind))
