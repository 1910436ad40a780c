"""The attention patterns of one batch, reduced to a few sums for each example and head."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechcore.attention.categories import OTHER, TokenInfo, claims, disjoint
from mechcore.errors import InputError, MechcoreError
from mechcore.models.protocol import check_patterns

_CHUNK = 2**18
"""Pairs of query and key, over examples, that are reduced together."""

_TINY = 1e-30


@dataclass(frozen=True, eq=False)
class _Reach:
    """The keys of a category that queries can attend to in some layers.

    ``beyond`` are pairs out of the window, None where there is none; ``pairs`` those of each
    category and of each category made disjoint, as one row; for the others see `BatchPatterns`.
    """

    allowed: Bool[Tensor, "example query key"]
    beyond: Bool[Tensor, "example query key"] | None
    pairs: Bool[Tensor, "example pair category"]
    uniform: Float[Tensor, "example category"]
    defined: Float[Tensor, "example category"]
    n_queries: Int[Tensor, ""]

    @classmethod
    def of(cls, claimed: Mapping[str, Tensor], allowed: Tensor, near: Tensor) -> _Reach:
        """Of pairs that are allowed, and those of queries and keys near enough."""
        beyond = None if bool(near.all()) else allowed & ~near
        allowed = allowed & near
        claimed = {name: pairs & allowed for name, pairs in claimed.items()}
        parts = disjoint(claimed, allowed)
        measured = [*claimed.values(), parts[OTHER]]
        pairs = torch.stack([*measured, *parts.values()], dim=-1)
        keys = pairs[..., : len(measured)].sum(2).double()  # [example, query, category]
        reach = allowed.sum(2)
        uniform = (keys / reach.clamp(min=1)[..., None]).sum(1).cpu()
        defined = (keys > 0).double().sum(1).cpu()
        n_queries = (reach > 0).sum().cpu()
        return cls(allowed, beyond, pairs.flatten(1, 2), uniform, defined, n_queries)


class BatchPatterns:
    """Sums over the queries of each example of a batch, filled layer by layer.

    Keys of categories to ``ignore`` are left out; what remains of a query's attention is scaled up
    to 1, which is the softmax over the other keys. ``reach`` says of every layer, or of all, how
    many tokens away the furthest key is, None for no limit.

    Attributes:
        uniform: shares of each category under uniform attention, summed over queries,
            [example, reach, category].
        defined: queries with a key of the category, [example, reach, category].
        n_queries: real tokens of the batch that have a key to attend to, [reach].
    """

    def __init__(
        self,
        tokens: TokenInfo,
        n_heads: int,
        ignore: Collection[str] = (),
        reach: Sequence[int | None] = (None,),
    ) -> None:
        claimed, allowed = claims(tokens), tokens.allowed
        for name in ignore:
            allowed = allowed & ~claimed.pop(name)
        positions = tokens.positions
        distance = (positions[:, None] - positions[None, :]).abs()
        longest = len(positions) - 1
        furthest = [longest if end is None else min(end, longest) for end in reach]
        known = {end: _Reach.of(claimed, allowed, distance <= end) for end in {*furthest}}
        self._reach = [known[end] for end in furthest]
        self.uniform = torch.stack([of.uniform for of in self._reach], 1)
        self.defined = torch.stack([of.defined for of in self._reach], 1)
        self.n_queries = torch.stack([of.n_queries for of in self._reach])
        self._n_heads = n_heads
        self._rescale = bool(ignore)
        self._distance = distance.flatten()
        self._layers: dict[int, Tensor] = {}

    def add(
        self, layer: int, pattern: Float[Tensor, "batch head query key"], hook: Any = None
    ) -> None:
        """Reduce a layer's pattern (as a hook does); `InputError` for attention out of reach."""
        of = self._reach[layer if len(self._reach) > 1 else 0]
        batch, pos = of.allowed.shape[:2]
        expected = (batch, self._n_heads, pos, pos)
        if pattern.shape != expected:
            raise InputError(
                f"attention pattern of layer {layer}: shape {tuple(pattern.shape)}; expected "
                f"{expected}, [batch, head, query, key]"
            )
        if of.beyond is not None:
            outside = pattern.masked_fill(~of.beyond[:, None].to(pattern.device), 0).max()
            if outside > _TINY:
                raise InputError(
                    f"attention pattern of layer {layer}: found attention of {float(outside):.3g} "
                    "on a key out of the window that the model's configuration names; expected "
                    "none: pass a model whose configuration is its own"
                )
        size = max(1, _CHUNK // pos**2)
        rows = (slice(start, start + size) for start in range(0, batch, size))
        self._layers[layer] = torch.cat([self._reduce(pattern[r], r, of) for r in rows])

    def _reduce(
        self, pattern: Tensor, rows: slice, of: _Reach
    ) -> Float[Tensor, "example head sum"]:
        precise = torch.promote_types(pattern.dtype, torch.float32)
        allowed = of.allowed[rows].to(pattern.device)
        # Filling, not multiplying: rows of padding may hold NaN.
        pattern = pattern.detach().to(precise).masked_fill(~allowed[:, None], 0.0)
        kept = pattern.sum((2, 3))
        if self._rescale:
            pattern = pattern / pattern.sum(-1, keepdim=True).clamp(min=_TINY)
        pattern = pattern.flatten(2)
        pairs = of.pairs[rows].to(pattern.device, precise)
        distance = pattern @ self._distance.to(pattern.device, precise)
        entropy = torch.special.entr(pattern).sum(-1)
        return torch.cat([pattern @ pairs, torch.stack([kept, distance, entropy], -1)], -1)

    def sums(self, n_layers: int) -> Float[Tensor, "example layer head sum"]:
        """Sums over queries, float64.

        The last axis has attention on every category and on ``other``; the same with categories
        made disjoint; all attention that is not left out; attention times the distance of query
        and key, in tokens; and entropy, in nats. Attention that is not finite is a `MechcoreError`.
        """
        check_patterns(range(n_layers), self._layers)
        layers = [self._layers[i].to(self._distance.device) for i in range(n_layers)]
        sums = torch.stack(layers, 1).cpu().double()
        broken = (~sums.isfinite()).any(0).any(-1).nonzero().tolist()
        if broken:
            layer, head = broken[0]
            raise MechcoreError(
                f"attention of L{layer}.H{head}: not finite at a real token; the model overflows "
                "in its precision: load it in float32"
            )
        return sums
