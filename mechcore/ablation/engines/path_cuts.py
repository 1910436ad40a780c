"""Cutting many sets of paths: on layers as functions where they have one receiver (`StackCuts`).

All others run as they are defined (`mechcore.masking.blinding`), several side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from mechcore.ablation.engines.buffers import AnswerBuffer
from mechcore.ablation.engines.engine import Job, ReferenceEngine, TreeEngine
from mechcore.ablation.engines.stack_cuts import StackCuts
from mechcore.components import Component
from mechcore.components.names import PathSet, Receiver
from mechcore.evaluation.evaluate import forwards
from mechcore.masking.blinding import blind, runs_in_parallel
from mechcore.masking.fills import fill_of
from mechcore.models.protocol import Batch, read_position

Rows: TypeAlias = dict[Receiver, int]
"""Of the answers to sets, by their receivers."""

_ANSWER = Receiver(None)


class _OnStack:
    """Sets of paths to one receiver each, on layers that are known as functions."""

    def __init__(self, base: TreeEngine, sets: dict[frozenset[Component], Rows]) -> None:
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
    """Answers with sets of paths cut; ``base`` has the layers as functions, and was checked.

    Raises:
        InputError: a receiver does not run after its sender, or is not there.
    """

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

    def _by_senders(self) -> dict[frozenset[Component], Rows]:
        """Sets with one receiver, blind in all that it reads, by what it does not see."""
        by_senders: dict[frozenset[Component], Rows] = {}
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
