"""A fill at some positions only: elsewhere a component keeps its own output."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.masking.fills import Fill, FillMaker, Kind, by_mask, fill_of
from mechcore.masking.means import MeanActivations
from mechcore.models.batches import real_positions
from mechcore.models.hooks import Hook, hooked
from mechcore.models.protocol import Batch, device_of, forward, hook_mlp_out, hook_z

Positions: TypeAlias = int | Sequence[int]
"""One for all examples or one for each, counted from the first real token, from 0, or from the
last, from -1."""


def at_positions(positions: Positions, fill: FillMaker = "mean") -> FillMaker:
    """The fill that replaces outputs at one position of every example, see `Positions`.

    For ``fill`` of `mechcore.masked`, run by the value of the with statement; sweeps have the
    option ``positions``.
    """
    if isinstance(positions, (int, Integral)):
        return partial(AtPositions, positions=operator.index(positions), fill=fill)
    return partial(AtPositions, positions=tuple(map(operator.index, positions)), fill=fill)


class AtPositions(Fill):
    """Another fill at some positions, and elsewhere what the component puts out in this run.

    Where an engine shares what runs have in common, that is what it puts out in the full model,
    which is the same for a component alone.
    """

    is_finite: ClassVar[bool] = True  # the other fill is checked, and so is the model
    follows_the_run: ClassVar[bool] = True

    def __init__(
        self,
        model: Any,
        means: MeanActivations | None,
        seed: int,
        positions: Positions = -1,
        fill: FillMaker = "mean",
    ) -> None:
        super().__init__(model, means, seed)
        self.where, self.fill = torch.as_tensor(positions), fill_of(model, means, fill, seed)
        self.of_run, self.outputs = False, dict[tuple[Kind, int], Tensor]()
        self.chosen: Bool[Tensor, "batch pos"] | None = None
        shape = ModelShape.of(model)
        self._own: list[tuple[str, Hook]] = []
        for layer in range(shape.n_layers):
            self._own.append((hook_z(layer), partial(self._see, ("z", layer))))
            if shape.has_mlps:
                self._own.append((hook_mlp_out(layer), partial(self._see, ("mlp", layer))))

    def _see(self, place: tuple[Kind, int], activation: Tensor, hook: Any) -> None:
        self.outputs[place] = activation

    def hooks(self) -> list[tuple[str, Hook]]:
        """See `Fill.hooks`."""
        self.of_run = True
        return [*self.fill.hooks(), *self._own]

    def check(self, values: Float[Tensor, "*masks layer component"]) -> None:
        """See `Fill.check`."""
        self.fill.check(values)

    def prepare(self, batch: Batch) -> None:
        """See `Fill.prepare`; raises `InputError` where an example lacks the position."""
        self.fill.prepare(batch)
        real = torch.as_tensor(batch["attention_mask"]) != 0
        lengths, at = real.sum(1), self.where.to(real.device)
        if at.ndim:
            index = torch.as_tensor(batch.get("index", ()))
            if len(index) != len(real) or int(index.max()) >= len(at):
                raise InputError(
                    f"positions: found {len(at)} for a batch with the examples {index.tolist()}; "
                    "expected one position for each example of encoded data"
                )
            at = at[index.to(at.device)]
        from_start = torch.where(at < 0, lengths + at, at)
        lacks = (from_start < 0) | (from_start >= lengths)
        if lacks.any():
            row = int(lacks.nonzero()[0])
            raise InputError(
                f"positions: an example has {int(lengths[row])} tokens, and none at position "
                f"{int(at.expand(len(real))[row])}; expected a position that every example has"
            )
        chosen = real & (real_positions(real) == from_start[:, None])
        self.chosen = chosen.to(device_of(self.model))
        if not self.of_run:
            with torch.no_grad(), hooked(self.model, self._own):
                forward(self.model, batch)

    def draws(
        self, kind: Kind, layer: int, shape: Sequence[int]
    ) -> Int[Tensor, "batch pos"] | None:
        """See `Fill.draws`."""
        return self.fill.draws(kind, layer, shape)

    def values(
        self, kind: Kind, layer: int, positions: Tensor | None, draws: Tensor | None
    ) -> Float[Tensor, "*tokens rest"]:
        """See `Fill.values`: [batch, pos, *rest], for every mask if there are several."""
        if self.chosen is None or positions is None:
            raise InputError(
                "positions: it is not known which tokens are run; run batches by the value of the "
                "with statement instead of the model (of paths, only those to one receiver, blind "
                "in all its inputs, can be cut at positions)"
            )
        own, chosen = (
            by_mask(rows, len(self.chosen), positions)
            for rows in (self.outputs[kind, layer], self.chosen)
        )
        there = self.fill.checked(kind, layer, positions, draws).to(own)
        at = chosen.to(own.device)
        return torch.where(at[(..., *[None] * (1 + (kind == "z")))], there, own)
