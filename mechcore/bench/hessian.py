"""Interactions to second order: mixed derivatives of the margin by two mask values.

With M the mean margin as a function of mask values, the interaction of a pair is

    M(1, 1) - M(0, 1) - M(1, 0) + M(0, 0),

which is the integral of d2M / dm_a dm_b over the unit square. So that derivative at the full model
predicts it, as exactly as the derivative is the same all over the square. One backward pass through
a backward pass is a row of the matrix of derivatives, so that one per component gives all pairs.
`mechcore.ablation.screening` is the integral along one side of the square: it ablates a component
in full, where this changes it infinitesimally.

A model whose only curvature are kinks (ReLU, piecewise linear) has derivatives of 0 nearly
everywhere; no prediction can be made from those.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore.ablation.predicting import MaskedMargins, PairRequest, Predictions
from mechcore.components import Mask
from mechcore.evaluation.cost import Cost
from mechcore.models.devices import sent
from mechcore.models.protocol import device_of, frozen

N_POINTS = 4
"""On the way that `integrated_hessian` averages along."""


def hessian(request: PairRequest) -> Predictions:
    """From the mixed second derivatives at the full model.

    Raises:
        InputError: labels and classes cannot be matched.
    """
    return _along(request, torch.ones(1), torch.ones(1))


def integrated_hessian(request: PairRequest) -> Predictions:
    """From those derivatives between the full model and the one without any of the components.

    All mask values go down together. Weights are those of integrated Hessians (Janizek et al.,
    arXiv 2002.04138), -t log t where mask values are t, but add up to one, so that the prediction
    is exact where the margin is quadratic in mask values; points are the middles of `N_POINTS`
    equal parts of the way.

    Raises:
        InputError: labels and classes cannot be matched.
    """
    points = (torch.arange(N_POINTS) + 0.5) / N_POINTS
    weights = -points * points.log()
    return _along(request, points, weights / weights.sum())


def _along(
    request: PairRequest, points: Float[Tensor, " point"], weights: Float[Tensor, " point"]
) -> Predictions:
    """From a weighted mean of derivatives at mask values ``points`` of all components."""
    function, n = MaskedMargins(request), len(request.components)
    sums = torch.zeros(len(points), n, n)
    with frozen(request.model):
        for total, point in zip(sums, points, strict=True):
            for rows in function.batches:
                total += _derivatives(function, point, rows)
    means = sums / function.n_examples
    cost = Cost(forwards=len(points), backwards=len(points) * (1 + 2 * n))
    return Predictions.of(request.components, (weights[:, None, None] * means).sum(0), cost)


def _derivatives(
    function: MaskedMargins, point: Tensor, rows: list[int]
) -> Float[Tensor, "component component"]:
    """Second derivatives of the sum of a batch's margins, where all components are at ``point``."""
    values = Mask.full(function.shape).values.clone()
    values[function.places] = point
    # On the model's device, or every row would be waited for.
    values = sent(values, device_of(function.request.model)).requires_grad_()
    places = tuple(sent(each, values.device) for each in function.places)
    total = function.total(values, rows)
    (gradient,) = torch.autograd.grad(total, values, create_graph=True)
    if not gradient.requires_grad:  # the margin is linear in mask values
        return torch.zeros(2 * (len(function.request.components),))
    seconds = [
        torch.autograd.grad(each, values, retain_graph=True)[0][places] for each in gradient[places]
    ]
    return torch.stack(seconds).cpu()
