"""Cutting many sets of paths: on layers as functions where they have one receiver (`StackCuts`).

All others run as they are defined (`mechcore.masking.blinding`), several side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechcore.ablation.engines.buffers import AnswerBuffer
from mechcore.ablation.engines.engine import Job, ReferenceEngine, TreeEngine
from mechcore.components import Component, ModelShape
from mechcore.components.names import PathSet, Receiver
from mechcore.evaluation.evaluate import forwards
from mechcore.masking.blinding import blind, runs_in_parallel
from mechcore.masking.fills import Fill, Kind, fill_of, is_per_token
from mechcore.models.batches import real_positions
from mechcore.models.devices import chosen, sent
from mechcore.models.protocol import Batch, read_position
from mechcore.models.stack import Context, Stack

Senders: TypeAlias = frozenset[Component]
Streams: TypeAlias = Float[Tensor, "set batch pos d_model"]
Answers: TypeAlias = Float[Tensor, "set batch d_model"]
Rows: TypeAlias = dict[Receiver, int]
"""Of the answers to sets, by their receivers."""

_ANSWER = Receiver(None)

MAX_KEPT = 2**31
"""Bytes of what is kept of the full model's forward."""


@dataclass(eq=False)
class _Run:
    """The full model on a batch, by layer: what its components put out, and the stream before each.

    ``before`` is [batch, pos, d_model], after the last layer, too; the last layer has ``read``
    alone. ``rows`` are those of the batch that was begun.
    """

    context: Context
    read: Int[Tensor, " batch"]
    positions: Int[Tensor, "batch pos"]
    rows: Int[Tensor, " batch"]
    before: list[Tensor]
    z: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    mlp: list[Tensor] = field(default_factory=list)
    fills: dict[tuple[Kind, int], Tensor] = field(default_factory=dict)

    def read_of(self, values: Tensor) -> Tensor:
        """Values [batch, pos, ...] where the answer is read; the last layer has no others."""
        if values.shape[1] == 1:
            return values[:, 0]
        return values[torch.arange(len(values), device=values.device), self.read]


class StackCuts:
    """Runs batches in which single receivers do not see some components."""

    def __init__(self, stack: Stack, shape: ModelShape, fills: Fill, max_tokens: int) -> None:
        self.stack, self.shape, self.fills, self.max_tokens = stack, shape, fills, max_tokens
        self.heads = [*range(shape.n_heads)]
        self.draws: dict[tuple[Kind, int], Tensor | None] = {}

    def begin(self, inputs: Mapping[str, Tensor]) -> None:
        """Draw what a batch needs at random; call for every batch in turn, run or not."""
        self.draws = self.fills.draws_of_batch(self.shape, inputs["input_ids"].shape)

    @torch.no_grad()
    def start(
        self,
        inputs: Mapping[str, Tensor],
        read: Int[Tensor, " batch"],
        rows: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch d_model"]:
        """The stream that the full model answers from, for rows of a batch that was begun."""
        stack, context = self.stack, self.stack.context(inputs, read)
        positions = real_positions(inputs["attention_mask"])
        self.known = run = _Run(context, read, positions, rows, [stack.embed(inputs)])
        for layer in range(self.shape.n_layers):
            run.z.append(stack.z(layer, run.before[layer], context, self.heads))
            run.attention.append(stack.project(layer, run.z[layer], self.heads, bias=True))
            x = self._between(layer)
            run.mlp.append(stack.mlp(layer, x))
            run.before.append(stack.after_mlp(layer, x + run.mlp[layer]))
        return run.read_of(run.before[-1])

    def rows_at_once(self, n_pos: int) -> int:
        """Rows of so many positions of which `start` keeps no more than `MAX_KEPT` bytes."""
        weight = self.stack.layers[0].o.weight
        bytes_of_row = 4 * self.shape.n_layers * n_pos * len(weight) * weight.element_size()
        return max(1, MAX_KEPT // bytes_of_row)

    # -- the answer -----------------------------------------------------------------------------

    def answers(self, senders: Sequence[Senders]) -> Iterator[tuple[slice, Answers]]:
        """The residual streams that blind answers read, of the batch that was started."""
        size = max(1, self.max_tokens // len(self.known.read))
        for first in range(0, len(senders), size):
            part = slice(first, first + size)
            yield part, self._answers(senders[part])

    @torch.no_grad()
    def _answers(self, senders: Sequence[Senders]) -> Answers:
        stack, run = self.stack, self.known
        start = run.read_of(run.before[0])
        x = start.expand(len(senders), *start.shape)
        for layer in range(self.shape.n_layers):
            added = run.read_of(run.attention[layer]).expand_as(x)
            seen = _seen(senders, [Component(layer, head) for head in self.heads])
            rows = (~seen.all(1)).nonzero().flatten().tolist()
            if rows:
                z = run.read_of(run.z[layer])
                by = sent(~seen[rows], z.device)[:, None, :, None]
                unseen = (self._fill("z", layer, z, at_read=True) - z) * by
                change = stack.project(layer, unseen, self.heads, bias=False)
                added = added.index_add(0, sent(rows, x.device), change.to(added))
            x = stack.after_attention(layer, x + added)
            out = run.read_of(run.mlp[layer])
            seen = _seen(senders, [Component(layer)])
            if not bool(seen.all()):
                there = sent(seen, out.device)[..., None]
                out = torch.where(there, out, self._fill("mlp", layer, out, at_read=True))
            x = stack.after_mlp(layer, x + out)
        return x

    # -- components -----------------------------------------------------------------------------

    def components(
        self, senders: Senders, receivers: Sequence[Component]
    ) -> Iterator[tuple[slice, Answers]]:
        """The residual streams that answers read where single receivers, by layer, are blind."""
        size = max(1, self.max_tokens // self.known.positions.numel())
        for first in range(0, len(receivers), size):
            part = slice(first, first + size)
            yield part, self._components(senders, receivers[part])

    @torch.no_grad()
    def _components(self, senders: Senders, receivers: Sequence[Component]) -> Answers:
        first = min(sender.layer for sender in senders)
        view, x = self.known.before[first], self.known.before[0].new_empty(0)
        for layer in range(first, self.shape.n_layers):
            here = [receiver for receiver in receivers if receiver.layer == layer]
            x = self._attention(layer, x)
            heads = [receiver.head for receiver in here if receiver.head is not None]
            if heads:
                x = _joined(x, self._blind_heads(layer, view, heads))
            if receivers[-1].layer >= layer:
                view = self._view_attention(layer, view, senders)
            if len(x):
                x = self.stack.after_mlp(layer, x + self.stack.mlp(layer, x))
            if len(heads) < len(here):
                out = self._between(layer) + self.stack.mlp(layer, view)
                x = _joined(x, self.stack.after_mlp(layer, out)[None])
            if receivers[-1].layer > layer:
                out = self.known.mlp[layer]
                if Component(layer) in senders:
                    out = self._fill("mlp", layer, out)
                view = self.stack.after_mlp(layer, view + out)
        return x[:, :, 0]

    def _attention(self, layer: int, x: Streams) -> Streams:
        """Streams that attention was added to, as it is computed for each."""
        if not len(x):
            return x
        stack, context, flat = self.stack, self.known.context, x.flatten(0, 1)
        out = stack.project(layer, stack.z(layer, flat, context, self.heads), self.heads, bias=True)
        out = stack.after_attention(layer, stack.kept_positions(layer, flat, context) + out)
        return out.unflatten(0, (len(x), -1))

    def _blind_heads(self, layer: int, view: Tensor, heads: list[int]) -> Streams:
        """The full model's stream after attention, with one head each that reads the view."""
        stack = self.stack
        change = stack.z(layer, view, self.known.context, heads)
        change = change - chosen(self.known.z[layer], -2, heads)
        base = self._kept(layer) + self.known.attention[layer]
        added = [
            stack.project(layer, change[..., i : i + 1, :], [head], bias=False)
            for i, head in enumerate(heads)
        ]
        return stack.after_attention(layer, base + torch.stack(added))

    def _view_attention(self, layer: int, view: Tensor, senders: Senders) -> Tensor:
        """The view after the full model's attention was added to it, but for senders."""
        stack, z = self.stack, self.known.z[layer]
        out = stack.kept_positions(layer, view, self.known.context) + self.known.attention[layer]
        heads = [head for head in self.heads if Component(layer, head) in senders]
        if heads:
            unseen = chosen(self._fill("z", layer, z) - z, -2, heads)
            out = out + stack.project(layer, unseen, heads, bias=False)
        return stack.after_attention(layer, out)

    # -- what both need -------------------------------------------------------------------------

    def _kept(self, layer: int) -> Tensor:
        """The full model's stream before a layer, where its attention is computed."""
        return self.stack.kept_positions(layer, self.known.before[layer], self.known.context)

    def _between(self, layer: int) -> Tensor:
        """The full model's stream between a layer's attention and its MLP."""
        return self.stack.after_attention(layer, self._kept(layer) + self.known.attention[layer])

    def _fill(self, kind: Kind, layer: int, like: Tensor, *, at_read: bool = False) -> Tensor:
        """What stands in, for all tokens or [batch, pos, ...]; where it is read, [batch, ...]."""
        run = self.known
        if (kind, layer) not in run.fills:
            drawn = self.draws[kind, layer]
            drawn = None if drawn is None else drawn[run.rows]
            run.fills[kind, layer] = self.fills.checked(kind, layer, run.positions, drawn)
        value = run.fills[kind, layer]
        if is_per_token(kind, value):
            if at_read:
                value = run.read_of(value)
            elif layer == self.shape.n_layers - 1:
                value = run.read_of(value)[:, None]
        return value.to(like)


def _seen(senders: Sequence[Senders], components: Sequence[Component]) -> Tensor:
    """Which components each answer sees, [set, component]."""
    return torch.tensor([[c not in unseen for c in components] for unseen in senders])


def _joined(x: Tensor, more: Tensor) -> Tensor:
    return torch.cat((x, more)) if len(x) else more


class _OnStack:
    """Sets of paths to one receiver each, on layers that are known as functions."""

    def __init__(self, base: TreeEngine, sets: dict[Senders, Rows]) -> None:
        self.job = job = base.job
        self.at: tuple[int, int] | None = None  # batch, and first example, that the cuts know
        self.answers = {senders: rows[_ANSWER] for senders, rows in sets.items() if _ANSWER in rows}
        by_layer = [
            (senders, {r.component: rows[r] for r in sorted(rows) if r.component is not None})
            for senders, rows in sets.items()
        ]
        self.parts = [(senders, rows) for senders, rows in by_layer if rows]
        fills = fill_of(job.model, job.means, job.fill, job.seed)
        self.cuts = StackCuts(base.exact, job.shape, fills, base.max_tokens)

    def tasks(self) -> Iterator[tuple[int, int, float]]:
        """Part, batch and cost of every task; all parts of one batch follow each other."""
        n_layers = self.job.shape.n_layers
        # Part 0 is the full model and the answers.
        costs = [n_layers, *(sum(n_layers - c.layer for c in rows) for _, rows in self.parts)]
        for number, batch in enumerate(self.job.batches):
            for part, cost in enumerate(costs):
                yield part, number, float(cost * batch["input_ids"].numel())

    def begin(self, part: int, batch: int) -> None:
        """Draw what a batch needs at random; the first of its parts does so."""
        if part == 0:
            self.cuts.begin(self.job.asked(self.job.batches[batch]))

    def run(self, part: int, batch: int, buffer: AnswerBuffer) -> None:
        """Do one task."""
        its = self.job.batches[batch]
        inputs, index = self.job.asked(its), its["index"]
        n_rows, n_pos = inputs["input_ids"].shape
        n = len(index)
        rows = torch.arange(n_rows).view(-1, n)  # of examples; several where answers have several
        size = max(1, self.cuts.rows_at_once(n_pos) // len(rows))
        for start in range(0, n, size):
            piece = slice(start, start + size)
            examples = {name: values[piece] for name, values in its.items()}
            if self.at != (batch, start):
                self._start(inputs, examples, rows[:, piece].flatten(), buffer)
                self.at = (batch, start)
            self._cut(part, examples, buffer)

    def _start(self, inputs: Batch, examples: Batch, rows: Tensor, buffer: AnswerBuffer) -> None:
        index = examples["index"]
        some = {name: values[rows] for name, values in inputs.items()}
        self.cuts.fills.prepare({**some, "index": index})
        full = self.cuts.start(some, read_position(self.job.model, some), rows)
        buffer.note_full(examples, self._logits(full, index))

    def _cut(self, part: int, examples: Batch, buffer: AnswerBuffer) -> None:
        if part == 0:
            numbers, streams = [*self.answers.values()], self.cuts.answers([*self.answers])
        else:
            senders, receivers = self.parts[part - 1]
            numbers = [*receivers.values()]
            streams = self.cuts.components(senders, [*receivers])
        for some, x in streams:
            buffer.note(numbers[some], examples, self._logits(x, examples["index"]))

    def _logits(self, x: Tensor, index: Tensor) -> Tensor:
        job, stack = self.job, self.cuts.stack
        logits = job.readout.classes(stack.out(stack.head(x))).cpu()
        job.readout.check(logits, index, None)
        return logits.float()


class PathEngine:
    """Answers with sets of paths cut; ``base`` has the layers as functions, and was checked."""

    name = "paths"

    def __init__(self, job: Job, sets: Sequence[PathSet], base: TreeEngine | None) -> None:
        self.job, self.sets = job, sets
        self.n_tokens = sum(batch["input_ids"].numel() for batch in job.batches)
        parallel = runs_in_parallel(job.model)
        for cut in sets:
            for path in cut.paths:
                path.check(job.shape, parallel=parallel)
        rest, self.on_stack = list(range(len(sets))), None
        # Cuts on layers as functions read one position.
        if base is not None and not job.readout.everywhere and (by_senders := self._by_senders()):
            self.on_stack = _OnStack(base, by_senders)
            done = {row for rows in by_senders.values() for row in rows.values()}
            rest = [row for row in rest if row not in done]
        self.n_stacked = 0 if self.on_stack is None else 1 + len(self.on_stack.parts)
        rest.sort(key=lambda row: sorted(map(str, sets[row].paths)))  # same senders side by side
        size = max(1, job.masks_at_once // 2)
        self.rest = [rest[start : start + size] for start in range(0, len(rest), size)]
        self.division = [self.name, self.n_stacked, size]  # what divides the sets into parts

    def _by_senders(self) -> dict[Senders, Rows]:
        """Sets with one receiver, blind in all that it reads, by what it does not see."""
        by_senders: dict[Senders, Rows] = {}
        for row, cut in enumerate(self.sets):
            [(receiver, senders), *more] = cut.senders.items()
            if receiver.input == "all" and not more:
                by_senders.setdefault(senders, {})[receiver] = row
        return by_senders

    def check(self) -> None:
        """The base was checked."""

    def tasks(self) -> list[tuple[int, int, float]]:
        """Part, batch and cost in layers times tokens of every task; part -1 is the full model."""
        of_forward = float(self.job.shape.n_layers * self.n_tokens)
        rest = enumerate(self.rest, self.n_stacked)
        return [
            *([(-1, 0, of_forward)] if self.on_stack is None else self.on_stack.tasks()),
            *((part, 0, 2 * len(rows) * of_forward) for part, rows in rest),
        ]

    @property
    def work(self) -> float:
        """Evaluations of a layer for each example, in all."""
        return sum(cost for *_, cost in self.tasks()) / self.n_tokens

    def begin(self, part: int, batch: int) -> None:
        """Draw what a task needs at random, whether it runs or was done before."""
        if self.on_stack is not None and part < self.n_stacked:
            self.on_stack.begin(part, batch)

    def run(self, part: int, batch: int, buffer: AnswerBuffer) -> None:
        """Do one task."""
        if part < 0:
            ReferenceEngine(self.job).run(-1, 0, buffer)
        elif self.on_stack is not None and part < self.n_stacked:
            self.on_stack.run(part, batch, buffer)
        else:
            self._run_rest(self.rest[part - self.n_stacked], buffer)

    def _run_rest(self, rows: Sequence[int], buffer: AnswerBuffer) -> None:
        job = self.job
        sets = [self.sets[row] for row in rows]
        cut = blind(job.model, sets, job.means, job.fill, seed=job.seed)
        for batch, logits in forwards(job.model, job.readout, job.batches, cut):
            buffer.note(rows, batch, logits)
