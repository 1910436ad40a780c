"""Screening of pairs: interactions predicted from gradients with respect to mask values.

The interaction of a and b is how much more the metric changes without b when a is gone. With a
ablated, the change without b is to first order minus the gradient of the metric with respect to b's
mask value; so the difference of that gradient in the full model and without a predicts the
interaction, and one backward pass per component does for all pairs. Both orders of a pair are
averaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore import progress
from mechcore.ablation.interactions.predictors import MaskedMargins, PairRequest, Predictions
from mechcore.components import Mask
from mechcore.evaluation.cost import Cost
from mechcore.models.protocol import frozen
from mechcore.partial import Partial, Steps


def screening(request: PairRequest) -> Predictions:
    """From gradients of the full model and of the model without each component.

    The request's folder keeps gradients, so that they are taken once.

    Raises:
        InputError: labels and classes cannot be matched.
    """
    function, components = MaskedMargins(request), request.components
    full = Mask.full(function.shape)
    masks = [full, *(full.without(c) for c in components)]
    gradients = torch.zeros(len(masks), len(components))
    own = {"labels": function.correct, "components": [str(component) for component in components]}
    with (
        frozen(request.model),
        left("screening", request, gradients, batches=function.batches, **own) as steps,
    ):
        for i in steps:
            gradients[i] = _gradient(function, masks[i])[function.places]
    cost = Cost(forwards=len(masks), backwards=len(masks))
    return Predictions.of(components, gradients[0] - gradients[1:], cost)


@contextmanager
def left(kind: str, of: Any, total: Tensor, **depends_on: Any) -> Iterator[Iterator[int]]:
    """Numbers of the rows of ``total`` that are left to fill; the others are as they were kept.

    ``of`` has the model, data, means and fill, and the ``state`` that keeps rows.
    """
    facts = {name: getattr(of, name) for name in ("model", "data", "means", "fill")}
    with Steps(Partial(of.state, kind, **facts, **depends_on), {"found": total}) as steps:
        numbers = [number for number in range(len(total)) if (number,) not in steps.done]
        with progress.bar("screening", len(numbers)) as advance:

            def one_by_one() -> Iterator[int]:
                for number in numbers:
                    yield number
                    steps.finish(number)
                    advance()

            yield one_by_one()


def _gradient(function: MaskedMargins, mask: Mask) -> Float[Tensor, "layer component"]:
    """Of the mean margin, by mask values."""
    values = mask.values.clone().requires_grad_()
    total = torch.zeros_like(mask.values)
    for rows in function.batches:
        total += torch.autograd.grad(function.total(values, rows), values)[0].cpu()
    return total / function.n_examples
