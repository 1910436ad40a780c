"""Cases of known truth, and how well rankings, masks and interactions recover it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from sklearn.metrics import roc_auc_score
from torch import Tensor

from mechcore.ablation.sets import ComponentSet
from mechcore.components import Component, Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError, MismatchError
from mechcore.showing import Shown


@dataclass(frozen=True)
class Truth:
    """What is true of a model by construction; None where unknown.

    Attributes:
        components: those its answers depend on.
        interactions: nonzero interactions of pairs, on the mean margin over all texts, in nats.
        core: components of the smallest subnetwork that is faithful in domain, if unique.
        generalising: components needed out of domain only.
    """

    components: frozenset[Component]
    interactions: Mapping[ComponentSet, float] | None = None
    core: frozenset[Component] | None = None
    generalising: frozenset[Component] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Case(Shown):
    """A TransformerLens model of known truth, with labelled texts by split."""

    name: str
    model: Any
    data: Mapping[str, EncodedExamples]
    truth: Truth


Ranking: TypeAlias = Tensor | np.ndarray
"""Scores of components, largest first: [layer, component] as in a mask."""


def by_component(scores: Ranking, shape: ModelShape) -> dict[Component, float]:
    """The score of every component, after checks of its shape and finiteness."""
    array = scores.detach().cpu().numpy() if isinstance(scores, Tensor) else np.asarray(scores)
    if array.shape != (shape.n_layers, shape.columns):
        raise MismatchError(
            f"ranking: found shape {array.shape}; the model has {shape}, expected "
            f"({shape.n_layers}, {shape.columns})"
        )
    by_name = dict(zip(shape.components, array.astype(float).ravel().tolist(), strict=True))
    _check_finite("ranking", by_name)
    return by_name


def node_auroc(scores: Ranking, truth: Truth, shape: ModelShape) -> float:
    """Probability that a true component ranks above another; ties count half."""
    return _auroc(by_component(scores, shape), truth.components, "component")


def pair_auroc(predicted: Mapping[ComponentSet, float], truth: Truth) -> float:
    """Probability that an interacting pair has a larger absolute prediction than another."""
    _check_finite("predicted", predicted)
    sizes = {pair: abs(value) for pair, value in predicted.items()}
    return _auroc(sizes, _interacting(truth), "pair")


def sign_accuracy(predicted: Mapping[ComponentSet, float], truth: Truth) -> float:
    """Share of interacting pairs predicted with the right sign, which 0 never has."""
    true = _interacting(truth)
    _check_finite("predicted", predicted)
    _check_scored(predicted, true, "pair")
    if not true:
        raise InputError("sign accuracy: no pair interacts; expected at least one")
    right = [np.sign(predicted[pair]) == np.sign(size) for pair, size in true.items()]
    return float(np.mean(right))


def mask_distance(mask: Mask, truth: Truth) -> int:
    """Number of components that a mask wrongly keeps or drops."""
    for component in truth.components:
        mask.shape.index(component)
    return len(set(mask.kept) ^ truth.components)


def _interacting(truth: Truth) -> dict[ComponentSet, float]:
    if truth.interactions is None:
        raise InputError("truth: interactions are unknown; expected a case with known interactions")
    return {pair: size for pair, size in truth.interactions.items() if size != 0}


def _check_finite(what: str, numbers: Mapping[Any, float]) -> None:
    for key, value in numbers.items():
        if not math.isfinite(value):
            raise InputError(f"{what}: found {value} for {key}; expected a finite number")


def _check_scored(scores: Collection[Any], true: Collection[Any], what: str) -> None:
    if missing := sorted(str(key) for key in true if key not in scores):
        raise InputError(
            f"scores: none for the true {what} {missing[0]}; expected one for every true {what}: "
            "pass 0 where nothing is predicted"
        )


def _auroc(scores: Mapping[Any, float], true: Collection[Any], what: str) -> float:
    _check_scored(scores, true, what)
    flags = [key in true for key in scores]
    if not 0 < sum(flags) < len(flags):
        raise InputError(
            f"AUROC: {sum(flags)} of {len(flags)} are a true {what}; expected at least one "
            "that is, and one that is not"
        )
    return float(roc_auc_score(flags, list(scores.values())))
