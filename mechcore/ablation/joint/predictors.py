"""Predictors of the interaction of every pair of components, by name: docs/extend.md."""

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

from mechcore import progress
from mechcore.ablation.effects.changes import Ablations
from mechcore.ablation.joint.exact import joint_and_alone
from mechcore.ablation.sets import ComponentSet
from mechcore.ablation.settings import SCREENING_EXAMPLES
from mechcore.ablation.sweeps import ablate
from mechcore.components import Component, Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.evaluation.cost import Cost
from mechcore.evaluation.evaluate import margins
from mechcore.evaluation.readout import Readout
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models.protocol import frozen, model_inputs
from mechcore.partial import Partial, Steps
from mechcore.registry import Registry


@dataclass(frozen=True, eq=False)
class PairRequest:
    """A request for predictions of all pairs of ``components``, from ``n_examples`` at most.

    ``sweep`` are further options of sweeps; the rest is as in `mechcore.ablate`.
    """

    model: Any
    data: EncodedExamples
    means: MeanActivations | None
    components: Sequence[Component]
    n_examples: int = SCREENING_EXAMPLES
    seed: int = 0
    fill: str = "mean"
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
        """Options of sweeps, see `mechcore.ablate`."""
        own = {name: getattr(self, name) for name in ("fill", "class_names", "batch_size", "state")}
        return {**own, **self.sweep}

    def ablate(self, sets: Sequence[ComponentSet]) -> Ablations:
        """Answers to the request's examples without each set."""
        some = self.data.part(sorted(self.rows))
        return ablate(self.model, sets, some, self.means, **self.options)

    @property
    def rows(self) -> list[int]:
        """Numbers of the examples to use, drawn at random."""
        order = np.random.default_rng(self.seed).permutation(len(self.data))
        return [int(row) for row in order[: self.n_examples]]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predicted interactions; the lowest are the most superadditive.

    Unless ``in_nats`` they only rank pairs, and are not added to measured interactions.
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
        """Predictions from a matrix, averaging both orders of a pair."""
        both = ((matrix + matrix.T) / 2).tolist()
        averaged = {
            ComponentSet.of([components[i], components[j]]): both[i][j]
            for i, j in itertools.combinations(range(len(components)), 2)
        }
        return cls(averaged, cost)


InteractionMethod: TypeAlias = Callable[[PairRequest], Predictions]

INTERACTION_METHODS: Registry[InteractionMethod] = Registry(
    "way to predict interactions",
    "mechcore.interaction_methods",
    {
        "screening": "mechcore.ablation.joint.predictors:screening",
        "exact": "mechcore.ablation.joint.predictors:exact",
    },
)
"""Methods by name."""


def exact(request: PairRequest) -> Predictions:
    """The exact interactions on the request's examples, from ablating all pairs."""
    ablated = request.ablate([*request.singles, *request.pairs])
    cost = Cost(forwards=1 + len(ablated.sets))
    return Predictions(mean_interactions(ablated, request.pairs), cost)


def mean_interactions(
    ablated: Ablations, sets: Sequence[ComponentSet]
) -> dict[ComponentSet, float]:
    """The mean interaction, nats, of each set whose members were also ablated alone."""
    joint, alone = joint_and_alone(ablated, sets, "margin")
    return dict(zip(sets, (joint - alone).mean(1).tolist(), strict=True))


class MaskedMargins:
    """Margins of a request's examples by mask values; ``places`` of its components in these."""

    def __init__(self, request: PairRequest) -> None:
        self.request, data = request, request.data
        self.shape = ModelShape.of(request.model)
        self.readout = Readout.of(request.model, data, request.class_names)
        self.correct = self.readout.correct_classes(data)
        rows = sorted(request.rows, key=lambda row: -len(data.input_ids[row]))
        starts = range(0, len(rows), request.batch_size)
        self.batches = [rows[start : start + request.batch_size] for start in starts]
        self.n_examples = len(rows)
        self.places = tuple(torch.tensor([self.shape.index(c) for c in request.components]).T)

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

    def gradient(self, mask: Mask) -> Float[Tensor, " component"]:
        """Gradient of the mean margin by the mask values of the request's components."""
        values = mask.values.clone().requires_grad_()
        total = torch.zeros_like(mask.values)
        for rows in self.batches:
            total += torch.autograd.grad(self.total(values, rows), values)[0].cpu()
        return (total / self.n_examples)[self.places]


def screening(request: PairRequest) -> Predictions:
    """Predictions from gradients of the full model and of the model without each component.

    With a ablated, the gradient by b's mask value is to first order what b is worth without a: its
    difference from that in the full model predicts the interaction. Both orders are averaged.
    """
    function, components = MaskedMargins(request), request.components
    full = Mask.full(function.shape)
    masks = [full, *(full.without(c) for c in components)]
    gradients = torch.zeros(len(masks), len(components))
    facts = {name: getattr(request, name) for name in ("model", "data", "means", "fill")}
    facts |= {"labels": function.correct, "batches": function.batches}
    partial = Partial(request.state, "screening", **facts, components=list(map(str, components)))
    with frozen(request.model), Steps(partial, {"gradients": gradients}) as steps:
        left = [number for number in range(len(masks)) if (number,) not in steps.done]
        with progress.bar("screening", len(left)) as advance:
            for number in left:
                gradients[number] = function.gradient(masks[number])
                steps.finish(number)
                advance()
    cost = Cost(forwards=len(masks), backwards=len(masks))
    return Predictions.of(components, gradients[0] - gradients[1:], cost)
