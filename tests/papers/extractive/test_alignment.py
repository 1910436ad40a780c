from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechcore.papers.extractive.results import align, common_ends, places

prompts = st.lists(st.integers(0, 3), min_size=1, max_size=8)
wordings = st.tuples(
    st.lists(st.integers(0, 3), max_size=4),
    st.lists(st.lists(st.integers(4, 9), min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
)
"""Beginnings, subjects and ends of prompts of one wording."""


def words(text: str) -> list[int]:
    return [ord(each) for each in text]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["abXc", "abYc"], (2, 1)),
        (["abXc", "abYYYc"], (2, 1)),
        (["abc", "abc"], (3, 0)),
        (["abc"], (3, 0)),
        (["X", "Y"], (0, 0)),
        (["aa", "aaa"], (2, 0)),  # the middle a is prefix, and so no suffix is left
        (["aXa", "aa"], (1, 1)),
        (["abXYc", "abXZc", "abXc"], (3, 1)),
        (["aXb", "aXXb", "aXYb"], (2, 1)),
    ],
)
def test_common_ends(given: Sequence[str], expected: tuple[int, int]) -> None:
    assert common_ends([words(each) for each in given]) == expected


@pytest.mark.parametrize(
    ("prompt", "other", "expected"),
    [
        ("abXYcd", "abVWcd", [0, 1, 2, 3, 4, 5]),  # subjects of equal length
        ("abXcd", "abUVWcd", [0, 1, 4, 5, 6]),  # the other's is longer: its last token
        ("abXYZcd", "abVcd", [0, 1, 2, 2, 2, 3, 4]),  # shorter: its first token is repeated
        ("abXYZcd", "abVWcd", [0, 1, 2, 2, 3, 4, 5]),
        ("abXYcd", "abcd", [0, 1, 2, 2, 2, 3]),  # none: the token after the common beginning
        ("abXY", "ab", [0, 1, 1, 1]),  # nor one after it: the last
        ("abcd", "abXcd", [0, 1, 3, 4]),  # none of its own
        ("X", "YZ", [1]),
        ("XY", "Z", [0, 0]),
        ("aXa", "aYYa", [0, 2, 3]),
        ("aa", "aXa", [0, 2]),
        ("aaa", "aa", [0, 1, 1]),  # what could be both is prefix
        ("aa", "aaa", [0, 1]),
    ],
)
def test_align(prompt: str, other: str, expected: list[int]) -> None:
    assert align(words(prompt), words(other)) == expected


@given(wordings)
def test_subjects_align_at_their_right_ends(
    wording: tuple[list[int], list[list[int]], list[int]],
) -> None:
    before, subjects, after = wording
    one, two = subjects[0], subjects[-1]
    if one[0] == two[0] or one[-1] == two[-1]:
        return  # then some of the subject is a common end
    found = align([*before, *one, *after], [*before, *two, *after])
    for back in range(1, len(one) + 1):
        expected = len(before) + max(0, len(two) - back)
        assert found[len(before) + len(one) - back] == expected


def test_places_by_hand() -> None:
    texts = [["the", "cat", "saw", "a"], ["the", "big", "dog", "saw", "a"]]
    found = places([[1, 2, 8, 9], [1, 3, 4, 8, 9]], texts)
    assert found.names == ("the", "subject -2", "subject -1", "saw", "a")
    assert found.columns == ((0, 2, 3, 4), (0, 1, 2, 3, 4))
