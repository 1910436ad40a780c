"""The prefix tree, one masked forward per set, and what engines share: tasks that can resume."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from mechcore.ablation.engines.buffers import AnswerBuffer, MetricBuffer
from mechcore.ablation.engines.tree import Node, Runner, TreeRunner, Work, grow
from mechcore.components import Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import MechcoreError
from mechcore.evaluation.evaluate import MAX_ROWS, Data, forwards, running
from mechcore.evaluation.metrics import Metric, Targets
from mechcore.evaluation.readout import Readout
from mechcore.masking.fills import Fill, FillMaker, fill_of
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models.devices import DTYPES, chosen
from mechcore.models.protocol import Batch, device_of, forward, model_inputs, read_position
from mechcore.models.stack import Stack, apart, disagreement

Precision: TypeAlias = Literal["float32", "bfloat16", "float16"]

Take: TypeAlias = Callable[[Tensor, Tensor], None]

MAX_TOKENS = {"cpu": 4096, "cuda": 131_072}
"""Most tokens in one call of a layer by device, examples times masks times positions."""

SAMPLE = (16, 64)
"""Fewest and most examples, and as many sets, on which precisions are compared."""

SHARE_OF_SAMPLE = 0.02
"""Of a sweep's answers that are compared, between these bounds."""

_PENDING = 2**24  # logits kept before they are reduced to answers


@dataclass(eq=False)
class Job:
    """What a sweep works on; masks are [mask, layer, component], the full model's first."""

    model: Any
    masks: Tensor
    data: Data
    means: MeanActivations | None
    fill: FillMaker
    seed: int
    class_names: Sequence[str] | None
    batch_size: int
    metric: Metric | None = None
    precision: Precision = "float32"
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        self.labels: Tensor | None
        if self.metric is None:
            self.readout = Readout.of(self.model, self.data, self.class_names)
            self.labels = self.readout.correct_classes(self.data)
        else:
            self.targets = Targets(self.metric, self.model, self.data, self.class_names)
            self.readout, self.labels = self.targets.readout, self.targets.classes
        self.shape = ModelShape.of(self.model)

    def buffer(self, n_sets: int) -> AnswerBuffer:
        """Where the answers go."""
        if self.metric is None and self.labels is not None:
            return AnswerBuffer(n_sets, self.readout, self.labels)
        return MetricBuffer(n_sets, sum(len(b["index"]) for b in self.batches), self.targets)

    @property
    def masks_at_once(self) -> int:
        """How many masks of a whole batch run in one forward, at least one."""
        return 1 if self.readout.everywhere else max(1, MAX_ROWS // self.batch_size)

    @cached_property
    def batches(self) -> list[Batch]:
        """All batches, each with the rows of its examples as ``index``."""
        if isinstance(self.data, EncodedExamples):
            return list(self.data.batches(self.batch_size))
        batches: list[Batch] = []
        for batch in self.data:
            inputs = model_inputs(self.model, batch)
            rows = torch.arange(len(inputs["input_ids"])) + sum(len(b["index"]) for b in batches)
            known = {name: value for name, value in batch.items() if torch.is_tensor(value)}
            batches.append({**known, **inputs, "index": rows})
        return batches

    def asked(self, batch: Batch) -> dict[str, Tensor]:
        """What the model reads for the answers to a batch."""
        return model_inputs(self.model, self.readout.asked(batch))


class ReferenceEngine:
    """One masked forward of the whole model per set and batch."""

    name = "reference"

    def __init__(self, job: Job) -> None:
        self.job = job
        self.division = [self.name, MAX_ROWS]  # what divides the sets into parts
        numbers = torch.arange(len(job.masks) - 1)
        self.parts = list(numbers.split(job.masks_at_once)) if len(numbers) else []

    def tasks(self) -> list[tuple[int, int, float]]:
        """Part, batch and cost of every task; part -1 is the full model, batches run at once."""
        return [(-1, 0, 1.0), *((i, 0, float(len(part))) for i, part in enumerate(self.parts))]

    @property
    def work(self) -> float:
        """Evaluations of a layer for each example, in all."""
        return float(self.job.shape.n_layers * len(self.job.masks))

    def begin(self, part: int, batch: int) -> None:
        """Nothing is drawn ahead."""

    def check(self) -> None:
        """Nothing to compare with."""

    def run(self, part: int, batch: int, buffer: AnswerBuffer) -> None:
        """Do one task."""
        job, numbers = self.job, self.parts[part] if part >= 0 else None
        masks = None
        if numbers is not None:
            masks = Mask(job.masks[1 + numbers], has_mlps=job.shape.has_mlps)
        context = running(job.model, masks, job.means, job.fill, job.seed)
        for of_batch, logits in forwards(job.model, job.readout, job.batches, context):
            if numbers is None:
                buffer.note_full(of_batch, logits)
            else:
                buffer.note(numbers, of_batch, logits)


class SharingEngine(ABC):
    """Runs what sets have in common once, by levels of ``shape``, batch by batch."""

    name: str

    def __init__(self, job: Job, shape: ModelShape) -> None:
        self.job, self.levels = job, shape
        self.batches = job.batches
        self.checked = _rows(self.batches[len(self.batches) // 2], slice(4))
        device = device_of(job.model).type
        self.max_tokens = job.max_tokens or MAX_TOKENS.get(device, MAX_TOKENS["cuda"])
        if job.readout.everywhere:
            self.max_tokens = min(self.max_tokens, max(1, 4 * _PENDING // job.readout.n_classes))
        self.division = [self.name]  # what divides the sets into parts
        self.tree = self._tree(job.masks)

    @cached_property
    def runner(self) -> Runner:
        """What runs the batches in turn; made after the check, which may decide how."""
        return self._new_runner()

    def _tree(self, masks: Tensor) -> Node:
        return grow(masks, self.levels)

    @abstractmethod
    def layers(self, tree: Node) -> float:
        """Whole layers' worth of work for one batch; what is not in every position counts 0."""

    @abstractmethod
    def check(self) -> None:
        """Raise a MechcoreError unless the logits are the model's, whole and without one set."""

    @abstractmethod
    def _new_runner(self, exact: bool = False) -> Runner:
        """A runner that has drawn nothing yet; ``exact`` for one in the model's own precision."""

    @abstractmethod
    def _answers(self, runner: Any, x: Tensor) -> Tensor:
        """Logits of the classes [node, batch, *pos, cls] of what it hands out; on its device."""

    def _fills(self) -> Fill:
        job = self.job
        return fill_of(job.model, job.means, job.fill, job.seed)

    def tasks(self) -> list[tuple[int, int, float]]:
        """Part 0, batch and cost in layers times tokens of every task."""
        cost = self.work + 1
        sizes = enumerate(batch["input_ids"].numel() for batch in self.batches)
        return [(0, number, cost * size) for number, size in sizes]

    @property
    def work(self) -> float:
        """Evaluations of a layer for each example, in all."""
        return self.layers(self.tree)

    def begin(self, part: int, batch: int) -> None:
        """Draw what a task needs at random, whether it runs or was done before."""
        self.runner.begin(self.job.asked(self.batches[batch]))

    def run(self, part: int, batch: int, buffer: AnswerBuffer) -> None:
        """Do one task."""
        its, is_first = self.batches[batch], True

        def take(numbers: Tensor, logits: Tensor) -> None:
            nonlocal is_first
            sets = numbers - 1
            if is_first:
                if numbers[0] != 0:
                    raise MechcoreError(f"{self.name} engine: no answer of the full model first")
                buffer.note_full(its, logits[0])
                is_first, sets, logits = False, sets[1:], logits[1:]
            buffer.note(sets, its, logits)

        self._logits(self.runner, its, self.tree, take)

    def _logits(self, runner: Runner, batch: Batch, tree: Node, take: Take) -> None:
        """Hand out numbers of masks and their logits [mask, batch, *pos, cls], full ones first."""
        inputs = self.job.asked(batch)
        numbers: list[int] = []
        pending: list[Tensor] = []

        def flush() -> None:
            if pending:
                together = torch.cat(pending).cpu()
                self.job.readout.check(together, batch["index"], runner.precision)
                take(torch.tensor(numbers), together.float())
            numbers.clear()
            pending.clear()

        def emit(masks: Sequence[Sequence[int]], x: Tensor) -> None:
            nodes = [node for node, same in enumerate(masks) for _ in same]
            numbers.extend(chain.from_iterable(masks))
            pending.append(chosen(self._answers(runner, x), 0, nodes))
            if sum(logits.numel() for logits in pending) > _PENDING:
                flush()

        read = None if self.job.readout.everywhere else read_position(self.job.model, inputs)
        runner.fills.prepare({**batch, **inputs})
        runner.run(inputs, read, tree, emit)
        flush()

    @cached_property
    def expected(self) -> Tensor:
        """Logits of `checked` [2, batch, *pos, cls] in whole forwards: in full, without one set."""
        job, inputs = self.job, self.job.asked(self.checked)
        mask = Mask(job.masks[-1], has_mlps=job.shape.has_mlps)
        with torch.no_grad():
            logits = [forward(job.model, inputs)]
            with masked(job.model, mask, job.means, job.fill, seed=job.seed) as masked_model:
                logits.append(masked_model({**self.checked, **inputs}))
        return job.readout.read(torch.stack(logits), inputs, self.checked["index"]).cpu()

    def disagreement(self) -> str | None:
        """In how far the engine's logits are not those expected; None if they are."""
        job, runner = self.job, self._new_runner(exact=True)
        runner.begin(job.asked(self.checked))
        got = torch.empty(self.expected.shape)
        self._logits(runner, self.checked, self._tree(job.masks[[0, -1]]), got.__setitem__)
        if disagreement(got, self.expected) is None:
            return None
        return disagreement(got, self.expected, self._own_rounding())

    def _own_rounding(self) -> float:
        """How far the model's logits of half precision are apart for examples run one by one."""
        if self.expected.element_size() != 2:
            return 0.0
        job, alone = self.job, []
        for i in range(len(self.checked["index"])):
            one = _rows(self.checked, slice(i, i + 1))
            with torch.no_grad():
                logits = forward(job.model, job.asked(one))
            alone.append(job.readout.read(logits, job.asked(one), one["index"]))
        return apart(torch.cat(alone).float().cpu(), self.expected[0])


class TreeEngine(SharingEngine):
    """The prefix tree over a `Stack` of the model's weights."""

    name = "tree"

    def __init__(self, job: Job, stack: Stack) -> None:
        self.stack = self.exact = job.readout.of_stack(stack)
        if job.precision != "float32":
            self.stack = self.stack.to(DTYPES[job.precision])
        super().__init__(job, job.shape)

    def layers(self, tree: Node) -> float:
        """See `SharingEngine.layers`."""
        return Work.of(tree, self.job.shape).layers(self.stack)

    def _new_runner(self, exact: bool = False) -> TreeRunner:
        stack = self.exact if exact else self.stack
        return TreeRunner(stack, self.job.shape, self._fills(), self.max_tokens)

    def _answers(self, runner: TreeRunner, x: Tensor) -> Tensor:
        read = runner.stack.out(runner.stack.head(x.flatten(0, 1))).unflatten(0, (len(x), -1))
        real = runner.context.real
        if real is not None:
            read = self.job.readout.unpadded(read, real)
        return self.job.readout.classes(read)

    def check(self) -> None:
        """See `SharingEngine.check`."""
        if wrong := self.disagreement():
            raise MechcoreError(
                f"prefix-sharing engine: {wrong}; the model does not compute what its weights say "
                "(hooks, processed weights, an unusual setting): use engine='restart'"
            )

    def agreement(self) -> float:
        """Share of answers in this precision that are those of float32, on a sample."""
        job, generator = self.job, torch.Generator().manual_seed(self.job.seed)
        n_answers = len(job.masks) * sum(len(batch["index"]) for batch in self.batches)
        size = min(max(math.isqrt(int(SHARE_OF_SAMPLE * n_answers)), SAMPLE[0]), SAMPLE[1])
        chosen = torch.randperm(len(job.masks), generator=generator)[:size]
        tree = self._tree(job.masks[chosen])
        n = -(-size // len(self.batches))
        same: list[Tensor] = []
        for batch in self.batches[:: -(-len(self.batches) // size)]:
            rows = torch.randperm(len(batch["index"]), generator=generator)[:n]
            part, answers = _rows(batch, rows), []
            for exact in (True, False):
                runner = self._new_runner(exact)
                runner.begin(job.asked(part))
                logits = torch.empty(len(chosen), len(rows), job.readout.n_classes)
                self._logits(runner, part, tree, logits.__setitem__)
                answers.append(logits.argmax(-1))
            same.append((answers[0] == answers[1]).flatten())
        return float(torch.cat(same).double().mean())


def _rows(batch: Batch, rows: Any) -> Batch:
    """Some rows of a batch."""
    return {name: values[rows] for name, values in batch.items()}
