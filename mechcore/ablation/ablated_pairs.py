"""Interactions of all pairs from ablating them: as exact as it gets, and as dear."""

from __future__ import annotations

from mechcore.ablation.effects import ComponentSet
from mechcore.ablation.predicting import PairRequest, Predictions
from mechcore.evaluation.cost import Cost


def exact(request: PairRequest) -> Predictions:
    """The interactions themselves, on the request's examples.

    The request's file is that of the sweep, which goes on from it.

    Raises:
        InputError: labels and classes cannot be matched, or the file is that of another sweep.
    """
    found = request.ablate([*request.singles, *request.pairs])
    changes = {each: float(found.changes(each, "margin").mean()) for each in found.sets}
    interactions = {
        pair: changes[pair] - sum(changes[ComponentSet((c,))] for c in pair.components)
        for pair in request.pairs
    }
    return Predictions(interactions, Cost(forwards=1 + len(found.sets)))
