"""A tiny classifier with a few texts of both kinds, as the steps that ablate get them."""

from __future__ import annotations

import helpers
import pandas as pd
import pytest
from helpers import Cases

from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.masking.means import MeanActivations
from mechcore.steps.config import ModelConfig
from mechcore.steps.inputs import Inputs


def encoded(name: str, n: int) -> EncodedExamples:
    words, labels = helpers.WORDS, ("entailment", "neutral", "contradiction")
    frame = pd.DataFrame(
        {
            "text_a": [" ".join(words[i : i + 2 + i % 3]) for i in range(n)],
            "text_b": [words[-1 - i] for i in range(n)],
            "label": [labels[i % 3] for i in range(n)],
            "subset": [f"{name} {i % 2}" for i in range(n)],
        }
    )
    return encode(Examples(name, frame), helpers.word_tokenizer(), max_length=48)


@pytest.fixture(scope="session")
def inputs(cases: Cases) -> Inputs:
    """Nine texts in domain and eight out of domain."""
    data = {"id": encoded("matched", 9), "ood": encoded("hans", 8)}
    model = cases.get("bert").model
    return Inputs(ModelConfig("bert"), model, helpers.word_tokenizer(), data, {"id": 9, "ood": 8})


@pytest.fixture(scope="session")
def means(inputs: Inputs) -> MeanActivations:
    return MeanActivations.compute(inputs.model, inputs.data["id"], n_samples=0)
