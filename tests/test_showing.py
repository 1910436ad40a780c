"""Every public result says what it is in a line, and shows a table in notebooks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mechcore.ablation import Ablations, ComponentSet, Search
from mechcore.attention import AttentionExample
from mechcore.components import Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import Examples
from mechcore.evaluation.cost import Cost
from mechcore.evaluation.evaluate import Evaluation
from mechcore.evaluation.recalibration import Effect
from mechcore.masking.means import MeanActivations
from mechcore.models.model_identity import ModelIdentity
from mechcore.pruning import Subnetwork
from mechcore.showing import Shown
from mechcore.subnetworks.core import heuristic_core

EXAMPLES = Examples(
    "mine",
    pd.DataFrame(
        {"text_a": ["a <b>", "c"], "text_b": "", "label": ["yes", "no"], "subset": ["x", "x"]}
    ),
)
MASK = Mask.full(ModelShape(2, 2)).without("L1.H0")
EMPTY = pd.DataFrame()
EVALUATION = Evaluation(
    torch.tensor([[0.0, 2.0], [0.0, 1.0]]),
    torch.tensor([[False, True], [True, False]]),
    np.array(["x", "y"], dtype=object),
    "yes -> yes (1)",
)
SUBNETWORK = Subnetwork(MASK, 0.2, 7, torch.zeros(2, 3))
SHOWN: dict[str, tuple[Any, str]] = {
    "mask": (MASK, "Mask(2 layers x 2 heads with MLPs, 5/6 kept, without L1.H0)"),
    "examples": (EXAMPLES, "Examples('mine', n=2, labels=2, subsets=1)"),
    "encoded": (
        EncodedExamples(EXAMPLES, [[1, 2, 3], [4]], None, None, None, None, 0),
        "EncodedExamples('mine', n=2, labels=2, subsets=1, tokens 1 to 3)",
    ),
    "means": (
        MeanActivations(
            torch.zeros(2, 4, 8),
            torch.zeros(2, 32),
            torch.tensor(99.0),
            torch.zeros(3, 2, 4, 8),
            torch.zeros(3, 2, 32),
            ModelIdentity(2, 4, 8, 32, "float32", "0" * 64),
            "f" * 64,
        ),
        "MeanActivations(2 layers x 4 heads, tokens=99, data=ffffffffffff)",
    ),
    "evaluation": (EVALUATION, "Evaluation(n=2, accuracy=0.500, margin=0.500 nats)"),
    "subnetwork": (
        SUBNETWORK,
        "Subnetwork(s0.20-seed7, sparsity=0.167, Mask(2 layers x 2 heads with MLPs, 5/6 kept, "
        "without L1.H0))",
    ),
    "core": (
        heuristic_core([MASK]),
        "HeuristicCore(L0.H0 L0.H1 L1.H1; 3 heads in 1 subnetwork, 3 of 4 expected by chance "
        "with as many heads of each layer, p=1)",
    ),
    "ablations": (
        Ablations.of(EVALUATION, {ComponentSet.of("L0.H1"): EVALUATION}, "hans", "ood"),
        "Ablations(1 sets, 'hans' (ood), full accuracy=0.500)",
    ),
    "search": (
        Search(pd.DataFrame({"set": ["L0.H1+L1.H0"]}), EMPTY, 9, 3, 6, 0.5, Cost(), None, EMPTY),
        "Search(6 sets tested, 9 pairs screened, best L0.H1+L1.H0)",
    ),
    "attention": (
        AttentionExample("L0.H1", "next", ["[CLS]", "<a>"], [-1, 0], [[1.0, 0.0], [0.5, 0.5]]),
        "AttentionExample(L0.H1 (next), '[CLS] <a>')",
    ),
    "effect": (
        Effect(0.75, np.zeros((2, 9))),
        "Effect(full=0.75, values=[2, 9], unit=1.0, n_choices=1, "
        "sample=Sample(clusters=None, strata=None))",
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_line_and_in_a_notebook_the_same_line_and_a_table(name: str) -> None:
    result, line = SHOWN[name]
    assert repr(result) == line
    html = result._repr_html_()
    summary = line.partition("(")[2].removesuffix(")")
    assert summary.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#x27;") in html
    assert "<a>" not in html
    assert "a <b>" not in html
    tables = {"mask", "examples", "encoded", "evaluation", "subnetwork", "ablations", "search"}
    assert ("<table" in html) == (name in tables)


@pytest.mark.parametrize("size", [10, 10**4])
def test_fields_of_any_size_take_a_line(size: int) -> None:
    @dataclasses.dataclass(frozen=True, repr=False)
    class Result(Shown):
        texts: list[str]
        text: str
        states: Any

    line = repr(Result(["a"] * size, "b" * size, torch.zeros(size, 2)))
    assert len(line) < 140
    assert line.startswith("Result(")
    assert f"texts=list of {size}" in line
    assert f"states=[{size}, 2]" in line
