"""Tables of made-up scores, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from papers.extractive.tiny import Decoder
from torch import Tensor

from mechcore.components import ModelShape
from mechcore.papers.extractive.encoded import EncodedFacts
from mechcore.papers.extractive.results import KINDS, ExtractiveScores, Places, Scores
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
    found = extractive_scores(tiny.model, data, tiny.of_all, counterfactuals=2, check=False)
    sums = found.table().groupby(["score", "component"])["value"].sum()
    for kind in KINDS:
        own: Scores = getattr(found, kind)
        for component in found.shape.components:
            layer, head = component.layer, component.head
            values: Tensor = own.mlps[:, layer] if head is None else own.heads[:, layer, head]
            expected = float(values.double().sum(1).mean())
            assert sums[kind, str(component)] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert sums["informative"].sum() == pytest.approx(found.sums()["informative"].mean())


def test_columns_are_named_by_their_tokens(tiny: Decoder, data: EncodedFacts) -> None:
    found = extractive_scores(tiny.model, data, tiny.of_matrices, counterfactuals=1, check=False)
    names = ["[CLS]", "the", "subject -3", "subject -2", "subject -1", "saw", "a"]
    table = rows_of(found.table(), "informative", "L1.MLP")
    assert table["token"].tolist() == names
    assert table["n"].tolist() == [5, 5, 1, 3, 5, 5, 5]
    last = found.informative.mlps[torch.arange(5), 1, torch.tensor([4, 5, 5, 6, 4])]
    assert table["value"].iloc[-1] == pytest.approx(float(last.double().mean()))
    assert np.allclose(table["value"].iloc[:-1], 0)
