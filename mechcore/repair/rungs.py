"""The rungs of the ladder of repairs: the numbers each fits, and how they become weights."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

from mechcore.components import Component
from mechcore.registry import Registry
from mechcore.repair import OWN_RUNGS
from mechcore.repair.model import RepairableModel, Weights

Fitted: TypeAlias = dict[str, Tensor]

HEADS = 4  # trained by `FewHeads`
RANK = 4  # of the product in `LoRA`


class Rung:
    """A way to repair a model.

    ``base`` are weights that already replace the model's own, ``kinds`` the correct classes of each
    label of the out-of-domain data.

    Attributes:
        on_features: whether it changes only the last layer, and is fitted to its inputs.
        gated: whether it needs gates, and so mean activations.
        after: the rung whose weights it starts from.
        rates, penalties: learning rates, and weights of the penalty, to choose from.
    """

    on_features: ClassVar[bool] = False
    gated: ClassVar[bool] = False
    after: ClassVar[str] = ""
    rates: ClassVar[Sequence[float]] = (1e-3,)
    penalties: ClassVar[Sequence[float]] = (0.0,)

    def __init__(
        self,
        name: str,
        model: RepairableModel,
        base: Weights,
        kinds: Bool[Tensor, "label cls"],
        seed: int = 0,
    ) -> None:
        self.name, self.model, self.base, self.kinds, self.seed = name, model, base, kinds, seed

    def prepare(self, states: Tensor, slopes: Callable[[], Tensor]) -> None:
        """Prepare from the last layer's inputs, and slopes of the loss in gates."""

    def start(self) -> Fitted:
        """The initial values of the fitted numbers, at which the model is unchanged."""
        return {}

    def weights(self, fitted: Mapping[str, Tensor]) -> Weights:
        """The weights that the numbers stand for, in addition to ``base``."""
        return {}

    def penalty(self, fitted: Mapping[str, Tensor]) -> Tensor:
        """The distance of the numbers from their initial values."""
        return sum((value.square().mean() for value in fitted.values()), torch.zeros(()))

    def clamp(self, fitted: Fitted) -> None:
        """Return numbers to their range, after each step."""

    def note(self, fitted: Mapping[str, Tensor]) -> str:
        """A readable note of what was chosen."""
        return ""

    def own(self, name: str) -> Tensor:
        """A weight before fitting."""
        return self.base.get(name, self.model.weights[name])


class Nothing(Rung):
    """The unchanged model."""


class Threshold(Rung):
    """One shift for each label of the out-of-domain data, added to all of its classes."""

    on_features = True
    rates = (0.0,)

    def start(self) -> Fitted:
        """A shift of 0 for each label."""
        return {"shift": torch.zeros(len(self.kinds), device=self.model.device)}

    def weights(self, fitted: Mapping[str, Tensor]) -> Weights:
        """The bias of the last layer."""
        name = self.model.head_weights[1]
        return {name: self.own(name) + fitted["shift"] @ self.kinds.to(fitted["shift"])}


class LastLayer(Rung):
    """The last layer, refitted; the penalty is on changes in units of each feature's spread."""

    on_features = True
    rates = (0.0,)
    penalties = (1.0, 0.1, 0.01, 0.001)
    spread: Tensor | float = 1.0

    def prepare(self, states: Tensor, slopes: Callable[[], Tensor]) -> None:
        """Compute the spread of each feature."""
        self.spread = states.std(0).clamp_min(1e-9)

    def start(self) -> Fitted:
        """Changes of 0 to its weight and bias."""
        weight, bias = (torch.zeros_like(self.own(name)) for name in self.model.head_weights)
        return {"weight": weight, "bias": bias}

    def weights(self, fitted: Mapping[str, Tensor]) -> Weights:
        """Its weight and bias."""
        weight, bias = self.model.head_weights
        changed = self.own(weight) + fitted["weight"] / self.spread
        return {weight: changed, bias: self.own(bias) + fitted["bias"]}

    def penalty(self, fitted: Mapping[str, Tensor]) -> Tensor:
        """The penalty on the weight only."""
        return fitted["weight"].square().sum()


class Gates(Rung):
    """A gate in [0, 2] for each head and MLP, with a penalty towards 1."""

    gated = True
    rates = (0.05,)
    penalties = (1.0, 0.1, 0.0)

    def start(self) -> Fitted:
        """All gates at 1."""
        columns = self.model.shape.columns
        return {"gates": torch.ones(self.model.shape.n_layers, columns, device=self.model.device)}

    def weights(self, fitted: Mapping[str, Tensor]) -> Weights:
        """Output projections with the gates folded in."""
        return self.model.gated(fitted["gates"])

    def penalty(self, fitted: Mapping[str, Tensor]) -> Tensor:
        """The mean absolute distance from 1."""
        return (fitted["gates"] - 1).abs().mean()

    def clamp(self, fitted: Fitted) -> None:
        """Keep gates in [0, 2]."""
        with torch.no_grad():
            fitted["gates"].clamp_(0, 2)


class Remove(Gates):
    """Components replaced by their means, one at a time while that helps held-out kinds."""

    def note(self, fitted: Mapping[str, Tensor]) -> str:
        """The removed components."""
        gates, shape = fitted["gates"], self.model.shape
        return " ".join(str(c) for c in shape.components if gates[shape.index(c)] == 0)


class GatesLastLayer(LastLayer):
    """The last layer, fitted to the model with the gates of `Gates`."""

    gated = True
    after = "gates"


class FewHeads(Rung):
    """The outputs of a few heads: those to which the loss is most sensitive."""

    gated = True
    rates = (1e-3, 1e-2)
    chosen: Sequence[Component] = ()

    def prepare(self, states: Tensor, slopes: Callable[[], Tensor]) -> None:
        """Choose the heads with the steepest slopes."""
        by_gate, shape = slopes().abs(), self.model.shape
        self.chosen = sorted(shape.heads, key=lambda h: -float(by_gate[shape.index(h)]))[:HEADS]

    def start(self) -> Fitted:
        """Changes of 0 to their columns of output projections."""
        self.masks = self.model.columns(self.chosen)
        return {name: torch.zeros_like(mask) for name, mask in self.masks.items()}

    def weights(self, fitted: Mapping[str, Tensor]) -> Weights:
        """Output projections, changed only in the columns of these heads."""
        return {n: self.own(n) + value * self.masks[n] for n, value in fitted.items()}

    def note(self, fitted: Mapping[str, Tensor]) -> str:
        """The heads."""
        return " ".join(map(str, self.chosen))


class RandomHeads(FewHeads):
    """The same number of random heads, to compare `FewHeads` with."""

    def prepare(self, states: Tensor, slopes: Callable[[], Tensor]) -> None:
        """Draw the heads."""
        heads = self.model.shape.heads
        self.chosen = random.Random(self.seed).sample(heads, min(HEADS, len(heads)))


class LoRA(Rung):
    """A product of two thin matrices, added to each matrix of the layers and merged into it."""

    rates = (3e-4, 3e-3)

    def _matrices(self) -> list[str]:
        layers = ("layer", ".h.", "blocks")
        names = (n for n, w in self.model.weights.items() if w.ndim == 2 and "embed" not in n)
        return [name for name in names if any(part in name for part in layers)]

    def start(self) -> Fitted:
        """One of the two random, the other 0."""
        generator = torch.Generator().manual_seed(self.seed)
        fitted: Fitted = {}
        for name in self._matrices():
            rows, columns = self.model.weights[name].shape
            first = torch.randn(RANK, columns, generator=generator) / columns**0.5
            fitted[f"{name} a"] = first.to(self.model.device)
            fitted[f"{name} b"] = torch.zeros(rows, RANK, device=self.model.device)
        return fitted

    def weights(self, fitted: Mapping[str, Tensor]) -> Weights:
        """The merged matrices."""
        return {n: self.own(n) + fitted[f"{n} b"] @ fitted[f"{n} a"] for n in self._matrices()}


class FineTune(Rung):
    """All weights."""

    rates = (2e-5, 1e-4)

    def start(self) -> Fitted:
        """All weights."""
        return {name: self.own(name).clone() for name in self.model.weights}

    def weights(self, fitted: Mapping[str, Tensor]) -> Weights:
        """All weights."""
        return fitted


RUNGS: Registry[type[Rung]] = Registry(
    "rung", "mechcore.repairs", {n: f"{__name__}:{kind}" for n, kind in OWN_RUNGS.items()}
)
"""Rungs by name, from few fitted numbers to many; packages add theirs as ``mechcore.repairs``."""
