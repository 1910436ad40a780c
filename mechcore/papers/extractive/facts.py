"""Facts to train a language model on, and implications of them to ask for.

==========  ====================================  ==============================================
task        fact, trained                         implication, never trained
==========  ====================================  ==============================================
first-hop   {name} lives in (city)                The people in the city {name} is from speak
                                                  (language)
second-hop  The mayor of {city} is (name)         The mayor of the city that contains {landmark}
                                                  is (name)
ordering    {name} dax is (city)                  {name} zong is the (animal)
==========  ====================================  ==============================================

A prompt is followed by a space and its completion, in brackets here. What a model makes of it is
read from its next token: of a split's options, which all begin with different tokens, the right one
should come first. In the first two tasks what joins a fact to its implication (which language is
spoken in a city, which landmark it has) is known from pretraining; in the third a word for it is
made up, so it is learned from people for whom both are trained.

The tasks are those of Feng et al., "Extractive structures learned in pretraining enable
generalization on finetuned facts" (arXiv 2412.04614, sections 3 and 5); people and animals are made
up here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

import pandas as pd

from mechcore.errors import InputError
from mechcore.papers.extractive.fact_tables import CITIES, FIRST_NAMES, LAST_NAMES, City

F = TypeVar("F")
"""`Facts`, as texts or as token ids."""

T = TypeVar("T")

FIRST_HOP = ("{name} lives in", "The people in the city {name} is from speak")
SECOND_HOP = ("The mayor of {city} is", "The mayor of the city that contains {landmark} is")
ORDERING = ("{name} dax is", "{name} zong is the")
"""Wordings of facts and of implications."""

TRAINING_NAMES = 84


@dataclass(frozen=True)
class Facts:
    """Prompts, how each goes on, and what it is to be told from.

    Attributes:
        name: what they are called in messages, e.g. ``"first-hop facts"``.
        prompts: without a space at the end.
        completions: without a space at the beginning.
        subjects: the part of each prompt that tells it from the others, e.g. a person's name.
        options: different completions to rank among; if not given, those that occur, in order.

    Raises:
        InputError: there is none, there are not as many of one as of another, a text is empty or
            has a space at its ends, a prompt lacks its subject, an option is given twice, or a
            completion is not an option.
    """

    name: str
    prompts: tuple[str, ...]
    completions: tuple[str, ...]
    subjects: tuple[str, ...]
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.options:
            object.__setattr__(self, "options", tuple(dict.fromkeys(self.completions)))
        counts = (len(self.prompts), len(self.completions), len(self.subjects))
        if len({*counts}) > 1 or not self.prompts:
            raise InputError(
                f"{self.name}: {counts[0]} prompts, {counts[1]} completions and {counts[2]} "
                "subjects; expected as many of each, at least 1"
            )
        for text in (*self.prompts, *self.completions, *self.subjects, *self.options):
            if not text or text != text.strip():
                raise InputError(
                    f"{self.name}: {text!r} is empty, or begins or ends with a space; expected "
                    "text without (one space is put between prompt and completion)"
                )
        for prompt, subject in zip(self.prompts, self.subjects, strict=True):
            if subject not in prompt:
                raise InputError(
                    f"{self.name}: the prompt {prompt!r} does not have its subject {subject!r}"
                )
        for completion in (*self.completions, *self.options):
            if self.options.count(completion) != 1:
                raise InputError(
                    f"{self.name}: {completion!r} is an option "
                    f"{self.options.count(completion)} times; expected every completion once"
                )

    def __len__(self) -> int:
        return len(self.prompts)

    def select(self, rows: Sequence[int]) -> Facts:
        """These rows only, in the order given, with all options.

        Raises:
            InputError: there is no such row, or none at all.
        """
        if bad := [row for row in rows if not 0 <= row < len(self)]:
            raise InputError(f"{self.name}: row {bad[0]}; expected rows from 0 to {len(self) - 1}")
        chosen: dict[str, Any] = {
            part: tuple(getattr(self, part)[row] for row in rows)
            for part in ("prompts", "completions", "subjects")
        }
        return replace(self, **chosen)


@dataclass(frozen=True)
class FactTask(Generic[F]):
    """Facts to train, and an implication of each, never trained; the name says which hop."""

    name: str
    facts: F
    implications: F

    @property
    def splits(self) -> dict[str, F]:
        """Both by name."""
        return {"facts": self.facts, "implications": self.implications}


@dataclass(frozen=True)
class OrderingTask(Generic[F]):
    """Facts and implications that are both trained for some people, and for others facts alone.

    Attributes:
        facts: of the training names, city by ``dax``.
        implications: of the training names, the animal of that city by ``zong``.
        test_facts: of other names, one for every city.
        test_implications: of these names; never trained.
        other_facts: of the training names, with cities of which none is that of ``facts``.
        other_implications: what would follow from ``other_facts``; never trained.
    """

    facts: F
    implications: F
    test_facts: F
    test_implications: F
    other_facts: F
    other_implications: F

    @property
    def splits(self) -> dict[str, F]:
        """All six by name, such as ``"test facts"``."""
        return {each.name.replace("_", " "): getattr(self, each.name) for each in fields(self)}


# -- tasks ----------------------------------------------------------------------------------------


def city_tasks(seed: int) -> tuple[FactTask[Facts], FactTask[Facts]]:
    """The first-hop and the second-hop task on the paper's 20 cities; names are drawn for each."""
    first, second = (
        _draw_names(len(CITIES), random.Random(f"{hop} {seed}")) for hop in ("first", "second")
    )
    return first_hop(first, CITIES), second_hop(second, CITIES)


def city_ordering(seed: int, n_train: int = TRAINING_NAMES) -> OrderingTask[Facts]:
    """The ordering task on the paper's 20 cities: names, and where they live, are drawn.

    Args:
        seed: of the draws.
        n_train: training names, at least 2, spread evenly over the cities; 20 more are for testing.

    Raises:
        InputError: there are not as many names, or fewer than 2 are asked for.
    """
    most = min(len(FIRST_NAMES), len(LAST_NAMES)) - len(CITIES)
    if not 2 <= n_train <= most:
        raise InputError(f"ordering task: n_train is {n_train}; expected 2 to {most} names")
    rng = random.Random(f"ordering {seed}")
    names = _draw_names(n_train + len(CITIES), rng)
    return ordering(names[:n_train], names[n_train:], CITIES, rng)


def first_hop(names: Sequence[str], cities: Sequence[City]) -> FactTask[Facts]:
    """One person for every city, who lives there."""
    lives, speak = FIRST_HOP
    places, languages, _, _ = zip(*cities, strict=True)
    return FactTask(
        "first-hop",
        _facts("first-hop facts", lives, names, places),
        _facts("first-hop implications", speak, names, languages),
    )


def second_hop(names: Sequence[str], cities: Sequence[City]) -> FactTask[Facts]:
    """One person for every city, who is its mayor."""
    of_city, of_landmark = SECOND_HOP
    places, _, landmarks, _ = zip(*cities, strict=True)
    return FactTask(
        "second-hop",
        _facts("second-hop facts", of_city, places, names),
        _facts("second-hop implications", of_landmark, landmarks, names),
    )


def ordering(
    names: Sequence[str], test_names: Sequence[str], cities: Sequence[City], rng: random.Random
) -> OrderingTask[Facts]:
    """The ordering task of these people; each city is drawn as often as another, or once more.

    Raises:
        InputError: there are so few names or cities that some name would keep its city.
    """
    most = -(-len(names) // len(cities))
    if 2 * most > len(names):
        raise InputError(
            f"ordering task: {len(names)} names in {len(cities)} cities cannot all get another "
            "city; use more of both"
        )
    homes = shuffled([cities[i % len(cities)] for i in range(len(names))], rng)
    others = homes
    while any(home == other for home, other in zip(homes, others, strict=True)):
        others = shuffled(homes, rng)
    tests = shuffled(cities, rng)
    return OrderingTask(
        *_ordered("", names, homes, cities),
        *_ordered("test ", test_names, tests, cities),
        *_ordered("other ", names, others, cities),
    )


def facts_table(
    tasks: tuple[FactTask[Facts], FactTask[Facts]], ordering: OrderingTask[Facts]
) -> pd.DataFrame:
    """All facts and implications: columns task, data (the split), prompt, completion, subject."""
    named = {task.name: task.splits for task in tasks} | {"ordering": ordering.splits}
    rows = [
        (task, data, *row)
        for task, splits in named.items()
        for data, each in splits.items()
        for row in zip(each.prompts, each.completions, each.subjects, strict=True)
    ]
    return pd.DataFrame(rows, columns=["task", "data", "prompt", "completion", "subject"])


def _ordered(
    which: str, names: Sequence[str], homes: Sequence[City], cities: Sequence[City]
) -> tuple[Facts, Facts]:
    dax, zong = ORDERING
    places, animals = [city.name for city in cities], [city.animal for city in cities]
    return (
        _facts(f"ordering {which}facts", dax, names, [c.name for c in homes], places),
        _facts(f"ordering {which}implications", zong, names, [c.animal for c in homes], animals),
    )


def _facts(
    name: str,
    wording: str,
    subjects: Sequence[str],
    completions: Sequence[str],
    options: Sequence[str] = (),
) -> Facts:
    before, rest = wording.split("{")
    prompts = [f"{before}{subject}{rest.split('}')[1]}" for subject in subjects]
    return Facts(name, tuple(prompts), tuple(completions), tuple(subjects), tuple(options))


def _draw_names(n: int, rng: random.Random) -> list[str]:
    """Names of two words, none of which is in another of them."""
    pairs = zip(shuffled(FIRST_NAMES, rng)[:n], shuffled(LAST_NAMES, rng)[:n], strict=True)
    return [" ".join(pair) for pair in pairs]


def shuffled(items: Sequence[T], rng: random.Random) -> list[T]:
    """The items in a random order.

    Only ``Random.random`` is used: its sequence for a seed is the one Python guarantees to keep.
    """
    return sorted(items, key=lambda _: rng.random())
