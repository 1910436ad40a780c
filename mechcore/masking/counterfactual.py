"""The counterfactual fill: a component's output on another text (activation patching).

Vig et al. 2020, arXiv 2004.12265. Tokens are matched by position from the first real token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import UNDECIDED
from mechcore.data.labels import normal_name
from mechcore.errors import InputError
from mechcore.masking.fills import Fill, FillMaker, Kind, Mean
from mechcore.masking.means import MeanActivations, check_means
from mechcore.models.devices import sent
from mechcore.models.hooks import hooked
from mechcore.models.protocol import Batch, device_of, forward, hook_mlp_out, hook_z


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
        shape = ModelShape.of(self.model)
        outputs: dict[tuple[Kind, int], Tensor] = {}

        def keep(place: tuple[Kind, int], activation: Tensor, hook: Any) -> None:
            outputs[place] = activation.detach()

        hooks = [(hook_z(i), partial(keep, ("z", i))) for i in range(shape.n_layers)]
        if shape.has_mlps:
            hooks += [(hook_mlp_out(i), partial(keep, ("mlp", i))) for i in range(shape.n_layers)]
        rows = self.pairs.rows(index)  # padded on the right: columns are positions
        with hooked(self.model, hooks):
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


def paired(data: EncodedExamples, seed: int = 0) -> EncodedExamples:
    """For every example, one with another label and the nearest length, drawn by ``seed``.

    Raises:
        InputError: all examples have the same label, or some have none. Labels that differ only in
            case, ``-`` and ``_`` are the same.
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

    The pairs are the examples' own counterfactual prompts, see `mechcore.models.prompts`, or those
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
