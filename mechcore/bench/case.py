"""Cases of known truth: a model, its data, and what is true of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mechcore.ablation.sets import ComponentSet
from mechcore.components import Component, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.showing import Shown


@dataclass(frozen=True)
class Truth:
    """What is true of a model by the way it was made; None is unknown.

    Attributes:
        components: those that its answers depend on.
        interactions: of the pairs for which it is not 0, on the mean margin of all texts, in nats.
        core: components of the one smallest subnetwork that answers in domain as the model does.
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

    def _summary(self) -> str:
        n_all = len(ModelShape.of(self.model).components)
        return f"{self.name}, {len(self.truth.components)} of {n_all} components true"
