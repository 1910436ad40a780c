from __future__ import annotations

import pytest
from helpers import ARCHITECTURES, Cases

from mechcore.models.running import n_parameters


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gpt2-lm"])
def test_weights_are_counted_as_the_checkpoint_has_them(cases: Cases, architecture: str) -> None:
    case = cases.get(architecture)
    assert n_parameters(case.model) == sum(p.numel() for p in case.reference.parameters())
