"""Models that the pruning tests share."""

from __future__ import annotations

import helpers
import pytest
import torch
from pruning.oracles import PLANTED, Steps, Subject


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A classifier in which everything but `PLANTED` writes nothing, and these write loudly."""
    model = helpers.hf_classifier("bert", seed=1)
    with torch.no_grad():
        for layer, block in enumerate(model.bert.encoder.layer):
            output = block.attention.output.dense.weight
            for head in range(helpers.N_HEADS):
                loud = f"L{layer}.H{head}" in PLANTED
                output[:, 4 * head : 4 * head + 4] *= 3.0 if loud else 0.0
            block.output.dense.weight *= 1.0 if f"L{layer}.MLP" in PLANTED else 0.0
    return Subject.of(model, tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="session")
def loud(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A random classifier whose answers depend on every component."""
    return Subject.of(helpers.hf_classifier("bert", seed=1), tmp_path_factory.mktemp("loud"))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)
