"""The prompts of the cognitive task: their numbers, words, landmarks and tokens."""

from __future__ import annotations

import random
import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, product
from operator import mul
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Int

from mechcore.errors import InputError, reason
from mechcore.worlds.draws import pick

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

T = TypeVar("T")
Rendering: TypeAlias = Literal["two_sided", "signed"]
Split: TypeAlias = Literal["train", "dev", "test"]
Modality: TypeAlias = Literal["motion", "color"]
Span: TypeAlias = tuple[int, int]
Pair: TypeAlias = tuple[int, int]
Draw: TypeAlias = Callable[[int, int], tuple[int, ...]]
"""From the sides of motion and colour (right +1, left -1) to numbers in the order of `NUMBERS`."""

MODALITIES: tuple[Modality, Modality] = ("motion", "color")
CHOICES = ("left", "right")
VARIABLES = ("context", *MODALITIES, "choice")
SIDES = {"left": -1, "right": 1}
PROMPT = "{a}"
ANSWERS = {"left": " left", "right": " right"}

NUMBERS: dict[Rendering, tuple[str, ...]] = {
    "two_sided": ("motion_left", "motion_right", "color_left", "color_right"),
    "signed": ("motion", "color"),
}

LANDMARKS: dict[Rendering, tuple[str, ...]] = {
    rendering: ("context", *numbers, "answer") for rendering, numbers in NUMBERS.items()
}
"""Names of the places that every prompt has: the context, the numbers and the last word."""

WORDS = (
    *("context", "motion", "color", "left", "right", "choice", "is", "."),
    *("larger", "smaller", "of", "and", "the", "item"),
    *"abcdefghijklmnopqrstuvwxyz",
    *map(str, range(10, 100)),
)
"""Words of the two-sided rendering, and a few more for comparing numbers and looking them up."""

_CLAUSES: dict[Rendering, dict[str, str]] = {
    "two_sided": {
        "context": "context {context} .",
        "motion": "motion left {motion_left} right {motion_right} .",
        "color": "color left {color_left} right {color_right} .",
        "answer": "choice {answer}",
    },
    "signed": {
        "context": "Context: {context}.",
        "motion": "Motion coherence: {motion}.",
        "color": "Color coherence: {color}.",
        "answer": "{answer}",
    },
}
_LAST_WORD: dict[Rendering, str] = {"two_sided": "is", "signed": "Choice:"}
_PLACE = re.compile(r"\{(\w+)\}")
SMALLEST, LARGEST = 10, 99
_STRONGEST: dict[Rendering, int] = {"two_sided": LARGEST - SMALLEST, "signed": 99}
_ONE_IN = 10


# -- drawing --------------------------------------------------------------------------------------


def split_of(one: int, other: int) -> Split:
    """The split of two numbers of a prompt: a tenth of all pairs each are for test and development.

    Their order does not matter. Of signed prompts these are the sizes of the coherences in percent.
    """
    pair = f"{min(one, other)} {max(one, other)}"
    parts: dict[int, Split] = {0: "test", 1: "dev"}
    return parts.get(zlib.crc32(pair.encode()) % _ONE_IN, "train")


def turns(rng: random.Random) -> Iterator[tuple[Modality, str, str, bool]]:
    """Without end: context, sides of motion and colour, and whether colour may be shown first."""
    every = list(product(MODALITIES, CHOICES, CHOICES))
    halves = [[c for c in every if (c[0] == "motion") == (c[1] == c[2])]]
    halves.append([c for c in every if c not in halves[0]])
    for block in count():
        for half in _shuffled((0, 1), rng):
            for context, motion, color in _shuffled(halves[half], rng):
                yield context, motion, color, (half + block) % 2 == 0


def _shuffled(items: Sequence[T], rng: random.Random) -> list[T]:
    left = list(items)
    return [left.pop(int(rng.random() * len(left))) for _ in items]


def number_draw(
    rendering: Rendering, split: Split, differences: Sequence[int] | None, rng: random.Random
) -> Draw:
    """How to draw the numbers of one prompt, see `mechcore.papers.cognitive.trials.generate`."""
    strongest = _STRONGEST[rendering]
    chosen = tuple(range(1, strongest + 1) if differences is None else differences)
    whole = all(isinstance(d, (int, np.integer)) and 1 <= d <= strongest for d in chosen)
    if not chosen or not whole or len(set(chosen)) < len(chosen):
        raise InputError(
            f"cognitive task: differences {list(chosen)}; expected different whole numbers from 1 "
            f"to {strongest} for {rendering!r}, at least one"
        )
    if rendering == "signed":
        sizes = _of_split(((m, c) for m in chosen for c in chosen), split, "two such coherences")
        return lambda *sides: tuple(map(mul, sides, pick(sizes, rng)))
    levels = [chosen] if differences is None else [(difference,) for difference in chosen]
    pools = [
        _of_split(
            ((a, a + d) for d in level for a in range(SMALLEST, LARGEST - d + 1)),
            split,
            f"two numbers with the difference {level[0]}",
        )
        for level in levels
    ]
    return lambda *sides: tuple(n for side in sides for n in pick(pick(pools, rng), rng)[::side])


def _of_split(pairs: Iterable[Pair], split: Split, what: str) -> list[Pair]:
    of_split = [pair for pair in pairs if split_of(*pair) == split]
    if not of_split:
        raise InputError(
            f"cognitive task: differences: the {split} split has no {what}; ask for others, or for "
            "more of them"
        )
    return of_split


def evidence(rendering: Rendering, numbers: Sequence[int]) -> tuple[float, float]:
    """Signed evidence of motion and colour: right minus left number, or the coherence (-1 to 1)."""
    if rendering == "signed":
        return numbers[0] / 100, numbers[1] / 100
    return numbers[1] - numbers[0], numbers[3] - numbers[2]


# -- text -----------------------------------------------------------------------------------------


def render(
    rendering: Rendering, context: Modality, numbers: Sequence[int], first: Modality
) -> tuple[str, dict[str, Span]]:
    """One prompt of `NUMBERS` (percent if signed), and the characters of every landmark in it."""
    written = [f"{n / 100:.2f}" if rendering == "signed" else str(n) for n in numbers]
    values = {"context": context, "answer": _LAST_WORD[rendering]}
    values |= dict(zip(NUMBERS[rendering], written, strict=True))
    shown = MODALITIES if first == "motion" else MODALITIES[::-1]
    clauses = [_CLAUSES[rendering][name] for name in ("context", *shown, "answer")]
    text, spans = "", {}
    for i, piece in enumerate(_PLACE.split(" ".join(clauses))):
        part = values[piece] if i % 2 else piece
        if i % 2:
            spans[piece] = (len(text), len(text) + len(part))
        text += part
    return text, {name: spans[name] for name in LANDMARKS[rendering]}


# -- tokens ---------------------------------------------------------------------------------------


def token_ranges(
    texts: Sequence[str],
    spans: Int[np.ndarray, "trial landmark 2"],
    tokenizer: PreTrainedTokenizerBase,
) -> Int[np.ndarray, "trial landmark 2"]:
    """First token of every landmark and the one after its last; tokens may reach beyond."""
    if not tokenizer.is_fast:
        raise InputError(
            f"tokenizer: {type(tokenizer).__name__} does not say which characters its tokens are; "
            "expected a fast tokenizer (a checkpoint with tokenizer.json)"
        )
    try:
        encoded = tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=True)
    except Exception as error:  # tokenizers raises errors without a type of their own
        raise _cannot_write(texts[0], reason(error)) from error
    rows = []
    for row, (offsets, places) in enumerate(
        zip(encoded["offset_mapping"], spans.tolist(), strict=True)
    ):
        if tokenizer.unk_token_id in encoded["input_ids"][row]:
            raise _cannot_write(texts[row], "a word is unknown to it")
        starts, ends = zip(*offsets, strict=True)
        rows.append([(bisect_right(ends, a), bisect_left(starts, b)) for a, b in places])
    ranges = np.array(rows)
    empty = np.argwhere(ranges[..., 0] >= ranges[..., 1])
    if len(empty):
        row, place = empty[0]
        start, end = spans[row, place]
        raise _cannot_write(texts[row], f"no token stands for {texts[row][start:end]!r}")
    return ranges


def _cannot_write(text: str, why: str) -> InputError:
    return InputError(
        f"tokenizer: cannot write prompts like {text!r} ({why}); use one that knows all their "
        "words and numbers"
    )


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Word-level tokenizer of the two-sided rendering; other words than `WORDS` are an error."""
    from mechcore.worlds.small_gpt2 import word_tokenizer

    return word_tokenizer(WORDS)
