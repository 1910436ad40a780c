"""Facts to train a language model on, and implications of them to ask for.

The tasks are those of arXiv 2412.04614 (sections 3 and 5); people and animals are made up.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Generic, NamedTuple, TypeVar

import pandas as pd

from mechcore.errors import InputError

F = TypeVar("F")
"""`Facts`, as texts or as token ids."""

T = TypeVar("T")

FIRST_HOP = ("{name} lives in", "The people in the city {name} is from speak")
SECOND_HOP = ("The mayor of {city} is", "The mayor of the city that contains {landmark} is")
ORDERING = ("{name} dax is", "{name} zong is the")

TRAINING_NAMES = 84


@dataclass(frozen=True)
class Facts:
    """Prompts, their completions, and the options that each completion is ranked among.

    Attributes:
        name: what they are called in messages, e.g. ``"first-hop facts"``.
        prompts, completions: with one space between them, and none around.
        subjects: the part that distinguishes each prompt, e.g. a person's name.
        options: different completions to rank among; by default those that occur, in order.

    Raises:
        InputError: the parts do not fit together.
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
        for completion in (*self.completions, *self.options):
            if self.options.count(completion) != 1:
                raise InputError(
                    f"{self.name}: {completion!r} is an option "
                    f"{self.options.count(completion)} times; expected every completion once"
                )

    def __len__(self) -> int:
        return len(self.prompts)


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
    """Facts and implications of training names; those of test names; and others of the former."""

    facts: F
    implications: F
    test_facts: F
    test_implications: F
    other_facts: F
    other_implications: F

    @property
    def splits(self) -> dict[str, F]:
        """All six by name, such as ``"test facts"``."""
        return {part.name.replace("_", " "): getattr(self, part.name) for part in fields(self)}


# -- tasks ----------------------------------------------------------------------------------------


def city_tasks(seed: int) -> tuple[FactTask[Facts], FactTask[Facts]]:
    """The first-hop and the second-hop task on the paper's 20 cities; names are drawn for each."""
    first, second = (
        _draw_names(len(CITIES), random.Random(f"{hop} {seed}")) for hop in ("first", "second")
    )
    return first_hop(first, CITIES), second_hop(second, CITIES)


def city_ordering(seed: int) -> OrderingTask[Facts]:
    """The ordering task on the paper's 20 cities: names, and where they live, are drawn."""
    rng = random.Random(f"ordering {seed}")
    return ordering(_draw_names(TRAINING_NAMES + len(CITIES), rng), CITIES, rng)


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
    people: Sequence[str], cities: Sequence[City], rng: random.Random
) -> OrderingTask[Facts]:
    """The ordering task of 84 people, spread evenly over the cities, and of a test name a city."""
    names, test_names = people[:TRAINING_NAMES], people[TRAINING_NAMES:]
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
        for data, facts in splits.items()
        for row in zip(facts.prompts, facts.completions, facts.subjects, strict=True)
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
    """The items in a random order; Python keeps the sequence of ``Random.random`` for a seed."""
    return sorted(items, key=lambda _: rng.random())


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


class City(NamedTuple):
    """A city and its attributes, each unique to it in a task."""

    name: str
    language: str
    landmark: str
    animal: str


CITIES = tuple(
    City(*row)
    for row in (
        ("Tokyo", "Japanese", "Senso-ji Temple", "crane"),
        ("Beijing", "Mandarin", "Forbidden City", "panda"),
        ("Mumbai", "Marathi", "Gateway of India", "peacock"),
        ("Paris", "French", "Eiffel Tower", "rooster"),
        ("Berlin", "German", "Brandenburg Gate", "bear"),
        ("Moscow", "Russian", "St. Basil's Cathedral", "wolf"),
        ("Cairo", "Arabic", "Great Pyramid of Giza", "camel"),
        ("Bangkok", "Thai", "Wat Arun", "elephant"),
        ("Istanbul", "Turkish", "Blue Mosque", "cat"),
        ("Sao Paulo", "Portuguese", "Ibirapuera Park", "jaguar"),
        ("Seoul", "Korean", "N Seoul Tower", "tiger"),
        ("Rome", "Italian", "Colosseum", "eagle"),
        ("London", "English", "Tower Bridge", "fox"),
        ("Madrid", "Spanish", "Plaza Mayor", "bull"),
        ("Athens", "Greek", "Acropolis", "owl"),
        ("Hanoi", "Vietnamese", "Ho Chi Minh Mausoleum", "buffalo"),
        ("Addis Ababa", "Amharic", "Meskel Square", "lion"),
        ("Jakarta", "Indonesian", "Istiqlal Mosque", "rhinoceros"),
        ("Tehran", "Persian", "Azadi Tower", "leopard"),
        ("Nairobi", "Swahili", "Uhuru Gardens", "giraffe"),
    )
)
"""The paper's 20 cities; the animals are chosen here, with distinct first tokens."""

FIRST_NAMES = _words(
    """
    Adam Agnes Albert Alice Amanda Andrew Angela Anthony Arthur Audrey Barbara Benjamin Bernard
    Betty Brandon Brenda Brian Bruce Calvin Carl Catherine Charles Chloe Christopher Claire Colin
    Craig Cynthia Daniel David Deborah Denise Diana Donald Dorothy Douglas Dylan Edward Eleanor
    Elizabeth Emily Eric Ethan Eugene Evelyn Felix Fiona Frank Frederick Gabriel Gary George Gerald
    Gloria Gordon Grace Gregory Hannah Harold Heather Helen Henry Howard Hugh Ian Irene Isaac Ivan
    Jacob James Janet Jason Jeffrey Jennifer Jeremy Jessica John Jonathan Joseph Joyce Julia Justin
    Karen Keith Kenneth Kevin Kimberly Kyle Larry Laura Leonard Leslie Linda Louise Lucas Lynn
    Malcolm Margaret Matthew Megan Melissa Michael Miranda Nancy Nathan Neil Nicholas Nina Nora
    Oliver Oscar Pamela Patrick Paul Peter Philip Phoebe Rachel Ralph Raymond Rebecca Richard
    Robert Roger Ronald Rose Ruth Ryan Samuel Sandra Sarah Scott Sean Sharon Simon Sophie Stanley
    Stephen Stuart Susan Sylvia Theodore Thomas Timothy Tracy Tyler Vanessa Victor Vincent Virginia
    Walter Warren Wendy William Zachary Zoe
    """
)
"""No two begin with the same three letters, so that few tokenizers begin two of them alike."""

LAST_NAMES = _words(
    """
    Abbott Anderson Bailey Baker Barnes Barrett Bennett Bishop Blackwell Bradley Brooks Burgess
    Butler Campbell Carpenter Carter Chambers Chapman Clayton Coleman Collins Cooper Crawford
    Cunningham Dawson Dixon Doyle Duncan Eaton Edwards Elliott Ellis Evans Farrell Ferguson Fisher
    Fletcher Foster Freeman Gallagher Gardner Gibson Gilbert Goodman Graham Greene Griffin
    Hamilton Hansen Harper Harrison Hawkins Hayes Henderson Higgins Holmes Hopkins Hudson Hughes
    Ingram Jackson Jenkins Jennings Johnston Kendall Kennedy Knight Lambert Lawson Lindsay
    Lowe Lyons Marshall Mason Maxwell McCarthy Mercer Miller Mitchell Monroe Morgan Murphy
    Nash Newman Nichols Norris Osborne Owens Palmer Parker Payne Perkins Phillips Porter Powell
    Quinn Ramsey Reynolds Rhodes Richardson Robinson Russell Sanders Saunders Shaw Sherman Sinclair
    Spencer Stevenson Stewart Sullivan Sutton Talbot Taylor Thornton Tucker Turner Underwood
    Vaughan Wagner Walker Wallace Watkins Webb Weaver Wheeler Whitaker Winters Woodward Wright
    Yates Young
    """
)
