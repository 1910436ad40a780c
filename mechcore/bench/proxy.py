"""A model of the interactions of random sets, whose coefficients are those of pairs.

The interaction of a set is taken to be the sum of its pairs'; what terms of three and more explain
goes astray into these.
"""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LassoCV

from mechcore.ablation.effects import ComponentSet
from mechcore.ablation.predicting import PairRequest, Predictions
from mechcore.errors import InputError
from mechcore.evaluation.cost import Cost

N_SETS = 1000
LARGEST = 6
"""Components of the largest sets."""
_FOLDS = 5


def proxy(request: PairRequest) -> Predictions:
    """From a lasso on the interactions of random sets, its penalty chosen by cross-validation.

    Components are ablated alone, and in `N_SETS` sets of 2 to `LARGEST`, all sizes as likely; one
    drawn twice counts once. The request's file is that of the sweep, which goes on from it.

    Raises:
        InputError: labels and classes cannot be matched, the file is that of another sweep, or
            there are too few different sets for cross-validation.
    """
    components, rng = list(request.components), np.random.default_rng(request.seed)
    sizes = rng.integers(2, min(LARGEST, len(components)), N_SETS, endpoint=True)
    drawn = [rng.choice(len(components), size, replace=False) for size in sizes]
    sets = list(dict.fromkeys(ComponentSet.of([components[i] for i in each]) for each in drawn))
    if len(sets) < 2 * _FOLDS:
        raise InputError(
            f"proxy: {len(sets)} different sets of {len(components)} components; expected at least "
            f"{2 * _FOLDS}: take more components, or 'exact'"
        )
    found = request.ablate([*request.singles, *sets])
    changes = {each: float(found.changes(each, "margin").mean()) for each in found.sets}
    beyond = [
        changes[each] - sum(changes[ComponentSet((c,))] for c in each.components) for each in sets
    ]
    pairs = [set(pair.components) for pair in request.pairs]
    features = [[pair <= set(each.components) for pair in pairs] for each in sets]
    lasso = LassoCV(
        eps=1e-4, cv=_FOLDS, fit_intercept=False, max_iter=10_000, tol=1e-7, random_state=0
    ).fit(np.array(features, dtype=float), np.array(beyond))
    interactions = dict(zip(request.pairs, lasso.coef_.tolist(), strict=True))
    return Predictions(interactions, Cost(forwards=1 + len(found.sets)))
