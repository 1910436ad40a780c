"""Rankings of components by name, what they make, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest
from pruning.oracles import QUICK

from mechcore.data.encoding import EncodedExamples
from mechcore.masking.means import MeanActivations
from mechcore.pruning import RANKINGS, Request
from mechcore.pruning.settings import PruneSettings

NEW = ["gradient-drop", "singles", "optimal", "ugs"]


def request(
    model: Any, data: EncodedExamples, means: MeanActivations, settings: PruneSettings = QUICK
) -> Request:
    return Request(model, data, means, [0.7, 0.3], [5, 6], settings, data_seed=3)


@pytest.mark.parametrize("name", RANKINGS)
def test_every_ranking_is_a_method(
    loud: tuple[Any, Any], loud_means: MeanActivations, data: EncodedExamples, name: str
) -> None:
    if name == "optimal":
        pytest.skip("trained in its own tests")
