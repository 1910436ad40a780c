"""Predictors of pairwise interactions that are only in the benchmark, not in searches."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import softmax
from sklearn.linear_model import LassoCV
from torch import Tensor

from mechcore.ablation.joint.predictors import (
    MaskedMargins,
    PairRequest,
    Predictions,
    mean_interactions,
)
from mechcore.ablation.sets import ComponentSet
from mechcore.components import Mask
from mechcore.errors import InputError
from mechcore.evaluation.cost import Cost
from mechcore.models.devices import sent
from mechcore.models.protocol import device_of, frozen

N_POINTS = 4
"""Points on the path that `integrated_hessian` averages over."""
N_SETS = 1000
"""Number of random sets of `proxy`."""
LARGEST = 6
"""Size of its largest sets."""
_FOLDS = 5


def hessian(request: PairRequest) -> Predictions:
    """Mixed second derivatives at the full model, taken as constant over mask values."""
    return _along(request, torch.ones(1), torch.ones(1))


def integrated_hessian(request: PairRequest) -> Predictions:
    """Mean of these derivatives between the full model and the one without all components.

    Weights are those of integrated Hessians (Janizek et al., arXiv 2002.04138), -t log t at mask
    value t, but normalised to sum to one, which is exact if the margin is quadratic in mask values.
    """
    points = (torch.arange(N_POINTS) + 0.5) / N_POINTS
    weights = -points * points.log()
    return _along(request, points, weights / weights.sum())


def _along(
    request: PairRequest, points: Float[Tensor, " point"], weights: Float[Tensor, " point"]
) -> Predictions:
    """Weighted mean of derivatives with all components at mask values ``points``."""
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
    """Second derivatives of the summed margins of a batch, with all components at ``point``."""
    values = Mask.full(function.shape).values.clone()
    values[function.places] = point
    # On the model's device, to avoid a synchronisation per row.
    values = sent(values, device_of(function.request.model)).requires_grad_()
    places = tuple(sent(axis, values.device) for axis in function.places)
    total = function.total(values, rows)
    (gradient,) = torch.autograd.grad(total, values, create_graph=True)
    if not gradient.requires_grad:  # the margin is linear in mask values
        return torch.zeros(2 * (len(function.request.components),))
    seconds = [
        torch.autograd.grad(slope, values, retain_graph=True)[0][places]
        for slope in gradient[places]
    ]
    return torch.stack(seconds).cpu()


def proxy(request: PairRequest) -> Predictions:
    """Lasso fit to the interactions of `N_SETS` random sets of 2 to `LARGEST` components."""
    components, rng = list(request.components), np.random.default_rng(request.seed)
    sizes = rng.integers(2, min(LARGEST, len(components)), N_SETS, endpoint=True)
    drawn = [rng.choice(len(components), size, replace=False) for size in sizes]
    sets = list(dict.fromkeys(ComponentSet.of([components[i] for i in row]) for row in drawn))
    if len(sets) < 2 * _FOLDS:
        raise InputError(
            f"proxy: {len(sets)} different sets of {len(components)} components; expected at least "
            f"{2 * _FOLDS}: take more components, or 'exact'"
        )
    ablated = request.ablate([*request.singles, *sets])
    interactions, cost = mean_interactions(ablated, sets), Cost(forwards=1 + len(ablated.sets))
    pairs = [set(pair.components) for pair in request.pairs]
    features = [[pair <= set(cut.components) for pair in pairs] for cut in sets]
    lasso = LassoCV(
        eps=1e-4, cv=_FOLDS, fit_intercept=False, max_iter=10_000, tol=1e-7, random_state=0
    ).fit(np.array(features, dtype=float), np.array(list(interactions.values())))
    return Predictions(dict(zip(request.pairs, lasso.coef_.tolist(), strict=True)), cost)


def co_ablation(request: PairRequest) -> Predictions:
    """How much more ablating one component changes the answers without the other (CoAx).

    Conditional co-ablation (Gong et al., arXiv 2607.01940) of b for the seed {a} is
    E(z_a - z_ab) - E(z - z_b), where z are logits and E is half the variance of their change under
    the full model's answers. Both orders are averaged, with the sign of interactions.
    """
    ablated = request.ablate([*request.singles, *request.pairs])
    full = ablated.full.logits.double().numpy()
    chances = softmax(full, axis=-1)

    def energy(change: Float[np.ndarray, "example cls"]) -> float:
        mean = (chances * change).sum(-1, keepdims=True)
        return float((chances * (change - mean) ** 2).sum(-1).mean()) / 2

    def shrunk(pair: ComponentSet) -> float:
        sets = [pair, *(ComponentSet((c,)) for c in pair.components)]
        both, *alone = (np.asarray(ablated.without[one].logits, dtype=float) for one in sets)
        return sum(energy(full - one) - energy(one - both) for one in alone) / 2

    predicted = {pair: shrunk(pair) for pair in request.pairs}
    return Predictions(predicted, Cost(forwards=1 + len(ablated.sets)), in_nats=False)
