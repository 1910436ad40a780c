"""A model of the margin under random masks, whose coefficients are interactions.

With z_i = 1 where component i is ablated, the drop of a set is the sum of its Moebius dividends
(`mechcore.ablation.cooperative`): D(z) = sum of D({i}) z_i + sum of I({i, j}) z_i z_j + terms of
three and more. Without those the model is linear in z_i and z_i z_j, has no intercept, as D is 0 at
the full model, and the coefficient of a product is the interaction of the pair. It is fitted to
the drops of random sets, and says by R2 on sets held out how much of them terms of up to two
explain; what the others explain goes astray into the coefficients.
"""

from __future__ import annotations

import itertools

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_predict

from mechcore.ablation.effects import ComponentSet
from mechcore.ablation.predicting import PairRequest, Predictions
from mechcore.errors import InputError
from mechcore.evaluation.cost import Cost

SHARE = 0.1
"""Chance of each component to be ablated by a mask; the more, the more terms of three and more."""
_PENALTIES = np.logspace(-6, 3, 19)
_FOLDS = 5


def proxy(request: PairRequest) -> Predictions:
    """From ridge regression on the drops of random sets, its penalty chosen by leaving sets out.

    Each of ``request.n_masks`` masks ablates every component with the same chance, `SHARE`; one
    drawn twice counts once. The request's file is that of the sweep, which goes on from it.

    Raises:
        InputError: labels and classes cannot be matched, the file is that of another sweep, or
            there are too few different masks for cross-validation.
    """
    components = list(request.components)
    masks = np.random.default_rng(request.seed).random((request.n_masks, len(components))) < SHARE
    masks = np.unique(masks[masks.any(1)], axis=0)
    if len(masks) < 2 * _FOLDS:
        raise InputError(
            f"proxy: {len(masks)} different masks among {request.n_masks} of {len(components)} "
            f"components; expected at least {2 * _FOLDS}: take more, or 'exact'"
        )
    masks = np.random.default_rng(request.seed).permutation(masks)
    sets = [ComponentSet.of([components[i] for i in np.flatnonzero(row)]) for row in masks]
    found = request.ablate(sets)
    drops = np.array([found.drops(each, "margin").mean() for each in sets])
    terms = [*itertools.combinations(range(len(components)), 2)]
    products = [masks[:, i] & masks[:, j] for i, j in terms]
    features = np.column_stack([masks, *products]).astype(float)
    ridge = RidgeCV(_PENALTIES, fit_intercept=False)
    held_out = cross_val_predict(ridge, features, drops, cv=KFold(_FOLDS))
    coefficients = ridge.fit(features, drops).coef_[len(components) :].tolist()
    interactions = {
        ComponentSet.of([components[i], components[j]]): value
        for (i, j), value in zip(terms, coefficients, strict=True)
    }
    cost = Cost(forwards=1 + len(sets))
    return Predictions(interactions, cost, float(r2_score(drops, held_out)))
