"""Screening of pairs: interactions predicted from gradients with respect to mask values.

The interaction of a and b is how much more the metric changes without b when a is gone. With a
ablated, the change without b is to first order minus the gradient of the metric with respect to b's
mask value; so the difference of that gradient in the full model and without a predicts the
interaction, and one backward pass per component does for all pairs. Both orders of a pair are
averaged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore import progress
from mechcore.ablation.kept import SECONDS_BETWEEN_SAVES
from mechcore.ablation.predicting import MaskedMargins, PairRequest, Predictions
from mechcore.components import Mask
from mechcore.evaluation.cost import Cost
from mechcore.models.running import frozen
from mechcore.state import StateFile


def screening(request: PairRequest) -> Predictions:
    """From gradients of the full model and of the model without each component.

    The request's store keeps gradients, so that they are taken once.

    Raises:
        InputError: labels and classes cannot be matched.
        StateError: the gradients so far are those of another run, or damaged.
    """
    function, components = MaskedMargins(request), request.components
    full = Mask.full(function.shape)
    masks = [full, *(full.without(c) for c in components)]
    found = torch.zeros(len(masks), len(components))
    with frozen(request.model), resumed(request.store, found, len(masks)) as steps:
        for i in steps:
            found[i] = _gradient(function, masks[i])[function.places]
    cost = Cost(forwards=len(masks), backwards=len(masks))
    return Predictions.of(components, found[0] - found[1:], cost)


@contextmanager
def resumed(store: StateFile, found: Tensor, n: int) -> Iterator[Iterator[int]]:
    """Number the steps of a screening that are left, keeping what they find.

    Args:
        store: keeps it, every now and then and when the block ends, however it does.
        found: what steps write to; takes what was kept.
        n: steps there are.

    Raises:
        StateError: what was kept is of another run, or damaged.
    """

    def take(tensors: dict[str, Tensor], notes: dict[str, Any]) -> int:
        found.copy_(tensors["gradients"])
        return int(notes["done"])

    done = start = store.restore_by(take) or 0

    def steps(advance: Callable[[], None]) -> Iterator[int]:
        nonlocal done
        saved_at = time.monotonic()
        for number in range(start, n):
            yield number
            done += 1
            advance()
            if time.monotonic() - saved_at > SECONDS_BETWEEN_SAVES:
                store.save({"gradients": found}, {"done": done})
                saved_at = time.monotonic()

    try:
        with progress.bar("screening", n - start) as advance:
            yield steps(advance)
    finally:
        if done > start:
            store.save({"gradients": found}, {"done": done})


def _gradient(function: MaskedMargins, mask: Mask) -> Float[Tensor, "layer component"]:
    """Of the mean margin, by mask values."""
    values = mask.values.clone().requires_grad_()
    total = torch.zeros_like(mask.values)
    for rows in function.batches:
        total += torch.autograd.grad(function.total(values, rows), values)[0].cpu()
    return total / function.n_examples
