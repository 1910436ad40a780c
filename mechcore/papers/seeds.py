"""Tables with a row per seed: their seeds, means over them, and ranges in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from mechcore.tables import Column
from mechcore.wording import DASH, number, span, whole

SEEDS = Column("seeds", "whole", "seeds that a mean is over")


def in_order(values: pd.Series, known: Sequence[str]) -> list[str]:
    """The distinct values of a column: known ones in their order, then the others."""
    names = list(dict.fromkeys(values))
    return [name for name in known if name in names] + [name for name in names if name not in known]


def ordered(table: pd.DataFrame, **known: Iterable[str]) -> pd.DataFrame:
    """The rows sorted by the first column, then the second, with values as in `in_order`."""
    for name, order in reversed(known.items()):
        place = {value: i for i, value in enumerate(in_order(table[name], list(order)))}
        table = table.sort_values(name, key=lambda values: values.map(place), kind="stable")
    return table


def strongest(table: pd.DataFrame, keys: Sequence[str], column: str, n: int) -> pd.DataFrame:
    """The ``n`` rows of each group with the largest values of a column, in order."""
    by_size = table.sort_values(column, ascending=False, kind="stable")
    return by_size.groupby(list(keys), sort=False).head(n)


def rows_of(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """The rows with these values."""
    for name, value in values.items():
        table = table[table[name] == value]
    return table


def seed_name(seed: float) -> str:
    """The displayed name of a seed."""
    return f"seed {number(seed, 0)}"


def seeds_in(table: pd.DataFrame) -> list[float]:
    """The seeds of a table, in order."""
    return sorted(table["seed"].dropna().unique().tolist())


def means_over_seeds(
    table: pd.DataFrame, keys: Sequence[str], values: Sequence[str]
) -> pd.DataFrame:
    """Means over seeds, number of ``seeds``, and ``_least``, ``_most``, ``_seeds`` of values."""
    grouped = table.groupby(list(keys), sort=False, dropna=False)
    of_values = grouped[list(values)]
    parts = [of_values.mean(), of_values.min().add_suffix("_least")]
    parts += [of_values.max().add_suffix("_most"), of_values.count().add_suffix("_seeds")]
    parts.append(grouped["seed"].nunique().to_frame("seeds"))
    return pd.concat(parts, axis=1).reset_index()


def whole_range(values: pd.Series) -> str:
    """The smallest and largest of some whole numbers, or a single number if they are equal."""
    return span(values.dropna(), whole, DASH)


def mean_of(part: pd.DataFrame) -> str:
    """How many seeds a mean is over, in words."""
    n = len(seeds_in(part))
    return f"mean of {n} seeds" if n > 1 else "1 seed"
