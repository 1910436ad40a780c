"""Tables of made-up scores, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from papers.extractive.tiny import Decoder
from torch import Tensor

from mechcore.components import ModelShape
from mechcore.papers.extractive.encoded import EncodedFacts
from mechcore.papers.extractive.results import (
    KINDS,
    ExtractiveScores,
    Places,
    Scores,
    align,
    common_ends,
    places,
)
from mechcore.papers.extractive.scores import extractive_scores

PLACES = Places(("the", "subject -2", "subject -1", "saw"), ((0, 2, 3), (0, 1, 2, 3)))
"""Of two prompts with 3 and 4 tokens."""


def made_up(points: int = 2) -> ExtractiveScores:
    """One layer of two heads: informative scores as below, downstream twice and upstream minus."""
    heads = torch.tensor(
        [
            [[[1.0, 2.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0]]],
            [[[3.0, 8.0, 4.0, 9.0], [0.0, 1.0, 0.0, 0.0]]],
        ]
    )
    mlps = torch.tensor([[[0.0, 5.0, 1.0, 0.0]], [[0.0, 7.0, 2.0, 2.0]]])

    def times(scale: float) -> Scores:
        return Scores(scale * heads[:points], scale * mlps[:points])

    return ExtractiveScores(
        ModelShape(1, 2),
        informative=times(1.0),
        upstream=times(-1.0),
        downstream=times(2.0),
        other=torch.tensor([0.5, -0.5])[:points].double(),
        rewards_before=torch.tensor([1.0, 2.0])[:points],
        rewards_after=torch.tensor([4.0, 1.5])[:points],
        gradient=torch.tensor([12.5, 35.5])[:points].double(),
        places=Places(PLACES.names, PLACES.columns[:points]),
    )


def test_sums_by_hand() -> None:
    expected = {"informative": [12.0, 36.0], "other": [0.5, -0.5], "gradient": [12.5, 35.5]}
    expected |= {"actual": [3.0, -0.5], "upstream": [-12.0, -36.0], "downstream": [24.0, 72.0]}
    pd.testing.assert_frame_equal(made_up().sums(), pd.DataFrame(expected))


def rows_of(table: pd.DataFrame, score: str, component: str) -> Any:
    return table[(table["score"] == score) & (table["component"] == component)]


def test_table_by_hand() -> None:
    table = made_up().table()
    assert list(table) == [
        *("score", "kind", "component", "layer", "head", "place", "token", "value", "se", "n")
    ]
    assert len(table) == 3 * 3 * 4
    first = rows_of(table, "informative", "L0.H0")
    assert first["token"].tolist() == list(PLACES.names)
    assert first["place"].tolist() == [0, 1, 2, 3]
    assert first["value"].tolist() == [2.0, 4.0, 3.0, 6.0]
    # Half the difference of two is the standard error of their mean.
    assert first["se"].tolist() == pytest.approx([1.0, 4.0, 1.0, 3.0])
    assert first["n"].tolist() == [2, 1, 2, 2]
    mlp = rows_of(table, "downstream", "L0.MLP")
    assert mlp["value"].tolist() == [0.0, 7.0, 7.0, 3.0]
    assert mlp["se"].tolist() == pytest.approx([0.0, 7.0, 3.0, 1.0])
    assert {*mlp["kind"]} == {"mlp"}
    assert {*mlp["head"]} == {-1}
    assert {*first["kind"]} == {"head"}
    assert {*rows_of(table, "upstream", "L0.H1")["head"]} == {1}


def test_rows_of_a_component_sum_to_the_mean_of_its_total(
    tiny: Decoder, data: EncodedFacts
) -> None:
    scored = extractive_scores(tiny.model, data, tiny.of_all, counterfactuals=2, check=False)
    sums = scored.table().groupby(["score", "component"])["value"].sum()
    for kind in KINDS:
        own: Scores = getattr(scored, kind)
        for component in scored.shape.components:
            layer, head = component.layer, component.head
            values: Tensor = own.mlps[:, layer] if head is None else own.heads[:, layer, head]
            expected = float(values.double().sum(1).mean())
            assert sums[kind, str(component)] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert sums["informative"].sum() == pytest.approx(scored.sums()["informative"].mean())


def test_columns_are_named_by_their_tokens(tiny: Decoder, data: EncodedFacts) -> None:
    scored = extractive_scores(tiny.model, data, tiny.of_matrices, counterfactuals=1, check=False)
    names = ["[CLS]", "the", "subject -3", "subject -2", "subject -1", "saw", "a"]
    table = rows_of(scored.table(), "informative", "L1.MLP")
    assert table["token"].tolist() == names
    assert table["n"].tolist() == [5, 5, 1, 3, 5, 5, 5]
    last = scored.informative.mlps[torch.arange(5), 1, torch.tensor([4, 5, 5, 6, 4])]
    assert table["value"].iloc[-1] == pytest.approx(float(last.double().mean()))
    assert np.allclose(table["value"].iloc[:-1], 0)


# --


prompts = st.lists(st.integers(0, 3), min_size=1, max_size=8)
wordings = st.tuples(
    st.lists(st.integers(0, 3), max_size=4),
    st.lists(st.lists(st.integers(4, 9), min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
)
"""Beginnings, subjects and ends of prompts of one wording."""


def words(text: str) -> list[int]:
    return [ord(letter) for letter in text]


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
    assert common_ends([words(text) for text in given]) == expected


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
    aligned = align([*before, *one, *after], [*before, *two, *after])
    for back in range(1, len(one) + 1):
        expected = len(before) + max(0, len(two) - back)
        assert aligned[len(before) + len(one) - back] == expected


def test_places_by_hand() -> None:
    texts = [["the", "cat", "saw", "a"], ["the", "big", "dog", "saw", "a"]]
    placed = places([[1, 2, 8, 9], [1, 3, 4, 8, 9]], texts)
    assert placed.names == ("the", "subject -2", "subject -1", "saw", "a")
    assert placed.columns == ((0, 2, 3, 4), (0, 1, 2, 3, 4))
