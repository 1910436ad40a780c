"""Subnetworks by a ranking of components, and the rankings by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from jaxtyping import Float
from torch import Tensor

from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.masking.means import MeanActivations
from mechcore.models.model_identity import ModelIdentity
from mechcore.pruning.attribution import attribution_scores
from mechcore.pruning.discretise import discretise
from mechcore.pruning.settings import as_runs, check_keeps_some
from mechcore.pruning.subnetwork import Subnetwork
from mechcore.pruning.uniform_sampling import ugs_scores

Scoring: TypeAlias = Callable[..., Float[Tensor, "layer component"]]


@dataclass(frozen=True)
class Ranking:
    """A way to score components.

    Attributes:
        scores: function of model, data and means, and of ``seed`` where there is one.
        seed: what the seed is of: of nothing, of the ``"data"``, such as their order, or of the
            ``"masks"``; then every seed has a ranking of its own.
    """

    scores: Scoring
    seed: Literal["data", "masks"] | None = None


RANKINGS: Mapping[str, Ranking] = {
    "attribution": Ranking(attribution_scores),
    "ugs": Ranking(ugs_scores, "masks"),
}
"""Rankings by name; all of them are among `mechcore.pruning.METHODS`."""


def attribute(
    model: Any,
    data: Any,
    means: MeanActivations,
    *,
    sparsity: float | Sequence[float],
    method: str = "attribution",
    seed: int = 0,
) -> list[Subnetwork]:
    """Subnetworks of the highest scores of a ranking, one for each target sparsity.

    Args:
        model: any TransformerLens model; it stays as it is.
        data: examples of any form, see `mechcore.data.given`; their labels are not used.
        means: the model's mean activations.
        sparsity: shares of components to prune, in [0, 1).
        method: one of `RANKINGS`.
        seed: of the draw of ``data``, to name the result by, and of what a ranking draws.

    Raises:
        InputError: a sparsity is outside [0, 1), keeps no component or repeats, or the method is
            unknown.
    """
    if method not in RANKINGS:
        raise InputError(f"attribution: method is {method!r}; expected {' or '.join(RANKINGS)}")
    return ranked(RANKINGS[method], method, model, data, means, sparsity, seed)


def ranked(
    ranking: Ranking,
    name: str,
    model: Any,
    data: Any,
    means: MeanActivations,
    sparsity: float | Sequence[float],
    seed: int = 0,
) -> list[Subnetwork]:
    """Subnetworks of the highest scores of any ranking, see `attribute`."""
    targets, (seed,) = as_runs(sparsity, seed)
    shape, identity = ModelShape.of(model), ModelIdentity.of(model)
    check_keeps_some(targets, shape)
    scores = ranking.scores(model, data, means, **({"seed": seed} if ranking.seed else {}))
    masks = [discretise(scores, target, shape).with_identity(identity) for target in targets]
    return [
        Subnetwork(mask, target, seed, scores, name, means=means.data)
        for mask, target in zip(masks, targets, strict=True)
    ]
