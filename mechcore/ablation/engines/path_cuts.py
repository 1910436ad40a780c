"""Cutting many sets of paths, on the engines that ablate sets of components.

Where layers are known as functions, sets of paths to one receiver share the full model's forward
(`mechcore.ablation.engines.stack_cuts`). Elsewhere, and for queries, keys and values, such a set is
its receiver ablated with what it would put out if it did not see the senders
(`mechcore.masking.blinding.Blindness`): sets with the same senders share one forward that finds it,
and everything before their receivers. Sets with several receivers, whose outputs depend on each
other, run as they are defined, several side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mechcore.ablation.engines.buffer import AnswerBuffer
from mechcore.ablation.engines.engine import Job, ReferenceEngine, SharingEngine, TreeEngine
from mechcore.ablation.engines.stack_cuts import StackCuts
from mechcore.components import Component, Mask, ModelShape
from mechcore.components.paths import Path, PathSet, Receiver
from mechcore.masking.blinding import Blindness, blind, runs_in_parallel
from mechcore.masking.fills import fill_of
from mechcore.models.protocol import Batch, n_kv_heads, read_position

Rows: TypeAlias = dict[Receiver, int]
"""Of the answers to sets, by their receivers."""


@dataclass(eq=False)
class _Group:
    """Sets of paths from the same senders to one receiver each.

    The engine ablates the receivers with what they would put out; ``answer`` is the row of the set
    whose receiver is the answer.
    """

    engine: SharingEngine
    answer: int | None

    def __post_init__(self) -> None:
        self.tasks = self.engine.tasks()


class _OnStack:
    """Sets of paths to one receiver each, on layers that are known as functions."""

    def __init__(self, base: TreeEngine, sets: Mapping[frozenset[Component], Rows]) -> None:
        self.job = job = base.job
        self.at: tuple[int, int] | None = None  # batch, and first example, that the cuts know
        answer = Receiver(None)
        self.answers = {senders: rows[answer] for senders, rows in sets.items() if answer in rows}
        by_layer = [
            (senders, {r.component: rows[r] for r in sorted(rows) if r.component is not None})
            for senders, rows in sets.items()
        ]
        self.parts = [(senders, rows) for senders, rows in by_layer if rows]
        fills = fill_of(job.model, job.means, job.fill, job.seed)
        self.cuts = StackCuts(base.exact, job.shape, fills, base.max_tokens)

    def tasks(self) -> list[tuple[int, int, float]]:
        """Part, batch and cost of every task; all parts of one batch follow each other."""
        n_layers = self.job.shape.n_layers
        # Part 0 is the full model and the answers.
        costs = [n_layers, *(sum(n_layers - c.layer for c in rows) for _, rows in self.parts)]
        return [
            (part, number, float(cost * batch["input_ids"].numel()))
            for number, batch in enumerate(self.job.batches)
            for part, cost in enumerate(costs)
        ]

    def begin(self, part: int, batch: int) -> None:
        """Draw what a batch needs at random; the first of its parts does so."""
        if part == 0:
            self.cuts.begin(self.job.asked(self.job.batches[batch]))

    def run(self, part: int, batch: int, buffer: AnswerBuffer) -> None:
        """Do one task."""
        inputs, index = self.job.asked(self.job.batches[batch]), self.job.batches[batch]["index"]
        n_rows, n_pos = inputs["input_ids"].shape
        n = len(index)
        rows = torch.arange(n_rows).view(-1, n)  # of examples; several where answers have several
        size = max(1, self.cuts.rows_at_once(n_pos) // len(rows))
        for start in range(0, n, size):
            piece = slice(start, start + size)
            if self.at != (batch, start):
                self._start(inputs, index[piece], rows[:, piece].flatten(), buffer)
                self.at = (batch, start)
            self._cut(part, index[piece], buffer)

    def _start(self, inputs: Batch, index: Tensor, rows: Tensor, buffer: AnswerBuffer) -> None:
        some = {name: values[rows] for name, values in inputs.items()}
        self.cuts.fills.prepare({**some, "index": index})
        full = self.cuts.start(some, read_position(self.job.model, some), rows)
        buffer.full[index] = self._logits(full, index)

    def _cut(self, part: int, index: Tensor, buffer: AnswerBuffer) -> None:
        if part == 0:
            numbers, streams = [*self.answers.values()], self.cuts.answers([*self.answers])
        else:
            senders, receivers = self.parts[part - 1]
            numbers = [*receivers.values()]
            streams = self.cuts.components(senders, [*receivers])
        correct, full = self.job.correct_classes[index], buffer.full[index]
        for some, x in streams:
            buffer.note(numbers[some], index, self._logits(x, index), correct, full)

    def _logits(self, x: Tensor, index: Tensor) -> Tensor:
        job, stack = self.job, self.cuts.stack
        logits = job.readout.classes(stack.out(stack.head(x))).cpu()
        job.readout.check(logits, index, None)
        return logits.float()


class PathEngine:
    """Answers with sets of paths cut.

    The job's masks are those of no set; ``base`` ablates components of the same model, and was
    checked; it is the reference where nothing is shared.

    Raises:
        InputError: a receiver does not run after its sender, or is not there.
    """

    name = "paths"

    def __init__(
        self, job: Job, sets: Sequence[PathSet], base: SharingEngine | ReferenceEngine
    ) -> None:
        self.job, self.sets = job, sets
        parallel = runs_in_parallel(job.model)
        for cut in sets:
            for path in cut.paths:
                path.check(job.shape, parallel=parallel)
        self.division = [self.name, *base.division]
        rest = list(range(len(sets)))
        self.groups: list[_Group] = []
        self.on_stack: _OnStack | None = None
        by_senders = self._by_senders()
        if isinstance(base, TreeEngine):
            whole = {senders: rows for (senders, what), rows in by_senders.items() if what == "all"}
            by_senders = {key: rows for key, rows in by_senders.items() if key[1] != "all"}
            self.on_stack = _OnStack(base, whole) if whole else None
            self.division.insert(1, "stack")
            done = {row for rows in whole.values() for row in rows.values()}
            rest = [row for row in rest if row not in done]
        if isinstance(base, SharingEngine):
            # Sets of which the answer alone is blind share a forward with each other instead.
            by_senders = {k: v for k, v in by_senders.items() if [*v] != [Receiver(None)]}
            self.groups = [self._group(base, *key, rows) for key, rows in by_senders.items()]
            grouped = {row for rows in by_senders.values() for row in rows.values()}
            rest = [row for row in rest if row not in grouped]
            rest.sort(key=lambda row: Receiver(None) not in sets[row].senders)
        size = max(1, job.masks_at_once // 2)
        self.rest = [rest[start : start + size] for start in range(0, len(rest), size)]
        self.parts = [
            (group, part)
            for group in self.groups
            for part in dict.fromkeys(part for part, *_ in group.tasks)
        ]
        n_stacked = 0 if self.on_stack is None else 1 + len(self.on_stack.parts)
        self.first_rest = len(self.parts) + n_stacked

    def _by_senders(self) -> dict[tuple[frozenset[Component], str], Rows]:
        """Sets with one receiver by what that does not see; more, where it runs too late to tell.

        A receiver that is blind to some heads is as blind to those and any that run after it.
        """
        shape, parallel = self.job.shape, runs_in_parallel(self.job.model)
        found: dict[tuple[frozenset[Component], str], Rows] = {}

        def home(receiver: Receiver, senders: frozenset[Component]) -> frozenset[Component]:
            for more, what in found:
                if what == receiver.input and more > senders:
                    late = [Path(sender, receiver) for sender in more - senders]
                    if not any(path.runs(shape, parallel=parallel) for path in late):
                        return more
            return senders

        single = [(row, cut) for row, cut in enumerate(self.sets) if len(cut.senders) == 1]
        for row, cut in sorted(single, key=lambda pair: -len(pair[1])):
            [(receiver, senders)] = cut.senders.items()
            key = (home(receiver, senders), receiver.input)
            found.setdefault(key, {})[receiver] = row
        return found

    def _group(
        self,
        base: SharingEngine,
        senders: frozenset[Component],
        what: str,
        rows: Rows,
    ) -> _Group:
        job, full = self.job, Mask.full(self.job.shape)
        receivers = [receiver for receiver in rows if receiver.component is not None]
        without = [full.without(changed_with(job.model, r)).values for r in receivers]
        fill = partial(Blindness, senders=senders, what=what, fill=job.fill)
        engine = base.like(job.changed(torch.stack([full.values, *without]), fill))
        engine.rows = torch.tensor([*(rows[receiver] for receiver in receivers), -1])
        return _Group(engine, rows.get(Receiver(None)))

    def check(self) -> None:
        """The base was checked."""

    def tasks(self) -> list[tuple[int, int, float]]:
        """Part, batch and cost in layers times tokens of every task.

        Part -1 is the full model, which is run anyway where sets share it.
        """
        numbers = {(id(group), part): i for i, (group, part) in enumerate(self.parts)}
        batches = self.job.batches
        tokens = sum(batch["input_ids"].numel() for batch in batches)
        n_layers = self.job.shape.n_layers
        shared = bool(self.groups or self.on_stack)
        found = [] if shared else [(-1, 0, float(n_layers * tokens))]
        for group in self.groups:
            of_pass = n_layers * len(_fill(group.engine).rows.run)
            for part, batch, cost in group.tasks:
                more = of_pass * batches[batch]["input_ids"].numel()
                found.append((numbers[id(group), part], batch, cost + more))
        if self.on_stack is not None:
            found += [
                (len(self.parts) + part, batch, cost) for part, batch, cost in self.on_stack.tasks()
            ]
        for i, rows in enumerate(self.rest, self.first_rest):
            found.append((i, 0, float(2 * len(rows) * n_layers * tokens)))
        return found

    @property
    def work(self) -> float:
        """Evaluations of a layer for each example, in all."""
        tokens = sum(batch["input_ids"].numel() for batch in self.job.batches)
        return sum(cost for *_, cost in self.tasks()) / tokens

    def begin(self, part: int, batch: int) -> None:
        """Draw what a task needs at random, whether it runs or was done before."""
        if 0 <= part < len(self.parts):
            group, own = self.parts[part]
            group.engine.begin(own, batch)
        elif self.on_stack is not None and 0 <= part < self.first_rest:
            self.on_stack.begin(part - len(self.parts), batch)

    def run(self, part: int, batch: int, buffer: AnswerBuffer) -> None:
        """Do one task."""
        if part < 0:
            ReferenceEngine(self.job).run(-1, 0, buffer)
            return
        if part >= self.first_rest:
            self._run_rest(self.rest[part - self.first_rest], buffer)
            return
        if part >= len(self.parts):
            assert self.on_stack is not None
            self.on_stack.run(part - len(self.parts), batch, buffer)
            return
        group, own = self.parts[part]
        fill, where = _fill(group.engine), group.engine.batches[batch]
        inputs = self.job.asked(where)
        fill.read(inputs)
        group.engine.run(own, batch, buffer)
        if group.answer is not None and own == group.tasks[0][0]:
            assert fill.answers is not None
            logits = self.job.readout.read(fill.answers[None], inputs, where["index"])
            self._note([group.answer], logits, where["index"], buffer)

    def _run_rest(self, rows: Sequence[int], buffer: AnswerBuffer) -> None:
        job = self.job
        sets = [self.sets[row] for row in rows]
        cut = blind(job.model, sets, job.means, job.fill, seed=job.seed)
        with torch.no_grad(), cut as run:
            for batch in job.batches:
                inputs = job.asked(batch)
                logits = job.readout.read(run(inputs), inputs, batch["index"])
                self._note(rows, logits, batch["index"], buffer)

    def _note(
        self, rows: Sequence[int], logits: Tensor, index: Tensor, buffer: AnswerBuffer
    ) -> None:
        correct = self.job.correct_classes[index]
        buffer.note(rows, index, logits.float().cpu(), correct, buffer.full[index])


def _fill(engine: SharingEngine) -> Blindness:
    fill = engine.runner.fills
    assert isinstance(fill, Blindness)
    return fill


def changed_with(model: Any, receiver: Receiver) -> list[Component]:
    """The heads whose outputs change if a receiver is blind: a key is that of its whole group."""
    component = receiver.component
    assert component is not None
    if component.head is None or receiver.input not in ("k", "v"):
        return [component]
    size = ModelShape.of(model).n_heads // n_kv_heads(model)
    first = component.head // size * size
    return [Component(component.layer, head) for head in range(first, first + size)]
