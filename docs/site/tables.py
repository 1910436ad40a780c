"""The reference of all tables, from their schemas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mechcore.ablation.joint.exact import DIVIDENDS, SHAPLEY
from mechcore.report.kinds import REPORTS
from mechcore.tables import Schema

PLACE = "*Pages built by `mkdocs serve` show the tables here.*"
TITLES = {"heuristic-core": "The main study", "cognitive": "Study of the cognitive task"}
TITLES |= {"extractive": "Study of extractive structures"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the columns of every table in their place."""
    return markdown.replace(PLACE, reference()) if PLACE in markdown else markdown


def reference() -> str:
    """One section per kind of study, and in it one per table."""
    kinds = {TITLES[name]: REPORTS[name].tables() for name in TITLES}
    kinds |= {"Ablation of all subsets": (DIVIDENDS, SHAPLEY)}
    lines = []
    for title, schemas in kinds.items():
        lines.append(f"## {title}\n")
        for schema in schemas:
            lines += section(schema)
    return "\n".join(lines)


def section(schema: Schema) -> Iterator[str]:
    """A table: what a row is, and its columns."""
    yield f"### {schema.name}.csv\n\n{schema.meaning}\n"
    yield "| column | type | unit | meaning |\n| :-- | :-- | :-- | :-- |"
    for column in schema.columns:
        meaning = column.meaning.replace("``", "`") + (" (optional)" if column.optional else "")
        unit = "" if column.kind == "share" else column.unit
        kind = {"points": "difference of shares", "seed": "whole, exact"}.get(
            column.kind, column.kind
        )
        yield f"| `{column.name}` | {kind} | {unit} | {meaning} |"
    yield ""
