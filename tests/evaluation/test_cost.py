"""Passes of a model, counted inside a block and nowhere else."""

from __future__ import annotations

import pytest
import torch
from helpers import Case, hook_counts, padded, texts

from mechcore.components import Mask
from mechcore.evaluation.cost import Cost, counted
from mechcore.masking.interventions import masked
from mechcore.models.protocol import forward


def test_passes_are_counted_per_text_and_mask(case: Case) -> None:
    batch, before = padded(texts()), hook_counts(case.model)  # five texts
    values = Mask.stack([Mask.full(case.model).without("L0.H0")] * 3).values.requires_grad_()
    with counted(case.model, 10) as cost:
        with torch.no_grad():
            forward(case.model, batch)
        assert (cost.forwards, cost.backwards) == (0.5, 0)
        with masked(case.model, Mask(values), fill="zero") as run:
            loss = run(batch).sum()
        assert (cost.forwards, cost.backwards) == (2, 0)
        for _ in range(2):
            torch.autograd.grad(loss, values, retain_graph=True)
        assert (cost.forwards, cost.backwards) == (2, pytest.approx(3))
    with torch.no_grad():
        forward(case.model, batch)
    assert cost.forwards == 2
    assert hook_counts(case.model) == before
    assert str(Cost(2, 0.5)) == "2 forward and 0.5 backward passes per example"
