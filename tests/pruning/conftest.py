"""Models that the pruning tests share, their means and their data."""

from __future__ import annotations

from typing import Any

import helpers
import pytest
import torch
from helpers import Cases
from pruning.oracles import PLANTED, encoded_for

from mechcore.data.encoding import EncodedExamples
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.protocol import weights_of


@pytest.fixture(scope="session")
def data() -> EncodedExamples:
    """Pairs of short random sentences of many lengths."""
    return encoded_for("bert")


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A classifier in which everything but `PLANTED` writes nothing, and these write loudly."""
    model = helpers.hf_classifier("bert", seed=1)
    with torch.no_grad():
        for layer, block in enumerate(model.bert.encoder.layer):
            output = block.attention.output.dense.weight
            for head in range(helpers.N_HEADS):
                loud = f"L{layer}.H{head}" in PLANTED
                output[:, 4 * head : 4 * head + 4] *= 3.0 if loud else 0.0
            block.output.dense.weight *= 1.0 if f"L{layer}.MLP" in PLANTED else 0.0
        model.classifier.weight *= 8
    path = tmp_path_factory.mktemp("planted")
    model.save_pretrained(path)
    return load_model(path)


@pytest.fixture(scope="session")
def planted_means(planted: Any, data: EncodedExamples) -> MeanActivations:
    return MeanActivations.compute(planted, data, n_samples=0)


@pytest.fixture(scope="session")
def loud(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A random classifier whose answers depend on every component, and the plain model."""
    model = helpers.hf_classifier("bert", seed=1)
    with torch.no_grad():
        model.classifier.weight *= 8
    path = tmp_path_factory.mktemp("loud")
    model.save_pretrained(path)
    return load_model(path), model


@pytest.fixture(scope="session")
def loud_means(loud: tuple[Any, Any], data: EncodedExamples) -> MeanActivations:
    return MeanActivations.compute(loud[0], data, n_samples=0)


@pytest.fixture
def trainable(cases: Cases) -> Any:
    """A model of which every other weight is trainable."""
    model = load_model(cases.path("bert"))
    for i, parameter in enumerate(weights_of(model).parameters()):
        parameter.requires_grad_(i % 2 == 0)
    return model
