"""Cutting many sets of paths, on the engines that ablate sets of components.

A set of paths to one receiver is that receiver ablated with what it would put out if it did not see
the senders (`mechcore.masking.blinding.Blindness`): sets with the same senders share one forward
that finds it, and everything before their receivers. Sets of paths to the answer alone share one
forward of the full model (`mechcore.ablation.answer_cuts`), where layers are known as functions.
Sets with several receivers, whose outputs depend on each other, run as they are defined, several
side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mechcore.ablation.answer_cuts import AnswerCuts
from mechcore.ablation.engines import Job, ReferenceEngine, SharingEngine, TreeEngine
from mechcore.ablation.kept import Kept
from mechcore.components import Component, Mask, ModelShape
from mechcore.components.paths import ANSWER, Path, PathSet, Receiver
from mechcore.evaluation.evaluate import MAX_ROWS
from mechcore.masking.blinding import Blindness, blind, runs_in_parallel
from mechcore.masking.fills import fill_of
from mechcore.models.running import n_kv_heads, read_position


@dataclass(eq=False)
class _Group:
    """Sets of paths from the same senders to one receiver each.

    Attributes:
        engine: ablates the receivers with what they would put out.
        answer: row of the set whose receiver is the answer.
        tasks: those of the engine.
    """

    engine: SharingEngine
    answer: int | None

    def __post_init__(self) -> None:
        self.tasks = self.engine.tasks()


class _Answers:
    """Sets of paths to the answer alone.

    Args:
        base: ablates components of the model.
        sets: by their rows among the answers.
    """

    def __init__(self, base: TreeEngine, sets: Mapping[int, PathSet]) -> None:
        self.base, self.job = base, base.job
        self.rows = torch.tensor([*sets])
        self.senders = [each.senders[Receiver(None)] for each in sets.values()]
        self.cuts = self._new_cuts()

    def _new_cuts(self) -> AnswerCuts:
        job, base = self.job, self.base
        fills = fill_of(job.model, job.means, job.fill, job.seed)
        return AnswerCuts(base.exact, job.shape, fills, self.senders, base.max_tokens)

    def begin(self, batch: int) -> None:
        if batch == 0:
            self.cuts = self._new_cuts()
        self.cuts.begin(self.job.asked(self.job.batches[batch]))

    def run(self, batch: int, kept: Kept) -> None:
        job, given = self.job, self.job.batches[batch]
        inputs, index = job.asked(given), given["index"]
        self.cuts.fills.prepare({**inputs, "index": index})
        stack = self.cuts.stack
        for part, streams in self.cuts.follow(inputs, read_position(job.model, inputs)):
            logits = job.readout.classes(stack.out(stack.head(streams))).cpu()
            job.readout.check(logits, index, None)
            rows = self.rows[part]
            if not len(rows):
                kept.full[index] = logits[0].float()
                continue
            kept.note(rows, index, logits.float(), job.correct_classes[index], kept.full[index])


class PathEngine:
    """Answers with sets of paths cut.

    Args:
        job: what to do; its masks are those of no set.
        sets: what to cut.
        base: ablates components of the same model, and was checked; the reference where nothing is
            shared.

    Raises:
        InputError: a receiver does not run after its sender, or is not there.
    """

    name = "paths"

    def __init__(
        self, job: Job, sets: Sequence[PathSet], base: SharingEngine | ReferenceEngine
    ) -> None:
        self.job, self.sets = job, sets
        parallel = runs_in_parallel(job.model)
        for each in sets:
            for path in each.paths:
                path.check(job.shape, parallel=parallel)
        self.division = [self.name, ANSWER, *base.division]
        rest = list(range(len(sets)))
        self.groups: list[_Group] = []
        if isinstance(base, SharingEngine):
            # Sets of which the answer alone is blind share a forward with each other instead.
            by_senders = {k: v for k, v in self._by_senders().items() if [*v] != [Receiver(None)]}
            self.groups = [self._group(base, *key, rows) for key, rows in by_senders.items()]
            grouped = {row for rows in by_senders.values() for row in rows.values()}
            rest = [row for row in rest if row not in grouped]
            rest.sort(key=lambda row: Receiver(None) not in sets[row].senders)
        self.answers: _Answers | None = None
        to_answer = [row for row in rest if [*sets[row].senders] == [Receiver(None)]]
        if isinstance(base, TreeEngine) and to_answer:
            self.answers = _Answers(base, {row: sets[row] for row in to_answer})
            rest = [row for row in rest if row not in to_answer]
        size = max(1, MAX_ROWS // job.batch_size // 2)
        self.rest = [rest[start : start + size] for start in range(0, len(rest), size)]
        self.parts = [
            (group, part)
            for group in self.groups
            for part in dict.fromkeys(part for part, *_ in group.tasks)
        ]
        self.first_rest = len(self.parts) + (self.answers is not None)

    def _by_senders(self) -> dict[tuple[frozenset[Component], str], dict[Receiver, int]]:
        """Sets with one receiver by what that does not see; more, where it runs too late to tell.

        A receiver that is blind to some heads is as blind to those and any that run after it.
        """
        shape, parallel = self.job.shape, runs_in_parallel(self.job.model)
        found: dict[tuple[frozenset[Component], str], dict[Receiver, int]] = {}

        def home(receiver: Receiver, senders: frozenset[Component]) -> frozenset[Component]:
            for more, what in found:
                if what == receiver.input and more > senders:
                    late = [Path(sender, receiver) for sender in more - senders]
                    if not any(path.runs(shape, parallel=parallel) for path in late):
                        return more
            return senders

        single = [(row, each) for row, each in enumerate(self.sets) if len(each.senders) == 1]
        for row, each in sorted(single, key=lambda pair: -len(pair[1])):
            [(receiver, senders)] = each.senders.items()
            key = (home(receiver, senders), receiver.input)
            found.setdefault(key, {})[receiver] = row
        return found

    def _group(
        self,
        base: SharingEngine,
        senders: frozenset[Component],
        what: str,
        rows: dict[Receiver, int],
    ) -> _Group:
        job, full = self.job, Mask.full(self.job.shape)
        receivers = [receiver for receiver in rows if receiver.component is not None]
        without = [full.without(changed_with(job.model, r)).values for r in receivers]
        fill = partial(Blindness, senders=senders, what=what, fill=job.fill)
        engine = base.like(job.changed(torch.stack([full.values, *without]), fill))
        engine.rows = torch.tensor([*(rows[each] for each in receivers), -1])
        return _Group(engine, rows.get(Receiver(None)))

    def check(self) -> None:
        """The base was checked."""

    def tasks(self) -> list[tuple[int, int, float]]:
        """Part, batch and cost in layers times tokens of every task.

        Part -1 is the full model, which groups and answers run anyway.
        """
        numbers = {(id(group), part): i for i, (group, part) in enumerate(self.parts)}
        batches = self.job.batches
        tokens = sum(batch["input_ids"].numel() for batch in batches)
        n_layers = self.job.shape.n_layers
        shared = bool(self.groups or self.answers)
        found = [] if shared else [(-1, 0, float(n_layers * tokens))]
        for group in self.groups:
            of_pass = n_layers * len(_fill(group.engine).rows.run)
            for part, batch, cost in group.tasks:
                more = of_pass * batches[batch]["input_ids"].numel()
                found.append((numbers[id(group), part], batch, cost + more))
        if self.answers is not None:
            found += [
                (len(self.parts), number, float(n_layers * batch["input_ids"].numel()))
                for number, batch in enumerate(batches)
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
        elif self.answers is not None and part == len(self.parts):
            self.answers.begin(batch)

    def run(self, part: int, batch: int, kept: Kept) -> None:
        """Do one task."""
        if part < 0:
            ReferenceEngine(self.job).run(-1, 0, kept)
            return
        if part >= self.first_rest:
            self._run_rest(self.rest[part - self.first_rest], kept)
            return
        if part == len(self.parts):
            assert self.answers is not None
            self.answers.run(batch, kept)
            return
        group, own = self.parts[part]
        fill, where = _fill(group.engine), group.engine.batches[batch]
        inputs = self.job.asked(where)
        fill.read(inputs)
        group.engine.run(own, batch, kept)
        if group.answer is not None and own == group.tasks[0][0]:
            assert fill.answers is not None
            logits = self.job.readout.read(fill.answers[None], inputs, where["index"])
            self._note([group.answer], logits, where["index"], kept)

    def _run_rest(self, rows: Sequence[int], kept: Kept) -> None:
        job = self.job
        sets = [self.sets[row] for row in rows]
        cut = blind(job.model, sets, job.means, job.fill, seed=job.seed)
        with torch.no_grad(), cut as run:
            for batch in job.batches:
                inputs = job.asked(batch)
                logits = job.readout.read(run(inputs), inputs, batch["index"])
                self._note(rows, logits, batch["index"], kept)

    def _note(self, rows: Sequence[int], logits: Tensor, index: Tensor, kept: Kept) -> None:
        correct = self.job.correct_classes[index]
        kept.note(rows, index, logits.float().cpu(), correct, kept.full[index])


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
