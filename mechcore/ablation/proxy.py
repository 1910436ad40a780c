"""A model of the interactions of random sets, whose coefficients are those of pairs.

D(S) is the sum of the Moebius dividends of all subsets of S (`mechcore.ablation.cooperative`). With
z_i = 1 where component i is ablated,

    D(S) - sum of D({i}) z_i = sum of I({i, j}) z_i z_j + terms of three and more,

so that without those the interaction of a set is the sum of its pairs', which are the coefficients
of a linear model without intercept. It is fitted to random small sets, and says by R2 on sets held
out how much of their interactions pairs explain; what the others explain goes astray into the
coefficients. The lasso fits it, as few pairs interact much and there may be more pairs than sets.
"""

from __future__ import annotations

import itertools
import warnings

import numpy as np
from sklearn.linear_model import Lasso, LassoCV
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_predict

from mechcore.ablation.effects import ComponentSet
from mechcore.ablation.predicting import PairRequest, Predictions
from mechcore.errors import InputError, MechcoreWarning
from mechcore.evaluation.cost import Cost

LARGEST = 6
"""Components of the largest sets; larger ones tell of more pairs, and of more terms of three."""
LEAST_FIT = 0.5
"""R2 under which there is a warning."""
_FOLDS = 5
_FIT = {"fit_intercept": False, "max_iter": 10_000, "tol": 1e-7}


def proxy(request: PairRequest) -> Predictions:
    """From a lasso on the interactions of random sets, its penalty chosen by cross-validation.

    Components are ablated alone, and in ``request.n_sets`` sets of 2 to `LARGEST`, all sizes
    as likely; one drawn twice counts once. R2 is that of the same cross-validation, at the penalty
    chosen. The request's file is that of the sweep, which goes on from it.

    Raises:
        InputError: labels and classes cannot be matched, the file is that of another sweep, or
            there are too few different sets for cross-validation.
    """
    components, rng = list(request.components), np.random.default_rng(request.seed)
    n, largest = len(components), min(LARGEST, len(components))
    sizes = rng.integers(2, largest, request.n_sets, endpoint=True)
    drawn = [rng.choice(n, size, replace=False) for size in sizes]
    sets = list(dict.fromkeys(ComponentSet.of([components[i] for i in each]) for each in drawn))
    if len(sets) < 2 * _FOLDS:
        raise InputError(
            f"proxy: {len(sets)} different sets among {request.n_sets} random ones of {n} "
            f"components; expected at least {2 * _FOLDS}: take more, or 'exact'"
        )
    found = request.ablate([*request.singles, *sets])
    drops = {each: float(found.drops(each, "margin").mean()) for each in found.sets}
    alone = {each.components[0]: drops[each] for each in request.singles}
    interactions = np.array([drops[s] - sum(alone[c] for c in s.components) for s in sets])
    columns = {pair: i for i, pair in enumerate(request.pairs)}
    features = np.zeros((len(sets), len(columns)))
    for row, each in zip(features, sets, strict=True):
        for pair in itertools.combinations(each.components, 2):
            row[columns[ComponentSet(pair)]] = 1
    folds = KFold(_FOLDS)
    lasso = LassoCV(eps=1e-4, cv=folds, **_FIT).fit(features, interactions)
    chosen = Lasso(lasso.alpha_, **_FIT)
    held_out = cross_val_predict(chosen, features, interactions, cv=folds)
    fit = float(r2_score(interactions, held_out))
    _warn(fit, int((features.sum(0) == 0).sum()), len(columns))
    coefficients = lasso.coef_.tolist()
    return Predictions(
        dict(zip(columns, coefficients, strict=True)), Cost(forwards=1 + len(found.sets)), fit
    )


def _warn(fit: float, n_unseen: int, n_pairs: int) -> None:
    """Say that the predictions are poor."""
    if n_unseen:
        warnings.warn(
            f"proxy: {n_unseen} of {n_pairs} pairs are in none of the random sets, and are "
            "predicted not to interact; draw more sets",
            MechcoreWarning,
            stacklevel=3,
        )
    if fit < LEAST_FIT:
        warnings.warn(
            f"proxy: the model explains little (R2 {fit:.2f} on sets held out), so that its "
            "order of pairs says little; draw more sets, or take another way to predict",
            MechcoreWarning,
            stacklevel=3,
        )
