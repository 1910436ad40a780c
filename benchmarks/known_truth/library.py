"""The programs that trained models of known truth implement, and their rules.

Rules give results for values of slots and variables, even if some are absent (0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from programs import Program, Values, Variable
from torch import Tensor

from mechcore.components import Component


def copied(value: Tensor) -> Tensor:
    """The value itself."""
    return value


def all_true(*values: Tensor) -> Tensor:
    """True if all are; false if any is false; otherwise unknown."""
    return torch.stack(values).amin(0)


def more(*values: Tensor) -> Tensor:
    """The majority of the known values; unknown in a tie."""
    return torch.stack(values).sum(0).sign()


def multiplied(*values: Tensor) -> Tensor:
    """Whether an even number of values is false; unknown if any is unknown."""
    return torch.stack(values).prod(0)


def equal(left: Tensor, right: Tensor) -> Tensor:
    """Whether two values are equal; unknown if either is."""
    return torch.where((left == 0) | (right == 0), 0, 2 * (left == right) - 1)


def unless_unequal(left: Tensor, right: Tensor) -> Tensor:
    """Whether two values are equal; true if either is unknown."""
    return torch.where(equal(left, right) < 0, -1, 1)


def place_of(*marks: Tensor) -> Tensor:
    """The place of the true mark, counted from 1."""
    return torch.stack(marks).argmax(0) + 1


def at_place(place: Tensor, *values: Tensor) -> Tensor:
    """The value at a place, counted from 1; unknown if the place is."""
    padded = torch.stack((torch.zeros_like(place), *values))
    return padded.gather(0, place[None])[0]


def _one_marked(slots: Values) -> Tensor:
    return torch.stack([slots[name] for name in ("mark1", "mark2", "mark3")]).sum(0) == -1


def _variable(
    name: str, component: str, reads: str, rule: Callable[..., Tensor], absent: int = 0
) -> Variable:
    return Variable(name, Component(component), tuple(reads.split()), rule, absent)


def _truths(true: str, false: str) -> dict[int, tuple[str, ...]]:
    return {1: tuple(true.split()), -1: tuple(false.split())}


_COLOUR = _truths("red blue", "green grey")
_SIZE = _truths("big tall", "small short")
_MOOD = _truths("glad calm", "sad wild")
_VALUE = _truths("up high", "down low")
_MARK = _truths("here", "there away")

PROGRAMS: Mapping[str, Program] = {
    "copy": Program(
        {"colour": _COLOUR},
        (_variable("value", "L1.H2", "colour", copied),),
        "encoder",
        fillers=(2, 6),
    ),
    "conjunction": Program(
        {"colour": _COLOUR, "size": _SIZE},
        (
            _variable("first", "L0.H1", "colour", copied),
            _variable("second", "L0.H3", "size", copied),
            _variable("both", "L1.MLP", "first second", all_true),
        ),
        "encoder",
        fillers=(2, 5),
    ),
    "backup": Program(
        {"colour": _COLOUR},
        (
            _variable("value", "L0.H0", "colour", copied),
            _variable("again", "L1.H2", "colour", copied),
            _variable("either", "L1.MLP", "value again", more),
        ),
        "decoder",
        fillers=(2, 6),
    ),
    "equality": Program(
        {
            "first": {1: ("one",), 2: ("two",), 3: ("three",)},
            "second": {1: ("eins",), 2: ("zwei",), 3: ("drei",)},
        },
        (
            _variable("left", "L0.H1", "first", copied),
            _variable("right", "L0.H2", "second", copied),
            _variable("equal", "L1.MLP", "left right", equal),
        ),
        "decoder",
        fillers=(2, 5),
    ),
    "majority": Program(
        {"colour": _COLOUR, "size": _SIZE, "mood": _MOOD},
        (
            _variable("first", "L0.H0", "colour", copied),
            _variable("second", "L0.H2", "size", copied),
            _variable("third", "L1.H3", "mood", copied),
            _variable("most", "L1.MLP", "first second third", more),
        ),
        "encoder",
    ),
    "heuristic": Program(
        {"colour": _COLOUR, "size": _SIZE, "mood": _MOOD},
        (
            _variable("left", "L0.H1", "size", copied),
            _variable("right", "L0.H2", "mood", copied),
            _variable("agree", "L1.MLP", "left right", unless_unequal, absent=1),
            _variable("cue", "L2.H0", "colour", copied),
            _variable("answer", "L2.MLP", "cue agree", multiplied),
        ),
        "decoder",
        n_layers=3,
        typical="agree",
    ),
    "pointer": Program(
        {
            **{
                f"{kind}{i}": words
                for i in (1, 2, 3)
                for kind, words in (("mark", _MARK), ("value", _VALUE))
            },
        },
        (
            _variable("place", "L0.H3", "mark1 mark2 mark3", place_of),
            _variable("value", "L1.H1", "place value1 value2 value3", at_place),
        ),
        "decoder",
        fillers=(0, 2),
        shuffled=False,
        possible=_one_marked,
    ),
}
"""Programs by name of the model that implements them."""
