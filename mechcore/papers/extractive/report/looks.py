"""What the parts of a study of extractive structures are called and in which order they stand."""

from __future__ import annotations

from typing import Any

import pandas as pd

from mechcore.papers.extractive.experiments.freezing import FREEZING
from mechcore.papers.extractive.results import PARTS
from mechcore.report.drawing import BLACK, shorten
from mechcore.report.seeds import in_order, ordered, seeds_in, whole_range
from mechcore.wording import count

MEAN_RANK = "mean rank (0 best)"
CHANCE_LINE: dict[str, Any] = {"color": BLACK, "lw": 0.9, "ls": (0, (4, 2))}
LETTERS = 14
TASKS = ("first-hop", "second-hop")
SCORES = ("informative", "upstream", "downstream")
KINDS = PARTS[0].names
ORDERS = {order: order for order in ("joint", "facts first", "implications first")}
STATES = {"before": "before training", "after": "after training"}
GRAFTED = {"other facts": "without graft", "graft": "graft", "control graft": "control graft"}
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


def sorted_parts(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The same rows by these columns, whose values have an order of their own."""
    known = {"task": TASKS, "score": SCORES, "kind": KINDS, "data": DATA[::-1], "way": WAYS}
    known["state"] = tuple(STATES)
    return ordered(table, **{name: known[name] for name in columns})


def basis(table: pd.DataFrame) -> str:
    """What the numbers of a table are over: prompts and seeds, as a sentence."""
    return f"n = {whole_range(table['n'])} prompts; {count(len(seeds_in(table)), 'seed')}."


def kind_name(kind: str) -> str:
    """What components of a kind are called."""
    return KINDS.get(kind, shorten(kind, LETTERS))


def replay_name(replay: bool) -> str:
    """Whether old data was mixed in."""
    return "with replay" if replay else "without replay"


def slug(name: str) -> str:
    """A name as part of a file's name."""
    return "".join(letter if letter.isalnum() else "-" for letter in name[:40].lower())
