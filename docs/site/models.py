"""The table of supported models, from what the tests load."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

PLACE = (
    "*Pages built by `mkdocs serve` list the families here, from [this table](tables/models.csv).*"
)
TABLE = Path(__file__).resolve().parents[1] / "tables" / "models.csv"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the table in its place."""
    return markdown.replace(PLACE, reference()) if PLACE in markdown else markdown


def reference() -> str:
    """One row per family, encoders first."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["kind"] != "encoder")
    lines = ["| family | kind | loads as | sweeps | export | training |", "|" + "---|" * 6]
    return "\n".join([*lines, *(f"| {' | '.join(row.values())} |" for row in rows)])
