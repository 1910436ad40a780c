"""Ways to predict interactions of pairs that the benchmark compares, and no search offers.

With M the mean margin as a function of mask values, the interaction of a pair is

    M(1, 1) - M(0, 1) - M(1, 0) + M(0, 0),

which is the integral of d2M / dm_a dm_b over the unit square. So that derivative at the full model
(`hessian`) predicts it, as exactly as the derivative is the same all over the square. One backward
pass through a backward pass is a row of the matrix of derivatives, so that one per component gives
all pairs. Screening is the integral along one side of the square: it ablates a component in full,
where this changes it infinitesimally. A model whose only curvature are kinks (ReLU, piecewise
linear) has derivatives of 0 nearly everywhere; no prediction can be made from those.

`proxy` is a model of the interactions of random sets, taken to be the sum of their pairs'; what
terms of three and more explain goes astray into these. `co_ablation` is how much more ablating one
component does when another is gone.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import softmax
from sklearn.linear_model import LassoCV
from torch import Tensor

from mechcore.ablation.cuts import ComponentSet
from mechcore.ablation.effects.changes import Answers
from mechcore.ablation.joint.predictors import (
    MaskedMargins,
    PairRequest,
    Predictions,
    mean_interactions,
)
from mechcore.components import Mask
from mechcore.errors import InputError
from mechcore.evaluation.cost import Cost
from mechcore.models.devices import sent
from mechcore.models.protocol import device_of, frozen

N_POINTS = 4
"""On the way that `integrated_hessian` averages along."""
N_SETS = 1000
"""Random sets of `proxy`."""
LARGEST = 6
"""Components of the largest sets."""
_FOLDS = 5


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
    """From a lasso on the interactions of random sets, its penalty chosen by cross-validation.

    Components are ablated alone, and in `N_SETS` sets of 2 to `LARGEST`, all sizes as likely; one
    drawn twice counts once.

    Raises:
        InputError: labels and classes cannot be matched, or there are too few different sets for
            cross-validation.
    """
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
    """How much more ablating one changes the answers when the other is gone (CoAx).

    Conditional co-ablation (Gong et al., arXiv 2607.01940) of a component b for the seed {a}:
    E(z_a - z_ab) - E(z - z_b), where z are logits and E is the energy of a change of them, its
    variance under the full model's answers, averaged over examples. It needs no labels, and finds
    backups, which do nothing until another component is gone. Energies are halved here, so that
    they are KL divergences to second order, and both orders of a pair are averaged. The result
    ranks pairs as a prediction of interactions would, with the other sign, as these are lowest
    where pairs do most together, but does not estimate those of the margin: a change of the answers
    counts whether it is for better or worse.

    Raises:
        InputError: labels and classes cannot be matched.
    """
    ablated = request.ablate([*request.singles, *request.pairs])
    full = ablated.full.logits.double().numpy()
    chances = softmax(full, axis=-1)

    def energy(change: Float[np.ndarray, "example cls"]) -> float:
        mean = (chances * change).sum(-1, keepdims=True)
        return float((chances * (change - mean) ** 2).sum(-1).mean()) / 2

    def shrunk(pair: ComponentSet) -> float:
        both = _logits(ablated.without[pair])
        alone = [_logits(ablated.without[ComponentSet((c,))]) for c in pair.components]
        return sum(energy(full - one) - energy(one - both) for one in alone) / 2

    predicted = {pair: shrunk(pair) for pair in request.pairs}
    return Predictions(predicted, Cost(forwards=1 + len(ablated.sets)), in_nats=False)


def _logits(answers: Answers) -> Float[np.ndarray, "example cls"]:
    assert answers.logits is not None  # of a whole vocabulary; encoded examples have answers
    return answers.logits.astype(float)
