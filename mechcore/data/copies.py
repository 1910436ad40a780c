"""Near-copies among examples, which intervals would take as independent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator
from functools import reduce
from operator import xor

from mechcore.data.examples import CLUSTER, Examples
from mechcore.errors import warn

LEAST = 0.05
"""Share of examples from which near-copies are worth a warning."""

_SHORTEST = 5
"""Different words under which texts are alike by chance."""

_WORD = re.compile(r"\w+")


def near_copies(examples: Examples) -> int:
    """How many examples share a text, or all but one of their different words, with another.

    Case and punctuation do not count, nor does a text that more than half of the examples have, as
    an instruction.
    """
    first: dict[Hashable, int] = {}
    copies: set[int] = set()
    columns = [c for c in ("text_a", "text_b") if (examples.frame[c] != "").any()]
    shared = {c: _common(examples.frame[c].tolist()) for c in columns if len(columns) > 1}
    for row, texts in enumerate(zip(*(examples.frame[c] for c in columns), strict=True)):
        keys: list[Hashable] = []
        if len(columns) > 1:
            # A question may be the first of one pair and the second of another.
            keys += [t for c, t in zip(columns, texts, strict=True) if t and t not in shared[c]]
        for key in [*dict.fromkeys(keys), *_word_keys(" ".join(texts))]:
            other = first.setdefault(key, row)
            if other != row:
                copies |= {other, row}
    return len(copies)


def warn_of_copies(role: str, examples: Examples) -> None:
    """Say how many near-copies there are where no clusters are known."""
    n = near_copies(examples) if examples.clusters is None else 0
    if n >= max(2, LEAST * len(examples)):
        warn(
            f"{role} data {examples.name}: {n} of {len(examples)} examples share a text, or all "
            "but one of their words, with another; intervals and p-values take them as "
            f"independent, and are too narrow for other texts: name what goes together with "
            f"--columns {CLUSTER}=NAME, a column of the file, or text_a for examples of one first "
            "text (columns= in Python)"
        )


def _common(texts: list[str]) -> set[str]:
    return {text for text, n in Counter(texts).items() if 2 * n > len(texts)}


def _word_keys(text: str) -> Iterator[int]:
    """Numbers that texts have in common if all but one of their words are the same."""
    words = [hash(word) for word in {*_WORD.findall(text.lower())}]
    if len(words) >= _SHORTEST:
        whole = reduce(xor, words)
        yield whole
        yield from (whole ^ word for word in words)
