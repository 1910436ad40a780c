"""Attention knockouts: keys hidden from queries (Geva et al. 2023, arXiv 2304.14767), as a fill."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechcore.attention.categories import OF_TEXTS, TokenInfo, claims
from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError
from mechcore.masking.fills import Fill, FillMaker, Kind, by_mask, fill_of
from mechcore.masking.means import MeanActivations
from mechcore.models.hooks import Hook, hooked
from mechcore.models.protocol import (
    Batch,
    check_hooks,
    device_of,
    forward,
    hook_pattern,
    hook_z,
    is_causal,
)
from mechcore.session import plain_session


def knockout(
    *categories: str, renormalise: bool = True, otherwise: FillMaker = "mean"
) -> FillMaker:
    """The fill that hides the keys of some categories, for ``fill`` of `mechcore.masked`.

    Batches are those of examples that were encoded with ``words=True``. Of several categories, the
    pairs of any are hidden. With ``renormalise`` the attention on other keys is scaled up to 1, as
    by scores of minus infinity; else the weights of hidden keys are dropped. ``otherwise`` is the
    fill of queries that attend to no other key; without ``renormalise`` these put out zeros.

    Raises:
        InputError: no category is named.
    """
    if not categories:
        raise InputError("knockout: no category; name at least one, such as 'repeated'")
    return partial(Knockout, categories=categories, renormalise=renormalise, otherwise=otherwise)


def other_keys(
    *categories: str, renormalise: bool = True, otherwise: FillMaker = "mean"
) -> FillMaker:
    """The control of `knockout`: as much of every query's attention is hidden on other keys.

    They are hidden in random order, drawn by the seed and the example, of the last one only a part;
    all of them where they have less, see `masses`.
    """
    knockout(*categories)
    return partial(OtherKeys, categories=categories, renormalise=renormalise, otherwise=otherwise)


class Knockout(Fill):
    """What every head would put out if the keys of some categories were hidden; see `knockout`.

    In a model that is masked as a whole, a later head attends to what the earlier ones changed;
    where an engine shares prefixes, heads are those of the full model.
    """

    is_finite: ClassVar[bool] = True
    follows_the_run: ClassVar[bool] = True

    def __init__(
        self,
        model: Any,
        means: MeanActivations | None,
        seed: int,
        categories: Sequence[str] = (),
        renormalise: bool = True,
        otherwise: FillMaker = "mean",
    ) -> None:
        super().__init__(model, means, seed)
        self.categories, self.renormalise = tuple(categories), renormalise
        self.otherwise = fill_of(model, means, otherwise, seed) if renormalise else None
        self.shape, self.of_run = ModelShape.of(model), False
        self.hidden: Bool[Tensor, "batch query key"] | None = None
        self.seen: dict[str, Tensor] = {}
        self.known: dict[int, tuple[Tensor, Tensor]] = {}
        layers = range(self.shape.n_layers)
        self._hooks: list[tuple[str, Hook]] = [
            (name, partial(self._see, what))
            for layer in layers
            for what, name in (
                ("v", f"blocks.{layer}.attn.hook_v"),
                ("pattern", hook_pattern(layer)),
                ("z", hook_z(layer)),
            )
        ]
        check_hooks(model, [name for name, _ in self._hooks])

    def _see(self, what: str, activation: Tensor, hook: Any) -> None:
        self.seen[what] = activation

    def hooks(self) -> list[tuple[str, Hook]]:
        """See `Fill.hooks`."""
        self.of_run = True
        return self._hooks

    def check(self, values: Float[Tensor, "*masks layer component"]) -> None:
        """See `Fill.check`: MLPs have no attention."""
        if self.shape.has_mlps and bool((values[..., self.shape.n_heads :] != 1).any()):
            raise InputError("knockout: MLPs have no attention; expected heads alone to be ablated")

    def prepare(self, batch: Batch) -> None:
        """See `Fill.prepare`; raises `InputError` for an unknown category, or words."""
        pairs = hideable(self.model, batch)
        if unknown := [name for name in self.categories if name not in pairs]:
            raise InputError(
                f"knockout: this model has no category {unknown[0]!r}; there are {', '.join(pairs)}"
            )
        self.hidden = torch.stack([pairs[name] for name in self.categories]).any(0)
        if self.otherwise is not None:
            self.otherwise.prepare(batch)
        if not self.of_run:
            hooks = [(hook_z(i), partial(self._keep, i)) for i in range(self.shape.n_layers)]
            with torch.no_grad(), hooked(self.model, [*self._hooks, *hooks]):
                forward(self.model, batch)

    def _keep(self, layer: int, activation: Tensor, hook: Any) -> None:
        self.known[layer] = self._without_hidden()

    def values(
        self, kind: Kind, layer: int, positions: Tensor | None, draws: Tensor | None
    ) -> Float[Tensor, "*tokens rest"]:
        """See `Fill.values`: [batch, pos, head, d_head], for every mask if there are several."""
        if kind == "mlp":  # asked for, but not ablated
            return torch.zeros(self.model.cfg.d_model, device=device_of(self.model))
        if self.hidden is None or positions is None:
            raise InputError(
                "knockout: it is not known which tokens are run; run batches of examples encoded "
                "with words=True by the value of the with statement instead of the model"
            )
        seen = self._without_hidden() if self.of_run else self.known[layer]
        out, lonely = (by_mask(rows, len(self.hidden), positions) for rows in seen)
        if self.otherwise is None:
            return out
        fill = self.otherwise.checked(kind, layer, positions, draws).to(out)
        return torch.where(lonely, fill, out)

    def draws(self, kind: Kind, layer: int, shape: Sequence[int]) -> Tensor | None:
        """See `Fill.draws`."""
        return None if self.otherwise is None else self.otherwise.draws(kind, layer, shape)

    def _without_hidden(
        self,
    ) -> tuple[Float[Tensor, "row pos head d_head"], Bool[Tensor, "row pos head 1"]]:
        """What the layer last seen puts out, and which queries attend to nothing else."""
        v, pattern, z = (self.seen[what] for what in ("v", "pattern", "z"))
        assert self.hidden is not None
        hidden = self.hidden.repeat(len(pattern) // len(self.hidden), 1, 1)[:, None]
        kept = self._kept(pattern, hidden)
        total = kept.sum(-1, keepdim=True)
        if self.renormalise:
            kept = kept / torch.where(total > 0, total, 1)
        of_heads = v.repeat_interleave(pattern.shape[1] // v.shape[2], dim=2)
        out = torch.einsum("bhqk,bkhd->bqhd", kept, of_heads.to(kept)).to(z)
        some = hidden.any(-1, keepdim=True).transpose(1, 2)
        return torch.where(some, out, z), some & (total.transpose(1, 2) == 0)

    def _kept(
        self, pattern: Float[Tensor, "row head query key"], hidden: Bool[Tensor, "row 1 query key"]
    ) -> Float[Tensor, "row head query key"]:
        return pattern.masked_fill(hidden, 0.0)


class OtherKeys(Knockout):
    """What every head would put out if as much attention on other keys were hidden."""

    def prepare(self, batch: Batch) -> None:
        """See `Fill.prepare`: draws the order of keys for every example."""
        n_rows, n_pos = batch["input_ids"].shape
        draws = []
        for row in batch.get("index", torch.arange(n_rows)).tolist():
            generator = torch.Generator().manual_seed((self.seed * 1_000_003 + row) % 2**63)
            draws.append(torch.rand(n_pos, n_pos, generator=generator))
        self.order = torch.stack(draws).argsort(-1).to(device_of(self.model))
        super().prepare(batch)

    def _kept(
        self, pattern: Float[Tensor, "row head query key"], hidden: Bool[Tensor, "row 1 query key"]
    ) -> Float[Tensor, "row head query key"]:
        order = self.order.repeat(len(pattern) // len(self.order), 1, 1)[:, None]
        order = order.expand_as(pattern)
        wanted = pattern.masked_fill(~hidden, 0.0).sum(-1, keepdim=True)
        others = pattern.masked_fill(hidden, 0.0).gather(-1, order)
        gone = (wanted - (others.cumsum(-1) - others)).clamp(min=0).minimum(others)
        return pattern - torch.zeros_like(pattern).scatter(-1, order, gone)


def hideable(model: Any, batch: Batch) -> dict[str, Bool[Tensor, "batch query key"]]:
    """The pairs of a batch, which tells of its words, that each category can hide."""
    tokens = TokenInfo.of(batch, causal=is_causal(model)).to(device_of(model))
    return claims(tokens, OF_TEXTS)


@plain_session()
def masses(
    model: Any, data: EncodedExamples, batch_size: int = 64
) -> dict[tuple[str, str], dict[str, float]]:
    """Attention of every head on every category with a key in data encoded with ``words=True``.

    By head and category ``mass``, the mean share of a query's attention on such keys, over queries
    that have one, and ``control_mass``, the part of it that `other_keys` can hide elsewhere.
    """
    shape, sums = ModelShape.of(model), dict[str, Tensor]()

    def add(pairs: dict[str, Tensor], layer: int, pattern: Tensor, hook: Any) -> None:
        for name, hidden in pairs.items():
            # Filling, not multiplying: rows of padding may hold NaN.
            mass = pattern.masked_fill(~hidden[:, None], 0.0).sum(-1).double()
            n = hidden.any(-1).sum().expand(shape.n_heads)
            parts = torch.stack([mass.sum((0, 2)), mass.minimum(1 - mass).sum((0, 2)), n])
            sums.setdefault(name, torch.zeros(3, shape.n_layers, shape.n_heads).double())
            sums[name][:, layer] += parts.cpu()

    for batch in data.batches(batch_size):
        see = partial(add, hideable(model, batch))
        hooks = [(hook_pattern(i), partial(see, i)) for i in range(shape.n_layers)]
        with torch.no_grad(), hooked(model, hooks):
            forward(model, batch)
    figures = {}
    for name, (mass, elsewhere, n) in sums.items():
        for head in shape.heads if n.any() else ():
            at = shape.index(head)
            part = float(elsewhere[at] / mass[at]) if mass[at] else 1.0
            figures[str(head), name] = {"mass": float(mass[at] / n[at]), "control_mass": part}
    return figures
