"""What the pages of the papers' studies share: tables of means over seeds, and of every seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from mechcore.papers.seeds import SEEDS, means_over_seeds
from mechcore.report.blocks import OverSeeds, Shown, Table, table_of
from mechcore.tables import Schema

TOP = 5
"""Rows of each group in a table of the largest."""


def seed_tables(
    table: pd.DataFrame,
    schema: Schema,
    keys: Sequence[str],
    values: Sequence[str],
    caption: str,
    *,
    largest_of: Sequence[str] = (),
    by: Callable[[pd.DataFrame], pd.Series] | None = None,
) -> Iterator[Table]:
    """Means over seeds with their range, and every seed; with ``by`` the `TOP` rows of groups."""
    means = means_over_seeds(table, keys, values)
    if by is not None:
        means = _largest(means, largest_of, by)
        table = _largest(table, [*largest_of, "seed"], by)
    shown: list[Shown] = [*keys, SEEDS]
    shown += [column for value in values for column in (value, OverSeeds(value))]
    yield table_of(means, schema, f"{caption}: means over seeds, and their range", shown)
    ends = {end for column in schema.columns for end in column.ends or ()}
    whole = [name for name in schema.names if name in table and name not in ends]
    yield table_of(table, schema, f"{caption}: every seed, with intervals", whole, folded=True)


def _largest(
    rows: pd.DataFrame, groups: Sequence[str], by: Callable[[pd.DataFrame], pd.Series]
) -> pd.DataFrame:
    by_size = rows.assign(_size=by(rows)).groupby(list(groups), sort=False)
    return pd.concat(
        part.sort_values("_size", ascending=False, kind="stable").head(TOP) for _, part in by_size
    )
