"""Tables with a row per seed: their seeds, means over them, and ranges in words."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from mechcore.report.run_folder import RunFolder
from mechcore.wording import DASH, NOT_AVAILABLE, number, whole


def table_of(run: RunFolder, name: str) -> pd.DataFrame | None:
    """The table of that name; None where it was not made or has no row."""
    table = run.table(name)
    return None if table is None or len(table) == 0 else table


def in_order(found: pd.Series, known: Sequence[str]) -> list[str]:
    """The different values of a column: those known in their order, others after them."""
    names = list(dict.fromkeys(found))
    return [name for name in known if name in names] + [name for name in names if name not in known]


def seeds_in(table: pd.DataFrame) -> list[float]:
    """The seeds of a table, in order."""
    return sorted(table["seed"].dropna().unique().tolist())


def means_over_seeds(
    table: pd.DataFrame, keys: Sequence[str], values: Sequence[str]
) -> pd.DataFrame:
    """Means over seeds, each row counting the same; rows as in the table.

    Returns:
        The keys, ``seeds`` (how many), and for every value its mean over the seeds that have one
        under its own name, and the smallest and largest as ``_least`` and ``_most``.
    """
    grouped = table.groupby(list(keys), sort=False, dropna=False)
    of_values = grouped[list(values)]
    parts = [of_values.mean(), of_values.min().add_suffix("_least")]
    parts += [of_values.max().add_suffix("_most"), grouped["seed"].nunique().to_frame("seeds")]
    return pd.concat(parts, axis=1).reset_index()


def ends_of(row: pd.Series, value: str) -> pd.Series:
    """The smallest and largest over seeds, of a row of `means_over_seeds`."""
    return row[[f"{value}_least", f"{value}_most"]]


def whole_range(values: pd.Series) -> str:
    """The smallest and largest of some whole numbers, or the one where they are the same."""
    finite = values.dropna()
    if len(finite) == 0:
        return NOT_AVAILABLE
    low, high = finite.min(), finite.max()
    return whole(low) if low == high else f"{whole(low)}{DASH}{whole(high)}"


def plain_number(value: float) -> str:
    """A setting such as a learning rate, with the digits it has; a dash where it is none."""
    return f"{value:g}" if pd.notna(value) else DASH


def with_ends(value: float, low: float, high: float, digits: int = 2) -> str:
    """A number with its interval where there is one."""
    text, *ends = (number(each, digits) for each in (value, low, high))
    known = pd.notna(low) and pd.notna(high)
    return f"{text} [{ends[0]}, {ends[1]}]" if known else text


def mean_of(part: pd.DataFrame) -> str:
    """What a mean is over: how many seeds the rows have."""
    n = len(seeds_in(part))
    return f"mean of {n} seeds" if n > 1 else "1 seed"
