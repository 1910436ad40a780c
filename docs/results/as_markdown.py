"""What the scripts that make the tables of these pages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from mechcore.wording import rounded


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float) -> str:
    """A share in percent, without the sign."""
    return f"{rounded(100 * share, 1):.1f}"


def verdicts(table: pd.DataFrame) -> str:
    """The verdicts of a study."""
    rows = [
        [f"{row['claim']}. {row['title']}", row["verdict"], row["figure"]]
        for _, row in table.iterrows()
    ]
    return markdown(["claim", "verdict", "figures"], rows)
