"""Ways to predict the interaction of every pair of components, by name.

A way of one's own is a function of a `PairRequest`, registered under a name:

    @INTERACTION_METHODS.register("none-interacts")
    def none_interacts(request: PairRequest) -> Predictions:
        ...

Searches then take it by that name, in Python, on the command line and in studies. A package offers
one as an entry point in the group ``mechcore.interaction_methods``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechcore.ablation.cuts import ComponentSet
from mechcore.ablation.effects.changes import Ablations
from mechcore.ablation.settings import SCREENING_EXAMPLES
from mechcore.ablation.sweeps import ablate
from mechcore.components import Component, Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.evaluation.cost import Cost
from mechcore.evaluation.evaluate import Metric, margins
from mechcore.evaluation.readout import Readout
from mechcore.masking.interventions import FillName, masked
from mechcore.masking.means import MeanActivations
from mechcore.models.protocol import model_inputs
from mechcore.registry import Registry


@dataclass(frozen=True, eq=False)
class PairRequest:
    """What a prediction is asked for.

    Attributes:
        model: any TransformerLens model.
        data: labelled examples.
        means: the model's mean activations; not needed for the fill ``"zero"``.
        components: those whose pairs are asked for.
        n_examples: how many of the examples to look at, at most.
        seed: of all that is random.
        fill: what replaces ablated outputs, the name of a fill that draws nothing at random.
        class_names: names of a classifier's classes, in place of its ``id2label``.
        batch_size: examples per batch.
        state: folder that keeps what is done, to go on from; None keeps nothing.
        sweep: more options of sweeps, see `mechcore.ablate`.
    """

    model: Any
    data: EncodedExamples
    means: MeanActivations | None
    components: Sequence[Component]
    n_examples: int = SCREENING_EXAMPLES
    seed: int = 0
    fill: FillName = "mean"
    class_names: Sequence[str] | None = None
    batch_size: int = 64
    state: str | Path | None = None
    sweep: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pairs(self) -> list[ComponentSet]:
        """All pairs of the components."""
        return [ComponentSet.of(pair) for pair in itertools.combinations(self.components, 2)]

    @property
    def singles(self) -> list[ComponentSet]:
        """Each component alone."""
        return [ComponentSet((component,)) for component in self.components]

    @property
    def options(self) -> dict[str, Any]:
        """Of sweeps, see `mechcore.ablate`."""
        own = {name: getattr(self, name) for name in ("fill", "class_names", "batch_size", "state")}
        return {**own, **self.sweep}

    def ablate(self, sets: Sequence[ComponentSet]) -> Ablations:
        """Answers to the request's examples without each set."""
        some = self.data.part(sorted(drawn(self.data, self.n_examples, self.seed)))
        return ablate(self.model, sets, some, self.means, **self.options)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predicted interactions; the lowest are the most superadditive.

    Attributes:
        interactions: of every pair, in nats unless ``in_nats`` says otherwise.
        cost: what they cost.
        in_nats: whether they are estimates of interactions, or rank pairs by something else; then
            searches do not add them to what was ablated.
    """

    interactions: Mapping[ComponentSet, float]
    cost: Cost
    in_nats: bool = True

    @classmethod
    def of(
        cls,
        components: Sequence[Component],
        matrix: Float[Tensor, "component component"],
        cost: Cost,
    ) -> Predictions:
        """From a matrix, of which both orders of a pair are averaged."""
        both = ((matrix + matrix.T) / 2).tolist()
        found = {
            ComponentSet.of([components[i], components[j]]): both[i][j]
            for i, j in itertools.combinations(range(len(components)), 2)
        }
        return cls(found, cost)


InteractionMethod: TypeAlias = Callable[[PairRequest], Predictions]

INTERACTION_METHODS: Registry[InteractionMethod] = Registry(
    "way to predict interactions",
    "mechcore.interaction_methods",
    {
        "screening": "mechcore.ablation.interactions.screening:screening",
        "exact": "mechcore.ablation.interactions.predictors:exact",
    },
)
"""Methods by name."""


def exact(request: PairRequest) -> Predictions:
    """The interactions themselves, on the request's examples, from ablating all pairs.

    Raises:
        InputError: labels and classes cannot be matched.
    """
    ablated = request.ablate([*request.singles, *request.pairs])
    cost = Cost(forwards=1 + len(ablated.sets))
    return Predictions(mean_interactions(ablated, request.pairs), cost)


def mean_interactions(
    ablated: Ablations, sets: Sequence[ComponentSet], metric: Metric = "margin"
) -> dict[ComponentSet, float]:
    """The mean interaction of each set, all of whose members were ablated alone, too."""
    changes = {cut: float(ablated.changes(cut, metric).mean()) for cut in ablated.sets}
    return {
        cut: changes[cut] - sum(changes[ComponentSet((c,))] for c in cut.components) for cut in sets
    }


class MaskedMargins:
    """Margins of a request's examples as a function of mask values.

    ``places`` are layers and columns of the request's components in these.
    """

    def __init__(self, request: PairRequest) -> None:
        self.request, model, data = request, request.model, request.data
        self.shape = ModelShape.of(model)
        self.readout = Readout.of(model, data, request.class_names)
        self.correct = self.readout.correct_classes(data)
        self.batches = batches_of(data, request.n_examples, request.seed, request.batch_size)
        self.places = tuple(torch.tensor([self.shape.index(c) for c in request.components]).T)

    @property
    def n_examples(self) -> int:
        """How many examples there are in all batches."""
        return sum(map(len, self.batches))

    def total(
        self, values: Float[Tensor, "layer component"], rows: Sequence[int]
    ) -> Float[Tensor, ""]:
        """Sum of the margins of a batch, nats, float64; gradients flow into ``values``."""
        request = self.request
        batch = self.readout.asked(request.data.rows(rows))
        live = Mask(values, has_mlps=self.shape.has_mlps)
        with masked(request.model, live, request.means, request.fill) as run:
            answer = run(batch)
        logits = self.readout.read(answer, model_inputs(request.model, batch), rows)
        return margins(logits, self.correct[rows].to(logits.device)).sum()


def drawn(data: EncodedExamples, n_examples: int, seed: int) -> list[int]:
    """Rows of some of the examples, at random."""
    found: list[int] = np.random.default_rng(seed).permutation(len(data))[:n_examples].tolist()
    return found


def batches_of(
    data: EncodedExamples, n_examples: int, seed: int, batch_size: int
) -> list[list[int]]:
    """Rows of the examples that are screened with, drawn at random, the longest first."""
    rows = sorted(drawn(data, n_examples, seed), key=lambda row: -len(data.input_ids[row]))
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
