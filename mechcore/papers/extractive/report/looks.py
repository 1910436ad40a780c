"""What the parts of a study of extractive structures are called and in which order they stand."""

from __future__ import annotations

import pandas as pd

from mechcore.papers.extractive.freezing import FREEZING
from mechcore.papers.extractive.results import PARTS
from mechcore.report.seeds import in_order, ordered, seeds_in, whole_range
from mechcore.wording import count, number

TASKS = ("first-hop", "second-hop")
SCORES = ("informative", "upstream", "downstream")
KINDS = PARTS[0].names
ORDERS = ("joint", "facts first", "implications first")
GRAFTED = {
    "other facts": "without graft",
    "graft": "graft",
    "control graft": "control graft",
}
WAYS = FREEZING["way"].names
DATA = (
    "test implications",
    "test facts",
    "other implications",
    "other facts",
    "implications",
    "facts",
)
IMPLICATIONS, TEST_IMPLICATIONS, OTHER_IMPLICATIONS = DATA[4], DATA[0], DATA[2]


def tasks_of(table: pd.DataFrame) -> list[str]:
    """The tasks of a table."""
    return in_order(table["task"], TASKS)


def of(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """The rows with these values."""
    for name, value in values.items():
        table = table[table[name] == value]
    return table


def seed_name(seed: float) -> str:
    """What a seed is called."""
    return f"seed {number(seed, 0)}"


def sorted_parts(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The same rows by these columns, whose values have an order of their own."""
    known = {"task": TASKS, "score": SCORES, "kind": KINDS, "data": DATA[::-1], "way": WAYS}
    return ordered(table, **{name: known[name] for name in columns})


def basis(table: pd.DataFrame) -> str:
    """What the numbers of a table are over: prompts and seeds, as a sentence."""
    return f"n = {whole_range(table['n'])} prompts; {count(len(seeds_in(table)), 'seed')}."


def replay_name(replay: bool) -> str:
    """Whether old data was mixed in."""
    return "with replay" if replay else "without replay"


def slug(name: str) -> str:
    """A name as part of a file's name."""
    return "".join(letter if letter.isalnum() else "-" for letter in name[:40].lower())
