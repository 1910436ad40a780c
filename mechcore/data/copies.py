"""Near-copies among examples, which intervals would treat as independent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator
from functools import reduce
from operator import xor

from mechcore.data.examples import CLUSTER, Examples
from mechcore.errors import warn

LEAST = 0.05
"""Minimum share of near-copies for a warning."""

_SHORTEST = 5
"""Minimum number of distinct words; shorter texts are alike by chance."""

_WORD = re.compile(r"\w+")


def near_copies(examples: Examples) -> int:
    """How many examples share a text, or all but one of their distinct words, with another.

    Case, punctuation and a text that more than half of the examples have are ignored.
    """
    first: dict[Hashable, int] = {}
    copies: set[int] = set()
    two = examples.two_segments
    pairs = [*zip(examples.frame["text_a"], examples.frame["text_b"], strict=True)]
    often = {
        text
        for text, n in Counter(t for pair in pairs for t in {*pair}).items()
        if 2 * n > len(pairs)
    }
    for row, pair in enumerate(pairs):
        # A question may be the first of one pair and the second of another.
        shared = {*pair} - often - {""} if two else set()
        for key in (*shared, *_word_keys(" ".join(pair))):
            other = first.setdefault(key, row)
            if other != row:
                copies |= {other, row}
    return len(copies)


def warn_of_copies(split: str, examples: Examples) -> None:
    """Warn of near-copies if no clusters are known."""
    n = near_copies(examples) if examples.clusters is None else 0
    if n >= max(2, LEAST * len(examples)):
        warn(
            f"{split} data {examples.name}: {n} of {len(examples)} examples share a text, or all "
            "but one of their words, with another; intervals and p-values treat them as "
            f"independent and are too narrow for other texts: name their clusters with "
            f"--columns {CLUSTER}=NAME, a column of the file, or text_a for examples with the same "
            "first text (columns= in Python)"
        )


def _word_keys(text: str) -> Iterator[int]:
    """Hashes that texts share if all but one of their words are the same."""
    words = [hash(word) for word in {*_WORD.findall(text.lower())}]
    if len(words) >= _SHORTEST:
        whole = reduce(xor, words)
        yield whole
        yield from (whole ^ word for word in words)
