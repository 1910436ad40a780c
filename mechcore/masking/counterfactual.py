"""Fills by example: outputs on another text (arXiv 2004.12265), or at some positions alone."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import UNDECIDED
from mechcore.data.labels import normal_name
from mechcore.errors import InputError
from mechcore.masking.fills import Fill, FillMaker, Kind, Mean, by_mask, fill_of
from mechcore.masking.means import MeanActivations, check_means
from mechcore.models.batches import real_positions
from mechcore.models.devices import sent
from mechcore.models.hooks import Hook, hooked
from mechcore.models.protocol import Batch, device_of, forward, output_hooks


class Counterfactual(Fill):
    """The component's output on the paired example, at the same position, or its mean.

    Batches identify their examples by ``index``. ``means`` may be None if pairs lack no position.
    """

    is_finite: ClassVar[bool] = True

    def __init__(
        self,
        model: Any,
        means: MeanActivations | None,
        seed: int,
        pairs: EncodedExamples | None = None,
    ) -> None:
        super().__init__(model, means, seed)
        if pairs is None:
            raise InputError(
                "masked: fill 'counterfactual' needs a paired example for every example; pass "
                "fill=Counterfactual.of(pairs), or the name to mechcore.ablate with labelled "
                "examples, from which it makes pairs"
            )
        if means is not None:
            check_means(means, model)
        self.pairs = pairs
        self.outputs: dict[tuple[Kind, int], Tensor] = {}
        self.lengths, self.lacks = torch.zeros(0, dtype=torch.long), False

    @classmethod
    def of(cls, pairs: EncodedExamples) -> FillMaker:
        """The fill with these pairs, for ``fill`` of `mechcore.masked` and others."""
        return partial(cls, pairs=pairs)

    @torch.no_grad()
    def prepare(self, batch: Batch) -> None:
        """Run the pairs of a batch, see `Fill.prepare`."""
        index = torch.as_tensor(batch.get("index", ())).tolist()
        if len(index) != len(batch["input_ids"]):
            raise InputError(
                f"masked: fill 'counterfactual' found {len(batch['input_ids'])} rows in a batch "
                f"and an index of {len(index)}; expected the number of each row's example: run "
                "encoded examples, with answers of one token each"
            )
        if not all(0 <= i < len(self.pairs) for i in index):
            raise InputError(
                f"masked: fill 'counterfactual' has {len(self.pairs)} pairs, but the batch holds "
                f"example {max(index)}; expected one pair for every example"
            )
        outputs: dict[tuple[Kind, int], Tensor] = {}
        rows = self.pairs.rows(index)  # padded on the right: columns are positions
        with hooked(self.model, _keeping(self.model, outputs)):
            forward(self.model, rows)
        lengths = rows["attention_mask"].sum(1)
        real = batch.get("attention_mask")
        longest = (
            len(batch["input_ids"][0]) if real is None else (torch.as_tensor(real) != 0).sum(1)
        )
        self.lacks = bool((longest > lengths).any())
        self.outputs, self.lengths = outputs, sent(lengths, device_of(self.model))

    def values(
        self, kind: Kind, layer: int, positions: Tensor | None, draws: Tensor | None
    ) -> Float[Tensor, "*tokens rest"]:
        """See `Fill.values`; raises `InputError` for an unknown batch or lacking means."""
        if positions is None or not self.outputs:
            raise InputError(
                "masked: fill 'counterfactual' does not know which examples are run; pass batches "
                "of encoded examples to the value of the with statement instead of the model "
                "(paths cannot be cut with this fill)"
            )
        there = self.outputs[kind, layer]
        # One mask for each row puts an axis of length 1 between the rows and their positions.
        places = positions.to(there.device).flatten(1)
        lengths = self.lengths.to(there.device)[:, None]
        rows = torch.arange(len(places), device=there.device)[:, None]
        out = there[rows, places.minimum(lengths - 1)]
        missing = places >= lengths
        if self.lacks:
            mean = self._mean(kind, layer, places).to(out)
            out = torch.where(missing.unflatten(1, (-1, *[1] * (out.ndim - 2))), mean, out)
        return out.reshape(*positions.shape, *out.shape[2:])

    def _mean(self, kind: Kind, layer: int, places: Int[Tensor, "row pos"]) -> Tensor:
        if self._means is None:
            raise InputError(
                "masked: fill 'counterfactual' needs means because an example is longer than its "
                "pair; pass MeanActivations.compute(model, batches), or pairs of equal length"
            )
        return Mean(self.model, self.means, self.seed).values(kind, layer, places, None)


def _keeping(model: Any, outputs: dict[tuple[Kind, int], Tensor]) -> list[tuple[str, Hook]]:
    """Hooks that keep what components put out."""

    def keep(place: tuple[Kind, int], activation: Tensor, hook: Any) -> None:
        outputs[place] = activation

    places = output_hooks(ModelShape.of(model))
    return [(name, partial(keep, (kind, layer))) for kind, layer, name in places]


def paired(data: EncodedExamples, seed: int = 0) -> EncodedExamples:
    """For every example, one with another label and the nearest length, drawn by ``seed``.

    Labels that differ only in case, ``-`` and ``_`` are the same; `InputError` if all are, or lack.
    """
    given = data.examples.frame["label"].astype(str)
    if without := int(given.isin(["", UNDECIDED]).sum()):
        raise InputError(
            f"examples {data.examples.name!r}: {without} of {len(given)} have no label; pairs "
            "need labels; leave these examples out, or pass your own pairs, see "
            "mechcore.masking.counterfactual.Counterfactual"
        )
    labels = given.map(normal_name).to_numpy()
    if len(set(labels)) < 2:
        raise InputError(
            f"examples {data.examples.name!r}: pairs need examples of at least two labels; found "
            f"{', '.join(map(repr, sorted(set(labels)))) or 'no example'}; pass your own pairs, "
            "see mechcore.masking.counterfactual.Counterfactual"
        )
    lengths = np.array([len(ids) for ids in data.input_ids])
    random = np.random.default_rng(seed)
    near: dict[tuple[str, int], np.ndarray] = {}
    chosen = []
    for key in zip(labels, lengths, strict=True):
        if key not in near:
            distance = np.where(labels == key[0], np.inf, np.abs(lengths - key[1]))
            near[key] = np.flatnonzero(distance == distance.min())
        chosen.append(int(random.choice(near[key])))
    return data.part(chosen)


def with_pairs(fill: FillMaker, data: Any, seed: int) -> FillMaker:
    """``fill``, where the name of the counterfactual one becomes a fill with pairs.

    The pairs are the examples' own counterfactual prompts, see `mechcore.models.encoded`, or those
    that `paired` makes. Raises as `paired`, and if given pairs belong to other examples.
    """
    if not isinstance(data, EncodedExamples):
        return fill
    if fill == "counterfactual":
        return Counterfactual.of(paired(data, seed) if data.pairs is None else data.pairs)
    pairs = pairs_of(fill)
    if pairs is not None and len(pairs) != len(data):
        raise InputError(
            f"fill 'counterfactual' has {len(pairs)} pairs for {len(data)} examples; expected one "
            "pair for every example"
        )
    return fill


def of_rows(fill: FillMaker, rows: Sequence[int]) -> FillMaker:
    """The fill for some of the examples: a counterfactual one keeps only their pairs."""
    pairs = pairs_of(fill)
    return fill if pairs is None else Counterfactual.of(pairs.part(rows))


def pairs_of(fill: FillMaker) -> EncodedExamples | None:
    """The pairs of a fill that `Counterfactual.of` made; None for any other."""
    if isinstance(fill, partial) and fill.func is Counterfactual:
        pairs: EncodedExamples = fill.keywords["pairs"]
        return pairs
    return None


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
        self._own = _keeping(model, self.outputs)

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
