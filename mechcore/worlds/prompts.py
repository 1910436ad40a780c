"""Prompts made from templates, for language models: indirect objects, and years in order.

The tasks are those of arXiv 2211.00593 and 2305.00586, reworded. Answers are single tokens for
GPT-2 and SmolLM2; with other tokenizers, a word may be refused.
"""

from __future__ import annotations

import random
from typing import Literal

import pandas as pd

from mechcore.errors import InputError
from mechcore.worlds.draws import pick

NAMES = [
    *("Anna", "Alice", "Mary", "Sarah", "Emma", "Laura", "Julia", "Jane", "Kate", "Lucy"),
    *("John", "James", "Tom", "David", "Mark", "Paul", "Peter", "Simon", "Jack", "Ben"),
]
PLACES = ["park", "market", "office", "school", "station", "library", "garden", "museum"]
THINGS = ["book", "letter", "key", "ticket", "basket", "picture", "drink", "ring"]
OPENINGS = (
    "After {a} and {b} left the {place},",
    "When {a} and {b} met at the {place},",
    "While {a} and {b} were waiting near the {place},",
    "Since {a} and {b} often went to the {place},",
)
GIFTS = (
    "{giver} gave a {thing} to",
    "{giver} decided to hand the {thing} to",
    "{giver} brought the {thing} and showed it to",
)
EVENTS = ["war", "siege", "journey", "dispute", "drought", "voyage", "rebellion", "famine"]


def indirect_objects(n: int, seed: int = 0) -> pd.DataFrame:
    """Two people are named, one of them gives; the other receives (arXiv 2211.00593).

    Columns are ``prompt``; ``correct`` and ``wrong``: the receiver and the giver;
    ``counterfactual``: the prompt in which a third person gives, so that neither is favoured;
    ``subset``: whether the receiver is named first or second; ``cluster``: the template.
    """
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        rest = [*NAMES]
        receiver, giver, other = (rest.pop(int(rng.random() * len(rest))) for _ in range(3))
        first = rng.random() < 0.5
        first_part, second_part = pick(range(len(OPENINGS)), rng), pick(range(len(GIFTS)), rng)
        a, b = (receiver, giver) if first else (giver, receiver)
        words = {"a": a, "b": b, "place": pick(PLACES, rng), "thing": pick(THINGS, rng)}
        prompt = f"{OPENINGS[first_part]} {GIFTS[second_part]}"
        rows.append(
            {
                "prompt": prompt.format(giver=giver, **words),
                "correct": f" {receiver}",
                "wrong": f" {giver}",
                "counterfactual": prompt.format(giver=other, **words),
                "subset": "receiver first" if first else "receiver second",
                "cluster": f"{first_part + 1}.{second_part + 1}",
            }
        )
    return pd.DataFrame(rows)


def later_years(n: int, seed: int = 0, *, digits: Literal[1, 2] = 2) -> pd.DataFrame:
    """An event ends in a later year of its century (*greater-than*, arXiv 2305.00586).

    The answer is the rest of the year: two digits in one token as in GPT-2, or one digit, for
    tokenizers that split numbers. Columns are ``prompt``; ``correct`` and ``wrong``: lists of later
    and of earlier years (with two digits, also the same year); ``counterfactual``: the prompt that
    begins early in its century (01 or 15), so that most years are later; ``subset``: the event.

    Raises:
        InputError: ``digits`` is neither 1 nor 2.
    """
    if digits not in (1, 2):
        raise InputError(f"digits: found {digits!r}; expected 1 or 2")
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        century, event = pick(("11", "12", "13", "14", "15", "16", "17"), rng), pick(EVENTS, rng)
        year = 2 + int(rng.random() * (97 if digits == 2 else 7))
        begins = f"The {event} lasted from the year {century}"
        ends = f" to the year {century}"
        size = 10**digits
        of = {"earlier": range(year + (digits == 2)), "later": range(year + 1, size)}
        answers = {name: [f"{y:0{digits}d}" for y in years] for name, years in of.items()}
        rest = "" if digits == 2 else "5"
        rows.append(
            {
                "prompt": f"{begins}{year:0{digits}d}{rest}{ends}",
                "correct": answers["later"],
                "wrong": answers["earlier"],
                "counterfactual": f"{begins}{1:0{digits}d}{rest}{ends}",
                "subset": event,
            }
        )
    return pd.DataFrame(rows)
