"""Sweeps: the model without each of many sets of components, on the same examples.

``engine="tree"`` shares what sets have in common (`mechcore.ablation.tree`); ``"reference"`` runs
the whole model once per set, through hooks. Both give the same logits up to rounding, and the tree
makes sure of it on a few examples before it starts.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pandas as pd
import torch
from torch import Tensor

from mechcore import progress
from mechcore.ablation.effects import (
    Ablations,
    Answers,
    ComponentSet,
    SetLike,
    ablation_table,
    as_sets,
)
from mechcore.ablation.tree import Node, TreeRunner, Work, grow
from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError, MechcoreError, MechcoreWarning
from mechcore.evaluate import (
    MAX_ROWS,
    Evaluation,
    evaluate,
    is_correct,
    kl,
    margins,
    subsets_of,
    warn_under_chance,
)
from mechcore.interventions import Fills, Mode, masked
from mechcore.means import MeanActivations, as_batches
from mechcore.models.running import Batch, forward, is_causal, last_real_position, model_inputs
from mechcore.models.stack import Linear, Stack
from mechcore.models.stack_of import stack_of
from mechcore.readout import Readout
from mechcore.state import StateFile, encoded_inputs, input_facts
from mechcore.tasks.encoding import EncodedExamples

Engine: TypeAlias = Literal["auto", "tree", "reference"]
Precision: TypeAlias = Literal["float32", "bfloat16"]

MAX_TOKENS = {"cpu": 4096, "cuda": 131_072}
"""Most tokens in one call of a layer by device, examples times masks times positions."""

SHARE_OF_RESTARTS = 0.02
"""How much of its work a sweep may spend on beginning again for another group of sets."""

SECONDS_BETWEEN_SAVES = 30.0
SAMPLE = 64
"""Examples, and at most as many sets, on which precisions are compared."""

_READ = ("input_ids", "attention_mask", "token_type_ids")
"""What models read of a batch."""

_PENDING = 2**24
"""Logits kept before they are reduced to answers."""


def sweep(
    model: Any,
    sets: Mapping[str, SetLike] | Iterable[SetLike],
    data: EncodedExamples | Iterable[Batch],
    means: MeanActivations | None = None,
    *,
    against: str | None = None,
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    **options: Any,
) -> pd.DataFrame:
    """Ablate every set alone from the full model, and compare with it on the same examples.

    Args:
        model: any TransformerLens model.
        sets: what to ablate: lists of component names, masks of zeros and ones, or a dict of
            these by name; see `mechcore.ablation.sets` for ready ones.
        data: labelled examples, or dicts of tokenizer outputs with ``labels``, see
            `mechcore.evaluate`.
        means: the model's mean activations; not needed for ``mode="zero"``.
        against: name of the set that drops are measured from, in place of the full model: that
            of a subnetwork, with the sets around it.
        n_resamples: paired bootstrap resamples over examples.
        level: of the intervals.
        seed: of the resamples.
        options: see `ablate`, whose result keeps the answers example by example.

    Returns:
        One row per set and subset of the data: set, kind, size, data, role, subset, n, accuracy,
        accuracy_drop and its interval (shares), margin, margin_drop and its interval (nats), kl
        (nats, full model to ablated one).

    Raises:
        InputError: a set is unreadable, out of range or given twice, labels cannot be matched,
            or the engine cannot run the model.

    >>> sweep(model, [["L0.H1"], ["L0.H1", "L2.MLP"]], data, means)  # doctest: +SKIP
    """
    found = ablate(model, sets, data, means, **options)
    if not found.without:
        raise InputError("sweep: no set; expected at least one set of components")
    return ablation_table(found, against=against, n_resamples=n_resamples, level=level, seed=seed)


def ablate(
    model: Any,
    sets: Mapping[str, SetLike] | Iterable[SetLike],
    data: EncodedExamples | Iterable[Batch],
    means: MeanActivations | None = None,
    *,
    mode: Mode = "mean",
    engine: Engine = "auto",
    precision: Precision = "float32",
    role: Literal["id", "ood"] = "id",
    class_labels: Sequence[str] | None = None,
    batch_size: int = 64,
    max_tokens: int | None = None,
    state: str | Path | None = None,
    seed: int = 0,
) -> Ablations:
    """The answers of the model without each set, example by example; see `sweep`.

    Args:
        model: any TransformerLens model.
        sets: what to ablate, see `sweep`.
        data: labelled examples, see `sweep`.
        means: the model's mean activations; not needed for ``mode="zero"``.
        mode: what replaces the outputs, see `mechcore.masked`.
        engine: ``"tree"`` shares common prefixes of sets; ``"reference"`` runs any model, one
            masked forward per set; ``"auto"`` takes the tree, and where it cannot run the model
            the reference, with a warning.
        precision: ``"bfloat16"`` computes the tree's matrix products in it, and measures on a
            sample how many answers stay those of float32.
        role: whether the data is ``"id"`` or ``"ood"``; in-domain accuracy under chance warns.
        class_labels: names of a classifier's classes, in place of its ``id2label``.
        batch_size: examples per batch, of similar length, for encoded examples.
        max_tokens: most tokens in one call of a layer; by default what suits the device.
        state: file that keeps what is finished; an interrupted sweep goes on from it. It stays
            when all is finished.
        seed: of the draws of ``mode="resample"`` and of the sample for ``precision``.

    Raises:
        InputError: see `sweep`; or ``state`` is that of another sweep.
        MismatchError: the means belong to another model.
    """
    if engine not in ("auto", "tree", "reference"):
        raise InputError(f"sweep: engine is {engine!r}; expected 'auto', 'tree' or 'reference'")
    if precision not in ("float32", "bfloat16"):
        raise InputError(f"sweep: precision is {precision!r}; expected 'float32' or 'bfloat16'")
    stack = None if engine == "reference" else _stack(model, fall_back=engine == "auto")
    if stack is None and precision != "float32":
        raise InputError("sweep: engine 'reference' has the model's own precision only")
    shape, listed = ModelShape.of(model), as_sets(sets)
    if not isinstance(data, EncodedExamples):
        data = list(as_batches(data))
        if not data:
            raise InputError("sweep: no batch; expected at least one")
    whole = Mask.full(shape)
    values = [each.mask(shape).values for each in listed]
    run = _Run(
        model,
        torch.stack([whole.values, *values]),
        data,
        means,
        mode,
        seed,
        class_labels,
        batch_size,
    )
    facts: dict[str, Any] = {}
    if state is not None:
        facts = input_facts(model, run.inputs(), means) | {
            "sets": [[str(c) for c in each.components] for each in listed],
            "labels": hashlib.sha256(run.correct_classes.numpy().tobytes()).hexdigest(),
            "mode": mode,
            "seed": seed,
            "engine": "reference" if stack is None else "tree",
            "precision": precision,
            "batch_size": batch_size,
        }
    kept = _Kept(len(listed), run, StateFile(state, "sweep", facts))
    parts = _Reference(run) if stack is None else _Tree(run, stack, precision, max_tokens)
    agreement = parts.agreement() if precision != "float32" else None
    name = data.examples.name if isinstance(data, EncodedExamples) else "data"
    _work(parts, kept, f"ablate on {name}")
    full = Evaluation(kept.full, run.correct_classes, subsets_of(data), run.readout.mapping)
    if role == "id":
        warn_under_chance(full)
    return Ablations(full, kept.answers(listed), name, role, agreement)


def _stack(model: Any, *, fall_back: bool) -> Stack | None:
    try:
        return stack_of(model)
    except InputError as error:
        if not fall_back:
            raise
        warnings.warn(
            f"{error}; one forward per set runs instead, which takes several times as long",
            MechcoreWarning,
            stacklevel=3,
        )
        return None


@dataclass(eq=False)
class _Run:
    """What a sweep works on.

    Attributes:
        masks: [mask, layer, component]; the full model's first, then one for each set.
    """

    model: Any
    masks: Tensor
    data: EncodedExamples | list[Batch]
    means: MeanActivations | None
    mode: Mode
    seed: int
    class_labels: Sequence[str] | None
    batch_size: int

    def __post_init__(self) -> None:
        self.readout = Readout.of(self.model, self.data, self.class_labels)
        self.correct_classes = self.readout.correct_classes(self.data)
        self.shape = ModelShape.of(self.model)

    def batches(self) -> list[Batch]:
        """All batches, each with the rows of its examples as ``index``."""
        if isinstance(self.data, EncodedExamples):
            return list(self.data.batches(self.batch_size))
        found: list[Batch] = []
        start = 0
        for batch in self.data:
            n = len(batch["input_ids"])
            inputs = {name: batch[name] for name in _READ if batch.get(name) is not None}
            found.append({**inputs, "index": torch.arange(start, start + n)})
            start += n
        return found

    def inputs(self) -> Any:
        """What the model reads, as JSON values."""
        if isinstance(self.data, EncodedExamples):
            return encoded_inputs(self.data)
        return [
            {name: torch.as_tensor(batch[name]).tolist() for name in _READ if name in batch}
            for batch in self.batches()
        ]


class _Kept:
    """Answers so far, [set, example], and which parts of the work they are of."""

    def __init__(self, n_sets: int, run: _Run, store: StateFile) -> None:
        n_examples = len(run.correct_classes)
        self.full = torch.zeros(n_examples, run.readout.n_classes)
        self.correct = torch.zeros(n_sets, n_examples, dtype=torch.bool)
        self.margin = torch.zeros(n_sets, n_examples)
        self.kl = torch.zeros(n_sets, n_examples)
        self.store = store
        self.done: set[tuple[int, int]] = set()
        self.saved_at = time.monotonic()
        stored = store.restore()
        if stored is not None:
            tensors, notes = stored
            try:
                for name in ("full", "correct", "margin", "kl"):
                    getattr(self, name).copy_(tensors[name])
            except (KeyError, RuntimeError) as error:
                raise store.unreadable(error) from error
            self.done = {(part, batch) for part, batch in notes["done"]}

    def save(self) -> None:
        names = ("full", "correct", "margin", "kl")
        self.store.save({name: getattr(self, name) for name in names}, {"done": sorted(self.done)})
        self.saved_at = time.monotonic()

    def answers(self, sets: Sequence[ComponentSet]) -> dict[ComponentSet, Answers]:
        rows = (self.correct.numpy(), self.margin.numpy(), self.kl.numpy())
        return {each: Answers(*(row[i] for row in rows)) for i, each in enumerate(sets)}


def _work(parts: _Tree | _Reference, kept: _Kept, title: str) -> None:
    """Do what is not done; what was done is saved when it is interrupted."""
    tasks = parts.tasks()
    total = sum(cost for part, batch, cost in tasks if (part, batch) not in kept.done)
    try:
        with progress.work(title, total) as advance:
            for part, batch, cost in tasks:
                parts.begin(part, batch)
                if (part, batch) in kept.done:
                    continue
                parts.run(part, batch, kept)
                kept.done.add((part, batch))
                if time.monotonic() - kept.saved_at > SECONDS_BETWEEN_SAVES:
                    kept.save()
                advance(cost)
    finally:
        if kept.done:
            kept.save()


class _Reference:
    """One masked forward of the whole model per set and batch."""

    def __init__(self, run: _Run) -> None:
        self.run_ = run
        size = max(1, MAX_ROWS // run.batch_size)
        self.parts = (
            list(torch.arange(len(run.masks) - 1).split(size)) if len(run.masks) > 1 else []
        )

    def tasks(self) -> list[tuple[int, int, float]]:
        return [(-1, 0, 1.0), *((i, 0, float(len(part))) for i, part in enumerate(self.parts))]

    def begin(self, part: int, batch: int) -> None:
        """Nothing is drawn ahead."""

    def agreement(self) -> float:
        """Everything is in the model's own precision."""
        return 1.0

    def run(self, part: int, batch: int, kept: _Kept) -> None:
        run = self.run_
        options: dict[str, Any] = {
            "class_labels": run.class_labels,
            "batch_size": run.batch_size,
            "in_domain": False,
        }
        if part < 0:
            kept.full.copy_(evaluate(run.model, run.data, **options).logits)
            return
        numbers = self.parts[part]
        masks = Mask(run.masks[1 + numbers], has_mlps=run.shape.has_mlps)
        options |= {"means": run.means, "mode": run.mode, "seed": run.seed}
        found = evaluate(run.model, run.data, mask=masks, **options)
        for number, each in zip(numbers.tolist(), found, strict=True):
            kept.correct[number] = is_correct(each.logits, run.correct_classes)
            kept.margin[number] = margins(each.logits, run.correct_classes)
            kept.kl[number] = kl(kept.full, each.logits)


class _Tree:
    """The prefix tree, in groups of sets that are finished one after another."""

    def __init__(
        self, run: _Run, stack: Stack, precision: Precision, max_tokens: int | None
    ) -> None:
        self.run_ = run
        self.batches = run.batches()
        self.stack = _with_answers(stack, run.readout)
        self.exact = self.stack
        if precision == "bfloat16":
            self.stack = self.stack.to(torch.bfloat16)
        whole = grow(run.masks, run.shape)
        self.max_tokens = max_tokens or MAX_TOKENS.get(_device(run.model), MAX_TOKENS["cuda"])
        restarts = SHARE_OF_RESTARTS * Work.of(whole, run.shape).layers(self.stack)
        n_groups = max(1, int(restarts / len(self.stack.layers)))
        order = [mask for mask in _leaves(whole) if mask != 0]
        size = max(1, -(-len(order) // n_groups))
        starts = range(0, max(1, len(order)), size)
        self.groups = [torch.tensor([0, *order[start : start + size]]) for start in starts]
        self.trees = [grow(run.masks[group], run.shape) for group in self.groups]
        self.runner = self._new_runner(self.stack)
        self._check()

    def _new_runner(self, stack: Stack) -> TreeRunner:
        run = self.run_
        fills = Fills(run.model, run.means, run.mode, run.seed)
        return TreeRunner(stack, run.shape, fills, self.max_tokens)

    def tasks(self) -> list[tuple[int, int, float]]:
        costs = [Work.of(tree, self.run_.shape).layers(self.stack) + 1 for tree in self.trees]
        return [
            (group, number, cost * batch["input_ids"].numel())
            for group, cost in enumerate(costs)
            for number, batch in enumerate(self.batches)
        ]

    def begin(self, part: int, batch: int) -> None:
        if batch == 0:
            self.runner = self._new_runner(self.stack)
        self.runner.begin(model_inputs(self.run_.model, self.batches[batch]))

    def run(self, part: int, batch: int, kept: _Kept) -> None:
        index = self.batches[batch]["index"]
        correct = self.run_.correct_classes[index]
        full: Tensor | None = None
        for numbers, logits in self._logits(self.runner, self.batches[batch], self.trees[part]):
            sets = self.groups[part][numbers] - 1
            if full is None:  # full masks come first
                full = logits[0]
                kept.full[index] = full
                sets, logits = sets[1:], logits[1:]
            place = (sets[:, None], index)
            kept.correct[place] = is_correct(logits, correct)
            kept.margin[place] = margins(logits, correct).float()
            kept.kl[place] = kl(full, logits).float()

    def _logits(
        self, runner: TreeRunner, batch: Batch, tree: Node
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Numbers of masks and their logits [mask, batch, cls], the full mask's first of all."""
        inputs = model_inputs(self.run_.model, batch)
        pending: list[tuple[list[int], Tensor]] = []
        stack, found = runner.stack, []

        def emit(masks: Sequence[int], x: Tensor) -> None:
            pending.append((list(masks), stack.out(stack.head(x)).float().cpu()))
            if sum(len(m) * logits.numel() for m, logits in pending) > _PENDING:
                found.append(_flushed(pending))

        runner.run(inputs, _read_positions(self.run_.model, inputs), tree, emit)
        if pending:
            found.append(_flushed(pending))
        return iter(found)

    # -- checks ---------------------------------------------------------------------------------

    def _check(self) -> None:
        """Make sure that the engine gives the model's logits, whole and without one set."""
        run = self.run_
        batch = _rows(self.batches[len(self.batches) // 2], slice(4))
        values = run.masks[[0, -1]]
        runner = self._new_runner(self.exact)
        runner.begin(model_inputs(run.model, batch))
        got = torch.empty(2, len(batch["index"]), run.readout.n_classes)
        for numbers, logits in self._logits(runner, batch, grow(values, run.shape)):
            got[numbers] = logits
        mask = Mask(values[1], has_mlps=run.shape.has_mlps)
        inputs = model_inputs(run.model, batch)
        with torch.no_grad():
            wanted = [forward(run.model, batch)]
            with masked(run.model, mask, run.means, run.mode, seed=run.seed) as masked_model:
                wanted.append(masked_model(batch))
        reference = run.readout.read(torch.stack(wanted), inputs).float().cpu()
        scale = max(1.0, float(reference.abs().max()))
        difference = float((got - reference).abs().max()) / scale
        tolerance = 5e-2 if wanted[0].element_size() == 2 else 1e-3
        if not difference <= tolerance:
            raise MechcoreError(
                f"prefix-sharing engine: its logits differ from the model's by {difference:.2g} "
                "of their size; the model does not compute what its weights say (hooks, processed "
                "weights, an unusual setting): use engine='reference'"
            )

    def agreement(self) -> float:
        """Share of answers in this precision that are those of float32, on a sample."""
        run, generator = self.run_, torch.Generator().manual_seed(self.run_.seed)
        chosen = torch.randperm(len(run.masks), generator=generator)[:SAMPLE]
        tree = grow(run.masks[chosen], run.shape)
        n = -(-SAMPLE // len(self.batches))
        same: list[Tensor] = []
        for batch in self.batches[:: -(-len(self.batches) // SAMPLE)]:
            rows = torch.randperm(len(batch["index"]), generator=generator)[:n]
            part, answers = _rows(batch, rows), []
            for stack in (self.exact, self.stack):
                runner = self._new_runner(stack)
                runner.begin(model_inputs(run.model, part))
                best = torch.empty(len(chosen), len(rows), dtype=torch.long)
                for numbers, logits in self._logits(runner, part, tree):
                    best[numbers] = logits.argmax(-1)
                answers.append(best)
            same.append((answers[0] == answers[1]).flatten())
        return float(torch.cat(same).double().mean())


def _rows(batch: Batch, rows: Any) -> Batch:
    """Some rows of a batch."""
    return {name: torch.as_tensor(values)[rows] for name, values in batch.items()}


def _flushed(pending: list[tuple[list[int], Tensor]]) -> tuple[Tensor, Tensor]:
    numbers = [number for masks, _ in pending for number in masks]
    logits = [each for masks, each in pending for _ in masks]
    pending.clear()
    return torch.tensor(numbers), torch.stack(logits)


def _leaves(tree: Node) -> list[int]:
    """Numbers of masks in the order in which they are finished."""
    if not tree.children:
        return list(tree.masks)
    return [mask for _, child in tree.children for mask in _leaves(child)]


def _with_answers(stack: Stack, readout: Readout) -> Stack:
    """The stack with the outputs that are classes of the answer only."""
    if readout.tokens is None:
        return stack
    tokens = readout.tokens.to(stack.out.weight.device)
    bias = None if stack.out.bias is None else stack.out.bias[tokens]
    return stack.answering(Linear(stack.out.weight[tokens], bias))


def _read_positions(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """The position that the head reads, [batch]."""
    if is_causal(model):
        return last_real_position(inputs["attention_mask"])
    return inputs["input_ids"].new_zeros(len(inputs["input_ids"]))


def _device(model: Any) -> str:
    return next(iter(model.parameters())).device.type
