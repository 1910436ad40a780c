"""Scores as maps: by layer and token, or by layer and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True, eq=False)
class Map:
    """Values by layer and column, and the names of the columns; missing ones are NaN."""

    values: np.ndarray
    columns: Sequence[str]


def token_map(scores: pd.DataFrame, columns: Sequence[tuple[str, int]], n_layers: int) -> Map:
    """Scores by layer and token: summed over the components of a layer, mean over seeds.

    Args:
        scores: rows of one task, score and kind.
        columns: as `token_columns` gives them.
        n_layers: layers of the model.
    """
    return Map(
        _matrix(keyed(scores), "column", columns, n_layers),
        [token_name(column) for column in columns],
    )


def head_map(scores: pd.DataFrame, n_heads: int, n_layers: int) -> Map:
    """Scores by layer and head: summed over tokens, mean over seeds."""
    heads = list(range(n_heads))
    return Map(_matrix(scores, "head", heads, n_layers), [str(head) for head in heads])


def token_columns(scores: pd.DataFrame) -> list[tuple[str, int]]:
    """The columns of all seeds: the name of a token, and the how many-th of that name it is.

    Seeds may differ in the length of names, so that the same token stands in another place: the
    seed with most columns gives the order, and those that it lacks come last.
    """
    found = keyed(scores)[["seed", "place", "column"]].drop_duplicates()
    by_seed = [rows.sort_values("place")["column"].tolist() for _, rows in found.groupby("seed")]
    longest_first = sorted(by_seed, key=len, reverse=True)
    return list(dict.fromkeys(column for columns in longest_first for column in columns))


def keyed(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows of one task with ``column``: (token, how many-th of that name in its seed)."""
    places = scores[["seed", "place", "token"]].drop_duplicates().sort_values(["seed", "place"])
    nth = places.groupby(["seed", "token"]).cumcount()
    found = pd.Series(list(zip(places["token"], nth, strict=True)), places.index, dtype=object)
    places = places.assign(column=found)
    return scores.merge(places, on=["seed", "place", "token"])


def _matrix(
    scores: pd.DataFrame, column: str, columns: Sequence[object], n_layers: int
) -> np.ndarray:
    keys = ["layer", column]
    sums = scores.groupby(["seed", *keys])["value"].sum(min_count=1)
    table = sums.groupby(keys).mean().unstack(column)
    names = pd.Index(list(columns), tupleize_cols=False)
    return table.reindex(index=range(n_layers), columns=names).to_numpy(dtype=float)


def token_name(column: tuple[str, int]) -> str:
    """What a column is called."""
    token, nth = column
    return f"{token.strip()} ({nth + 1})" if nth else token.strip()
