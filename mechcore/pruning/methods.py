"""Ways to find subnetworks, by name.

A method of one's own is a function of a `Request`, registered under a name:

    @METHODS.register("largest-first")
    def largest_first(request: Request) -> list[Subnetwork]:
        ...

It then works wherever methods are named: as ``--prune-method``, in ``mechcore methods`` and in
studies. A package offers one as an entry point in the group ``mechcore.pruning_methods``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError
from mechcore.masking.means import MeanActivations
from mechcore.models.model_identity import ModelIdentity
from mechcore.pruning.controls import layer_matched as matched_by_layer
from mechcore.pruning.controls import random_subnetworks
from mechcore.pruning.pruner import prune
from mechcore.pruning.rankings import RANKINGS, Ranking, ranked
from mechcore.pruning.settings import PruneSettings
from mechcore.pruning.subnetwork import Subnetwork
from mechcore.registry import Registry


@dataclass(frozen=True, eq=False)
class Request:
    """What a method is asked for.

    Attributes:
        model: any TransformerLens model.
        data: training examples, whose labels are not used.
        means: the model's mean activations.
        sparsities: target sparsities, shares of the components.
        seeds: one subnetwork each; a method without chance may give one for all.
        settings: of L0 pruning.
        data_seed: of the order of examples.
        state: folder of an interruptible method, to go on from; None keeps nothing.
        trained: subnetworks that ``l0`` found for the same request, for methods that match them.
    """

    model: Any
    data: EncodedExamples
    means: MeanActivations
    sparsities: Sequence[float]
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
"""Methods by name, in the order in which they are compared."""


def by_ranking(name: str, ranking: Ranking) -> PruningMethod:
    """The method that keeps what a ranking puts first."""

    def find(request: Request) -> list[Subnetwork]:
        """Subnetworks by a ranking, one for each seed where chance has a part in it."""
        seeds = request.seeds if ranking.seed == "masks" else [request.data_seed]
        given = (request.model, request.data, request.means, request.sparsities)
        return [each for seed in seeds for each in ranked(ranking, name, *given, seed)]

    return find


attribution = by_ranking("attribution", RANKINGS["attribution"])
ugs = by_ranking("ugs", RANKINGS["ugs"])


def l0(request: Request) -> list[Subnetwork]:
    """Masks trained with L0 regularisation, see `mechcore.prune`."""
    return prune(
        request.model,
        request.data,
        request.means,
        sparsity=request.sparsities,
        seeds=request.seeds,
        preset=request.settings,
        data_seed=request.data_seed,
        state=request.state,
    )


def random(request: Request) -> list[Subnetwork]:
    """Components drawn at random: a control."""
    found = random_subnetworks(
        ModelShape.of(request.model), sparsity=request.sparsities, seeds=request.seeds
    )
    return [each.with_identity(ModelIdentity.of(request.model)) for each in found]


def layer_matched(request: Request) -> list[Subnetwork]:
    """As many heads per layer as trained masks keep, drawn at random: a control.

    Raises:
        InputError: there are no trained masks.
    """
    if not request.trained:
        raise InputError("layer-matched: no trained masks; expected those that it is to match")
    return matched_by_layer(request.trained)
