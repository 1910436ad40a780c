"""Features of texts, counted by hand."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from mechcore.data.examples import Examples
from mechcore.data.features import FEATURES, feature_table, words_in
from mechcore.errors import InputError


def examples(*pairs: tuple[str, str]) -> Examples:
    frame = pd.DataFrame(pairs, columns=["text_a", "text_b"])
    return Examples("pairs", frame.assign(label="yes", subset="all"))


def test_words_are_runs_of_letters_and_digits_in_lower_case() -> None:
    assert words_in("He CAN\u2019T pay 1,500.50 \u2014 not yet, d'accord?") == (
        *("he", "can't", "pay", "1,500.50", "not", "yet", "d'accord"),
    )


PAIRS = (
    ("The doctor saw the actor.", "The actor saw the doctor."),
    ("The doctor near the actor danced.", "the actor danced"),
    ("The doctor and the two actors, not 3 lawyers, danced.", "The doctor danced"),
    ("A man sleeps.", "Nobody didn't sleep, a man never does."),
)
BY_HAND: dict[str, Sequence[float]] = {
    "word_overlap": [1, 1, 1, 2 / 7],  # a, man
    "contiguous_span": [0, 1, 0, 0],
    "subsequence": [0, 1, 1, 0],
    "negation_words": [0, 0, 0, 3],  # nobody, didn't, never; not is in the first text
    "first_length": [5, 6, 10, 3],
    "second_length": [5, 3, 3, 7],
    "length_ratio": [1, 1 / 2, 3 / 10, 7 / 3],
    "repeated_words": [2, 1, 1, 0],  # the, in each text
    "numbers": [0, 0, 2, 0],  # two, 3
    "first_difference": [1, 1, 2, 0],
}


def test_features_are_those_counted_by_hand() -> None:
    table = feature_table(examples(*PAIRS))
    for name, values in BY_HAND.items():
        np.testing.assert_allclose(table[name], values, err_msg=name)
    assert {*BY_HAND} | {"rare_words"} == {*FEATURES} == {*table}


def test_rare_words_are_in_bits_by_their_own_counts() -> None:
    # Of 8 words, a is there 4 times, b twice, c and d once.
    table = feature_table(examples(("a a", "a b"), ("b a", "c d")))
    np.testing.assert_allclose(table["rare_words"], [(1 + 1 + 1 + 2) / 4, (2 + 1 + 3 + 3) / 4])


def test_of_single_texts_there_are_no_features_of_pairs() -> None:
    table = feature_table(examples(("No man is no island", ""), ("one", "")))
    assert {*table} == {"negation_words", "first_length", "repeated_words", "rare_words", "numbers"}
    assert table["negation_words"].tolist() == [2, 0]
    assert table["repeated_words"].tolist() == [1, 0]


def test_features_of_guests_are_checked() -> None:
    FEATURES.register("letters")(lambda of: of.frame["text_a"].str.len().to_numpy())
    try:
        assert feature_table(examples(("abc", ""), ("a", "")))["letters"].tolist() == [3, 1]
    finally:
        FEATURES.remove("letters")
    FEATURES.register("short")(lambda of: np.zeros(1))
    try:
        with pytest.raises(InputError, match=r"'short': gave an array of shape \(1,\).*2 examples"):
            feature_table(examples(*PAIRS[:2]))
    finally:
        FEATURES.remove("short")
