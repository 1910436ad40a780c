"""The prefix tree of masks of zeros and ones: what they have in common runs once, depth first.

Two levels a layer, heads and MLP: z does not depend on the mask of its own layer, nor does the MLP.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechcore.components import ModelShape
from mechcore.masking.fills import Fill, Kind, is_per_token
from mechcore.masking.interventions import blended
from mechcore.models.batches import real_positions
from mechcore.models.devices import chosen, sent
from mechcore.models.stack import Stack

Inputs: TypeAlias = Mapping[str, Tensor]
Emit: TypeAlias = Callable[[Sequence[Sequence[int]], Tensor], None]
"""Takes numbers of the masks of each node, and what they share, [node, batch, *rest]."""
Child: TypeAlias = "tuple[int, Tensor, Node]"
"""Number of the parent among its level, values, and the node itself."""


@dataclass(frozen=True, eq=False)
class Node:
    """Masks that agree so far, in the order in which they are finished, and the next values."""

    masks: tuple[int, ...]
    children: tuple[tuple[Float[Tensor, " component"], Node], ...]


def children_of(nodes: Sequence[Node]) -> list[Child]:
    """The children of nodes of one level."""
    return [(n, values, child) for n, node in enumerate(nodes) for values, child in node.children]


def grow(values: Float[Tensor, "mask layer component"], shape: ModelShape) -> Node:
    """The tree over masks, largest values first."""
    levels = [slice(0, shape.n_heads)]
    if shape.has_mlps:
        levels.append(slice(shape.n_heads, None))
    kinds: list[Sequence[Tensor]] = []  # of every level of every layer, smallest values first
    which: list[Tensor] = []  # kind of each mask there
    for layer in range(shape.n_layers):
        for level in levels:
            different, numbers = values[:, layer, level].unique(dim=0, return_inverse=True)
            kinds.append(different.unbind())
            which.append(numbers)
    order = np.lexsort([-numbers.numpy() for numbers in reversed(which)]).tolist()
    sorted_kinds = [numbers[order].tolist() for numbers in which]

    def below(start: int, end: int, depth: int) -> Node:
        """Of the masks that stand together in ``order``."""
        masks = tuple(order[start:end])
        if depth == len(kinds):
            return Node(masks, ())
        children = []
        for kind, same in groupby(sorted_kinds[depth][start:end]):
            first, start = start, start + len(list(same))
            children.append((kinds[depth][kind], below(first, start, depth + 1)))
        return Node(masks, tuple(children))

    return below(0, len(order), 0)


@dataclass(frozen=True)
class Work:
    """How often attention and the MLP of each layer run for one batch, over the whole tree."""

    attention: tuple[int, ...]
    mlp: tuple[int, ...]

    @classmethod
    def of(cls, tree: Node, shape: ModelShape) -> Work:
        """Count the nodes whose component is computed: not those that all masks ablate."""
        parts = 1 + shape.has_mlps
        counts = [0] * (shape.n_layers * parts)

        def count(node: Node, depth: int) -> None:
            if node.children:
                counts[depth] += any(bool(values.any()) for values, _ in node.children)
                for _, child in node.children:
                    count(child, depth + 1)

        count(tree, 0)
        mlp = counts[1::2] if shape.has_mlps else [0] * shape.n_layers
        return cls(tuple(counts[::parts]), tuple(mlp))

    def layers(self, stack: Stack) -> float:
        """Work in whole layers, by weights; the last layer, run for one position, counts 0."""
        total = 0.0
        for weights, attention, mlp in zip(stack.layers, self.attention, self.mlp, strict=True):
            if weights is stack.layers[-1]:
                break
            heads = weights.qkv.weight.numel() + weights.o.weight.numel()
            parts = (weights.up, weights.gate, weights.down)
            inner = sum(part.weight.numel() for part in parts if part is not None)
            total += (attention * heads + mlp * inner) / (heads + inner)
        return total


class Runner(ABC):
    """Runs one batch through a model under all masks of a tree; what all ways to do so share.

    Nodes of one level run together up to ``max_tokens`` tokens (examples times masks times
    positions). ``precision`` is that of the matrix products, if not the model's.
    """

    precision: torch.dtype | None = None

    def __init__(self, shape: ModelShape, fills: Fill, max_tokens: int) -> None:
        self.shape, self.fills, self.max_tokens = shape, fills, max_tokens
        self.draws: dict[tuple[Kind, int], Tensor | None] = {}

    def begin(self, inputs: Inputs) -> None:
        """Draw what a batch needs at random; call for every batch in turn, run or not."""
        self.draws = self.fills.draws_of_batch(self.shape, inputs["input_ids"].shape)

    @abstractmethod
    def run(self, inputs: Inputs, read: Tensor | None, tree: Node, emit: Emit) -> None:
        """Run a batch that was begun, read at ``read`` [batch], or at all positions if None."""

    def _start(self, inputs: Inputs, read: Tensor | None, emit: Emit) -> None:
        """Note what a batch needs; ``read`` is None where the last layer runs everywhere."""
        self.positions, self.read, self.emit = real_positions(inputs["attention_mask"]), read, emit
        self.known: dict[tuple[Kind, int], Tensor] = {}

    def _fill(self, kind: Kind, layer: int, like: Tensor) -> Tensor:
        """What stands in at the positions computed, [*batch_pos, head, d_head] or d_model."""
        key = (kind, layer)
        if key not in self.known:
            value = self.fills.checked(kind, layer, self.positions, self.draws[key])
            last = layer == self.shape.n_layers - 1
            if last and self.read is not None and is_per_token(kind, value):
                rows = torch.arange(len(self.read), device=value.device)
                value = value[rows, self.read.to(value.device)][:, None]
            self.known[key] = value.to(like)
        return self.known[key]

    def _parts(self, family: Sequence[Child], like: Tensor) -> Iterator[Sequence[Child]]:
        """Children that run together."""
        tokens = like[0, :, :, 0].numel()
        size = max(1, self.max_tokens // tokens)
        for start in range(0, len(family), size):
            yield family[start : start + size]


class TreeRunner(Runner):
    """Runs a batch through a `Stack`; emits the residual stream [node, batch, *pos, d_model]."""

    def __init__(self, stack: Stack, shape: ModelShape, fills: Fill, max_tokens: int) -> None:
        super().__init__(shape, fills, max_tokens)
        self.stack, self.precision = stack, stack.layers[0].o.weight.dtype

    @torch.no_grad()
    def run(self, inputs: Inputs, read: Tensor | None, tree: Node, emit: Emit) -> None:
        """See `Runner.run`."""
        self.context = self.stack.context(inputs, read)
        self._start(inputs, read, emit)
        x = self.stack.embed(inputs)
        self.like = x.new_empty(0)
        self._attention(0, x[None], [tree])

    # x is the residual stream [node, batch, pos, d_model] of ``nodes``.

    def _attention(self, layer: int, x: Tensor, nodes: Sequence[Node]) -> None:
        if layer == self.shape.n_layers:
            self.emit([node.masks for node in nodes], x if self.read is None else x[:, :, 0])
            return
        wanted = torch.stack([values for node in nodes for values, _ in node.children])
        usual = wanted.median(0).values  # what most children have in common is projected once
        heads = wanted.any(0).nonzero().flatten().tolist()
        z, base = self._usual(layer, x, heads, usual)
        for part in self._parts(children_of(nodes), base):
            x = self._with_heads(layer, base, z, heads, part, usual)
            x = self.stack.after_attention(layer, x)
            self._mlp(layer, x, [child for *_, child in part])

    def _usual(
        self, layer: int, x: Tensor, heads: list[int], usual: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """Z of ``heads``, and the residual stream after attention masked by ``usual``."""
        stack, n_nodes = self.stack, len(x)
        flat = x.flatten(0, 1)
        kept = stack.kept_positions(layer, flat, self.context).unflatten(0, (n_nodes, -1))
        out, z = None, None
        if heads:
            z = stack.z(layer, flat, self.context, heads).unflatten(0, (n_nodes, -1))
            values = usual[heads].to(z.dtype)
            masked = z
            if bool((values != 1).any()):
                m = sent(values, z.device)[:, None]
                masked = blended(z, m, self._heads_fill(layer, heads))
            out = stack.project(layer, masked, heads, bias=True)
        if len(heads) < self.shape.n_heads:
            others = [h for h in range(self.shape.n_heads) if h not in heads]
            fill = self._heads_fill(layer, others)
            rest = stack.project(layer, fill, others, bias=out is None)
            out = rest if out is None else out + rest
        assert out is not None
        return z, kept + out

    def _with_heads(
        self,
        layer: int,
        base: Tensor,
        z: Tensor | None,
        heads: list[int],
        part: Sequence[Child],
        usual: Tensor,
    ) -> Tensor:
        """The residual streams of children: ``base`` with the heads changed that differ."""
        parents = torch.tensor([n for n, *_ in part])
        x = chosen(base, 0, parents.tolist())
        differences = torch.stack([values for _, values, _ in part]) - usual
        if z is None or not bool(differences.any()):
            return x
        x = x.clone() if x is base else x  # other children may come from it
        n_changed = (differences != 0).sum(1)
        for n in filter(None, n_changed.unique().tolist()):  # as many heads in every row
            # W_O of each row's heads takes no more memory than the rows' residual streams may.
            size = max(1, self.max_tokens // (n * z.shape[-1]))
            for rows in (n_changed == n).nonzero().flatten().split(size):
                which = differences[rows].nonzero()[:, 1].unflatten(0, (-1, n))  # [row, head]
                by = sent(differences[rows].gather(1, which).to(x.dtype), x.device)
                places = torch.searchsorted(torch.tensor(heads), which)
                own = z[sent(parents[rows][:, None], x.device), :, :, sent(places, x.device)]
                fill = self._heads_fill(layer, which.flatten().tolist())
                fill = fill.movedim(-2, 0).unflatten(0, which.shape)
                if fill.ndim < own.ndim:  # the same at all positions
                    fill = fill[:, :, None, None]
                difference = (own - fill) * by[..., None, None, None]
                out = self.stack.project_each(layer, difference, which)
                x.index_add_(0, sent(rows, x.device), out.to(x.dtype))
        return x

    def _mlp(self, layer: int, x: Tensor, nodes: Sequence[Node]) -> None:
        family, out = children_of(nodes), None
        if any(bool(value) for _, value, _ in family):
            out = self.stack.mlp(layer, x.flatten(0, 1)).unflatten(0, (len(x), -1))
        for part in self._parts(family, x):
            after = self.stack.after_mlp(layer, self._with_mlp(layer, x, out, part))
            self._attention(layer + 1, after, [child for *_, child in part])

    def _with_mlp(self, layer: int, x: Tensor, out: Tensor | None, part: Sequence[Child]) -> Tensor:
        """The residual streams of children after the MLP, or what stands in for it."""
        parents = [n for n, *_ in part]
        x = chosen(x, 0, parents)
        if out is None:
            return x + self._fill("mlp", layer, self.like)
        out = chosen(out, 0, parents)
        stream = x + out
        rows = [row for row, (_, value, _) in enumerate(part) if not bool(value)]
        if rows:
            instead = self._fill("mlp", layer, self.like)
            stream.index_copy_(0, sent(rows, x.device), chosen(x, 0, rows) + instead)
        return stream

    def _heads_fill(self, layer: int, heads: list[int]) -> Tensor:
        return chosen(self._fill("z", layer, self.like), -2, heads)
