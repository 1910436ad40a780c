"""Conditional co-ablation: how much more ablating one component does when another is gone."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from mechcore.ablation.effects import Answers, ComponentSet
from mechcore.ablation.predicting import PairRequest, Predictions
from mechcore.evaluation.cost import Cost


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

    The request's file is that of the sweep, which goes on from it.

    Raises:
        InputError: labels and classes cannot be matched, or the file is that of another sweep.
    """
    found = request.ablate([*request.singles, *request.pairs])
    full = found.full.logits.double().numpy()
    chances = softmax(full, axis=-1)

    def energy(change: Float[np.ndarray, "example cls"]) -> float:
        mean = (chances * change).sum(-1, keepdims=True)
        return float((chances * (change - mean) ** 2).sum(-1).mean()) / 2

    def shrunk(pair: ComponentSet) -> float:
        both = _logits(found.without[pair])
        alone = [_logits(found.without[ComponentSet((c,))]) for c in pair.components]
        return sum(energy(full - each) - energy(each - both) for each in alone) / 2

    predicted = {pair: shrunk(pair) for pair in request.pairs}
    return Predictions(predicted, Cost(forwards=1 + len(found.sets)), in_nats=False)


def _logits(answers: Answers) -> Float[np.ndarray, "example cls"]:
    assert answers.logits is not None  # of a whole vocabulary; encoded examples have answers
    return answers.logits.astype(float)
