"""A model of the interactions of random sets, whose coefficients are those of pairs.

It is `mechcore.ablation.sparse_dividends` with terms of two alone: without terms of three and more
the interaction of a set is the sum of its pairs'. R2 on sets held out says how much of their
interactions pairs explain; what the others explain goes astray into the coefficients.
"""

from __future__ import annotations

from sklearn.metrics import r2_score

from mechcore.ablation.predicting import PairRequest, Predictions
from mechcore.ablation.sparse_fit import (
    LARGEST,
    drops_of,
    fit_orders,
    membership,
    random_sets,
    warn_if_poor,
)
from mechcore.errors import warn
from mechcore.evaluation.cost import Cost


def proxy(request: PairRequest) -> Predictions:
    """From a lasso on the interactions of random sets, its penalty chosen by cross-validation.

    Components are ablated alone, and in ``request.n_sets`` sets of 2 to `LARGEST`, all sizes
    as likely; one drawn twice counts once. R2 is that of the same cross-validation, at the penalty
    chosen. The request's file is that of the sweep, which goes on from it.

    Raises:
        InputError: labels and classes cannot be matched, the file is that of another sweep, or
            there are too few different sets for cross-validation.
    """
    components = list(request.components)
    sets = random_sets(components, request.n_sets, LARGEST, request.seed, "proxy", "'exact'")
    found = request.ablate([*request.singles, *sets])
    drops, alone = drops_of(found, sets, "margin")
    pairs = fit_orders(membership(sets, components), drops - alone, 2)[-1]
    fit = float(r2_score(drops - alone, pairs.held_out))
    if pairs.too_rare:
        warn(
            f"proxy: {pairs.too_rare} of {len(pairs.terms)} pairs are in none of the random sets, "
            "and are predicted not to interact; draw more sets"
        )
    warn_if_poor(
        "proxy",
        fit,
        "its order of pairs says little; draw more sets, or take another way to predict",
    )
    interactions = dict(zip(request.pairs, pairs.coefficients.tolist(), strict=True))
    return Predictions(interactions, Cost(forwards=1 + len(found.sets)), fit)
