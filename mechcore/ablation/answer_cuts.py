"""Cutting paths to the answer alone, on a model's layers as functions.

Where only the answer is blind, every component puts out what it puts out in the full model. The
stream that the answer reads is then adds and norms over outputs that are known, with the fill for
the senders', at the position that is read: a set costs next to nothing beside one forward.
`mechcore.masking.blinding` defines what is computed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechcore.components import Component, ModelShape
from mechcore.masking.fills import Fill, Kind
from mechcore.models.padding import real_positions
from mechcore.models.placing import sent
from mechcore.models.stack import Context, Stack

Outputs = dict[tuple[Kind, int], Tensor]


class AnswerCuts:
    """Runs batches whose answers do not see some components.

    Args:
        stack: the model's layers.
        shape: of the model.
        fills: what stands in for senders.
        senders: what each answer does not see.
        max_rows: examples times sets that are followed at once.
    """

    def __init__(
        self,
        stack: Stack,
        shape: ModelShape,
        fills: Fill,
        senders: Sequence[frozenset[Component]],
        max_rows: int,
    ) -> None:
        self.stack, self.shape, self.fills = stack, shape, fills
        self.senders, self.max_rows = senders, max_rows
        self.draws: dict[tuple[Kind, int], Tensor | None] = {}

    def begin(self, inputs: Mapping[str, Tensor]) -> None:
        """Draw what a batch needs at random; call for every batch in turn, run or not."""
        self.draws = {
            (kind, layer): self.fills.draws(kind, layer, inputs["input_ids"].shape)
            for kind, layer in self._places()
        }

    @torch.no_grad()
    def follow(
        self, inputs: Mapping[str, Tensor], read: Int[Tensor, " batch"]
    ) -> Iterator[tuple[slice, Float[Tensor, "set batch d_model"]]]:
        """Follow a batch for which `begin` was called and `Fill.prepare` told.

        Args:
            inputs: model inputs [batch, pos].
            read: position that the answer is read at, [batch].

        Yields:
            The residual stream that the answer reads: of the full model, with ``slice(0, 0)``, then
            of sets, with which these are.
        """
        self.rows, self.read = torch.arange(len(read), device=read.device), read
        context = self.stack.context(inputs, read)
        start, known = self._outputs(self.stack.embed(inputs), context)
        fill = self._fills(real_positions(inputs["attention_mask"]))
        yield slice(0, 0), self._streams([frozenset()], start, known, fill)
        size = max(1, self.max_rows // len(read))
        for first in range(0, len(self.senders), size):
            part = slice(first, first + size)
            yield part, self._streams(self.senders[part], start, known, fill)

    def _places(self) -> Iterator[tuple[Kind, int]]:
        for layer in range(self.shape.n_layers):
            yield "z", layer
            if self.shape.has_mlps:
                yield "mlp", layer

    def _outputs(self, x: Tensor, context: Context) -> tuple[Tensor, Outputs]:
        """The stream before the first layer, and what components put out, where it is read.

        ``z`` is [batch, head, d_head], ``mlp`` [batch, d_model].
        """
        stack, start, heads = self.stack, self._at(x), [*range(self.shape.n_heads)]
        found: Outputs = {}
        for layer in range(self.shape.n_layers):
            z = stack.z(layer, x, context, heads)
            found["z", layer] = self._at(z)
            x = stack.kept_positions(layer, x, context)
            x = stack.after_attention(layer, x + stack.project(layer, z, heads, bias=True))
            if self.shape.has_mlps:
                out = stack.mlp(layer, x)
                found["mlp", layer] = self._at(out)
                x = stack.after_mlp(layer, x + out)
        return start, found

    def _at(self, values: Tensor) -> Tensor:
        """Values [batch, pos, ...] where the answer is read; the last layer has no others."""
        return values[:, 0] if values.shape[1] == 1 else values[self.rows, self.read]

    def _fills(self, positions: Tensor) -> Outputs:
        """What stands in where the answer is read; as `_outputs`, or without the batch."""
        wanted = {
            ("mlp" if c.head is None else "z", c.layer) for each in self.senders for c in each
        }
        found: Outputs = {}
        for place in filter(wanted.__contains__, self._places()):
            value = self.fills.checked(*place, positions, self.draws[place])
            per_token = value.ndim == (4 if place[0] == "z" else 3)
            found[place] = value[self.rows, self.read] if per_token else value
        return found

    def _streams(
        self, senders: Sequence[frozenset[Component]], start: Tensor, known: Outputs, fill: Outputs
    ) -> Float[Tensor, "set batch d_model"]:
        stack, x = self.stack, start.expand(len(senders), *start.shape)
        heads = [*range(self.shape.n_heads)]
        for layer in range(self.shape.n_layers):
            z = known["z", layer]
            added = stack.project(layer, z, heads, bias=True).expand_as(x)
            seen = _seen(senders, [Component(layer, head) for head in heads])
            rows = (~seen.all(1)).nonzero().flatten().tolist()
            if rows:
                by = sent(~seen[rows], z.device)[:, None, :, None]
                change = stack.project(layer, (fill["z", layer].to(z) - z) * by, heads, bias=False)
                added = added.index_add(0, sent(rows, z.device), change.to(added))
            x = stack.after_attention(layer, x + added)
            if self.shape.has_mlps:
                out = known["mlp", layer]
                seen = _seen(senders, [Component(layer)])
                if not bool(seen.all()):
                    there = sent(seen, out.device)[..., None]
                    out = torch.where(there, out, fill["mlp", layer].to(out))
                x = stack.after_mlp(layer, x + out)
        return x


def _seen(senders: Sequence[frozenset[Component]], components: Sequence[Component]) -> Tensor:
    """Which components each answer sees, [set, component]."""
    return torch.tensor([[c not in each for c in components] for each in senders])
