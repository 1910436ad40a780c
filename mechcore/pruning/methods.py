"""Pruning methods, by name: functions of a `Request`, see docs/extend.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from jaxtyping import Float
from torch import Tensor

from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError
from mechcore.masking.means import MeanActivations
from mechcore.models.model_identity import ModelIdentity
from mechcore.pruning.attribution import attribution_scores, ugs_scores
from mechcore.pruning.discretise import discretise, random_subnetworks
from mechcore.pruning.discretise import layer_matched as matched_by_layer
from mechcore.pruning.pruner import prune
from mechcore.pruning.settings import PruneSettings, as_runs, check_keeps_some
from mechcore.pruning.subnetwork import Subnetwork
from mechcore.registry import Registry


@dataclass(frozen=True, eq=False)
class Request:
    """A request for subnetworks.

    Attributes:
        model: any TransformerLens model.
        data: training examples, whose labels are not used.
        target_sparsities: shares of the components.
        seeds: seeds, with one subnetwork each; a deterministic method may give one for all.
        settings: settings of L0 pruning.
        data_seed: seed of the order of examples.
        state: folder from which an interruptible method resumes; None saves nothing.
        trained: subnetworks by ``l0`` for the same request, for methods that match them.
    """

    model: Any
    data: EncodedExamples
    means: MeanActivations
    target_sparsities: Sequence[float]
    seeds: Sequence[int]
    settings: PruneSettings
    data_seed: int = 0
    state: Path | None = None
    trained: Sequence[Subnetwork] = ()


PruningMethod: TypeAlias = Callable[[Request], list[Subnetwork]]

METHODS: Registry[PruningMethod] = Registry(
    "pruning method",
    "mechcore.pruning_methods",
    {
        "l0": "mechcore.pruning.methods:l0",
        "attribution": "mechcore.pruning.methods:attribution",
        "ugs": "mechcore.pruning.methods:ugs",
        "random": "mechcore.pruning.methods:random",
        "layer-matched": "mechcore.pruning.methods:layer_matched",
    },
)
"""Methods by name, in the order of comparisons."""


@dataclass(frozen=True)
class Ranking:
    """The method that keeps the components with the highest scores.

    Attributes:
        name: name of the method.
        scores: function of model, data and means, and of ``seed`` if used.
        seed: what the seed controls: nothing, the ``"data"``, such as their order, or the
            ``"masks"``, in which case every seed has its own ranking.
    """

    name: str
    scores: Callable[..., Float[Tensor, "layer component"]]
    seed: Literal["data", "masks"] | None = None

    def __call__(self, request: Request) -> list[Subnetwork]:
        """Subnetworks by the ranking, one for each seed if the ranking is random."""
        model, means = request.model, request.means
        given = request.seeds if self.seed == "masks" else [request.data_seed]
        target_sparsities, seeds = as_runs(request.target_sparsities, given)
        shape, identity = ModelShape.of(model), ModelIdentity.of(model)
        check_keeps_some(target_sparsities, shape)
        subnetworks = []
        for seed in seeds:
            options = {"seed": seed} if self.seed else {}
            scores = self.scores(model, request.data, means, **options)
            for target_sparsity in target_sparsities:
                mask = discretise(scores, target_sparsity, shape).with_identity(identity)
                subnetwork = Subnetwork(
                    mask, target_sparsity, seed, scores, self.name, means=means.data
                )
                subnetworks.append(subnetwork)
        return subnetworks


attribution = Ranking("attribution", attribution_scores)
ugs = Ranking("ugs", ugs_scores, "masks")


def l0(request: Request) -> list[Subnetwork]:
    """Masks trained with L0 regularisation, see `mechcore.prune`."""
    return prune(
        request.model,
        request.data,
        request.means,
        target_sparsities=request.target_sparsities,
        seeds=request.seeds,
        preset=request.settings,
        data_seed=request.data_seed,
        state=request.state,
    )


def random(request: Request) -> list[Subnetwork]:
    """Components drawn at random: a control."""
    shape, identity = ModelShape.of(request.model), ModelIdentity.of(request.model)
    drawn = random_subnetworks(
        shape, target_sparsities=request.target_sparsities, seeds=request.seeds
    )
    return [subnetwork.with_identity(identity) for subnetwork in drawn]


def layer_matched(request: Request) -> list[Subnetwork]:
    """As many heads per layer as trained masks keep, drawn at random: a control."""
    if not request.trained:
        raise InputError("layer-matched: no trained masks; expected the masks to match")
    return matched_by_layer(request.trained)
