"""The map of the code, made from the import contracts in ``pyproject.toml``.

``python docs/code_map.py`` writes it into ``docs/architecture.md``; Python 3.11 or newer.
"""

from __future__ import annotations

import re
from pathlib import Path

import tomllib

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "architecture.md"
BEGIN, END = "<!-- code map -->", "<!-- end of code map -->"


def layers() -> list[str]:
    """Of the contract, from the top; modules of one layer are parted by bars."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (rooms,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return list(rooms)


def drawn(rows: list[str]) -> str:
    """One line for each layer."""
    width = max(map(len, rows)) + 2
    rule = f"+{'-' * width}+"
    return "\n".join([rule, *(f"|{row.center(width)}|\n{rule}" for row in rows)])


def shown(page: str) -> str:
    """The map that the page shows."""
    return re.search(rf"{BEGIN}\n```text\n(.*?)\n```\n{END}", page, re.DOTALL)[1]


def main() -> None:
    """Write the map into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    block = f"{BEGIN}\n```text\n{drawn(layers())}\n```\n{END}"
    PAGE.write_text(before + block + after, encoding="utf-8")


if __name__ == "__main__":
    main()
