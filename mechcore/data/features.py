"""Features of texts: one number for every example, by name.

Words are runs of letters and digits, in lower case; negations and numbers are English ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechcore.data.examples import Examples
from mechcore.errors import InputError
from mechcore.registry import Registry

Feature: TypeAlias = Callable[[Examples], Float[np.ndarray, " example"]]
OfWords: TypeAlias = Callable[[tuple[str, ...], tuple[str, ...]], float]

_OWN = (
    *("word_overlap", "contiguous_span", "subsequence", "negation_words", "first_length"),
    *("second_length", "length_ratio", "repeated_words", "rare_words", "numbers"),
    "first_difference",
)
FEATURES: Registry[Feature] = Registry(
    "text feature", "mechcore.features", {name: f"{__name__}:{name}" for name in _OWN}
)
"""Features by name. A feature is NaN for an example that it says nothing of."""

_NEGATION = r"no|not|never|none|nobody|nothing|neither|nor|nowhere|without|cannot|hardly|.*n't"
_NUMBER = r"\d.*|two|three|four|five|six|seven|eight|nine|ten|dozen|hundred|thousand|million"
_WORD = re.compile(r"\d+(?:[.,]\d+)*|\w+(?:['\u2019]\w+)*")


def feature_table(examples: Examples) -> pd.DataFrame:
    """Features of examples, a column each, without those that an example lacks."""
    columns = {name: np.asarray(FEATURES[name](examples), dtype=float) for name in FEATURES}
    for name, values in columns.items():
        if values.shape != (len(examples),) or np.isinf(values).any():
            raise InputError(
                f"text feature {name!r}: gave an array of shape {values.shape}; expected one "
                f"finite number, or NaN, for each of {len(examples)} examples"
            )
    return pd.DataFrame(columns).dropna(axis=1)


@lru_cache(maxsize=2**16)
def words_in(text: str) -> tuple[str, ...]:
    """The words of a text, in order."""
    return tuple(_WORD.findall(text.lower().replace("\u2019", "'")))


def _of_words(of: OfWords) -> Feature:
    """A function of the words of both texts; those of the second may be none."""

    def feature(examples: Examples) -> Float[np.ndarray, " example"]:
        texts = (map(words_in, examples.frame[name]) for name in ("text_a", "text_b"))
        return np.array([of(a, b) for a, b in zip(*texts, strict=True)], dtype=float)

    return feature


def _of_pairs(of: OfWords) -> Feature:
    """The same, NaN without words in both texts."""
    return _of_words(lambda a, b: of(a, b) if a and b else np.nan)


word_overlap = _of_pairs(lambda a, b: sum(word in a for word in b) / len(b))
"""Share of the second text's words that are in the first."""
contiguous_span = _of_pairs(lambda a, b: any(a[i : i + len(b)] == b for i in range(len(a))))
"""1 where the words of the second text stand next to one another in the first, else 0."""
subsequence = _of_pairs(lambda a, b: all(w in left for left in [iter(a)] for w in b))
"""1 where the words of the second text are in the first in the same order, else 0."""
negation_words = _of_words(lambda a, b: sum(bool(re.fullmatch(_NEGATION, w)) for w in b or a))
"""Number of negations in the second text, or in the only one."""
first_length = _of_words(lambda a, b: len(a))
second_length = _of_pairs(lambda a, b: len(b))
length_ratio = _of_pairs(lambda a, b: len(b) / len(a))
"""Words of the second text for each of the first, as the two before are those of each text."""
repeated_words = _of_words(lambda a, b: len(a) - len({*a}) + len(b) - len({*b}))
"""Words that occurred before in the same text, of both texts."""
numbers = _of_words(lambda a, b: sum(bool(re.fullmatch(_NUMBER, w)) for w in (*a, *b)))
"""Numbers in both texts, as digits or words."""
first_difference = _of_pairs(lambda a, b: [*map(str.__eq__, a, b), False].index(False))
"""Words that both texts begin with."""


def rare_words(examples: Examples) -> Float[np.ndarray, " example"]:
    """How rare the words of both texts are on average, in bits, by these examples' own counts."""
    texts = [words_in(a) + words_in(b) for a, b in examples.frame[["text_a", "text_b"]].to_numpy()]
    counts = Counter(word for text in texts for word in text)
    bits = {word: np.log2(counts.total() / n) for word, n in counts.items()}
    return np.array([np.mean([bits[word] for word in text] or [np.nan]) for text in texts])
