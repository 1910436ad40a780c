"""Fitting one rung: the same examples, the same loss and the same guard for all of them.

The loss is the cross-entropy of the correct classes on the repair examples, labels weighed alike,
plus the guard, KL from the full model on in-domain texts, plus a rung's own penalty. Everything
else that could be tuned (penalty, learning rate, number of steps, components to remove) is chosen
inside the repair examples, by the loss and the guard on folds of them: whole subsets where there
are enough, so that a choice is one that carries over to other kinds. To change nothing is always
among the choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechcore.data.encoding import EncodedExamples
from mechcore.evaluation.recalibration import folds_of
from mechcore.repair.model import RepairableModel, Weights
from mechcore.repair.rungs import RUNGS, FewHeads, Fitted, LastLayer, Remove, Rung

FOLDS = 2
"""Of the repair examples, to choose by."""
CANDIDATES, MOST_REMOVED = 8, 4
"""Components that `Remove` looks at, and that it removes at most."""


@dataclass(frozen=True, eq=False)
class Examples:
    """What a repair learns from.

    Attributes:
        data: repair examples, encoded.
        correct: which classes are correct for each.
        label: number of each one's label.
        subset: number of each one's subset.
        guard: in-domain texts.
        told: the full model's logits of these.
        rows: which of all repair examples these are.
    """

    data: EncodedExamples
    correct: Bool[Tensor, "example cls"]
    label: Int[np.ndarray, " example"]
    subset: Int[np.ndarray, " example"]
    guard: EncodedExamples
    told: Float[Tensor, "guard cls"]
    rows: Int[np.ndarray, " example"]

    def part(self, rows: Sequence[int] | np.ndarray) -> Examples:
        """These repair examples alone."""
        index = [int(i) for i in rows]
        return replace(
            self,
            data=self.data.part(index),
            correct=self.correct[index],
            label=self.label[index],
            subset=self.subset[index],
            rows=self.rows[index],
        )

    @property
    def kinds(self) -> Bool[Tensor, "label cls"]:
        """The correct classes of each label."""
        return torch.stack([self.correct[self.label == i][0] for i in np.unique(self.label)])


@dataclass(frozen=True)
class Settings:
    """How rungs are fitted.

    Attributes:
        steps: of training, at most.
        batch_size: repair examples in a step, and guard texts beside them.
        guard: weight of the guard.
        seed: of all that is random.
    """

    steps: int = 60
    batch_size: int = 16
    guard: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Choice:
    """What was chosen inside the repair examples; ``loss`` and ``before`` are on held-out folds."""

    rate: float = 0.0
    penalty: float = 0.0
    steps: int = 0
    loss: float = float("nan")
    before: float = float("nan")
    note: str = ""


@dataclass(eq=False)
class Fit:
    """A fitted rung: its weights, and what was chosen."""

    weights: Weights
    choice: Choice
    fitted: Fitted = field(default_factory=dict)


def subset_folds(
    subset: Int[np.ndarray, " example"],
    label: Int[np.ndarray, " example"],
    n_folds: int,
    seed: int,
) -> Int[np.ndarray, " example"] | None:
    """Folds of whole subsets, without each of which every label is left; None if there are none.

    Subsets are dealt out in turn, those of the same labels after one another, in a random order.
    """
    labels_of = {i: tuple(np.unique(label[subset == i])) for i in np.unique(subset).tolist()}
    counts = [sum(i in labels for labels in labels_of.values()) for i in np.unique(label)]
    n_folds = min(n_folds, *counts)
    if n_folds < 2:
        return None
    generator, fold_of = np.random.default_rng(seed), dict[int, int]()
    for signature in sorted(set(labels_of.values())):
        alike = [i for i, labels in labels_of.items() if labels == signature]
        for i in generator.permutation(alike).tolist():
            fold_of[i] = len(fold_of) % n_folds
    folds, every = np.array([fold_of[i] for i in subset.tolist()]), set(label.tolist())
    left = all(set(label[folds != fold].tolist()) == every for fold in range(n_folds))
    return folds if left else None


def inner_folds(examples: Examples, seed: int) -> np.ndarray:
    """Folds of the repair examples to choose by: whole subsets where there are enough."""
    folds = subset_folds(examples.subset, examples.label, FOLDS, seed)
    return folds_of(examples.label, seed, n_folds=FOLDS) if folds is None else folds


class Fitting:
    """Fits rungs to repair examples."""

    def __init__(self, model: RepairableModel, examples: Examples, settings: Settings) -> None:
        self.model, self.examples, self.settings = model, examples, settings
        self._done: dict[str, Fit] = {}
        self._features: dict[str, list[Tensor]] = {}

    def fit(self, name: str) -> Fit:
        """The rung of that name, with all that there is to choose chosen."""
        if name not in self._done:
            kind = RUNGS[name]
            base = self.fit(kind.after).weights if kind.after else {}
            rung = kind(name, self.model, base, self.examples.kinds, self.settings.seed)
            if not rung.start() and not isinstance(rung, FewHeads):
                self._done[name] = Fit(base, Choice())
            elif isinstance(rung, Remove):
                self._done[name] = self._remove(rung)
            else:
                self._done[name] = self._chosen(rung)
        return self._done[name]

    def _chosen(self, rung: Rung) -> Fit:
        """By folds: the penalty, the learning rate and the number of steps; then on all."""
        examples, settings = self.examples, self.settings
        if isinstance(rung, FewHeads):
            rung.choose(self.slopes(examples))
        rates = (0.0,) if rung.on_features else rung.rates
        grid = list(product(rates, rung.penalties))
        folds, losses = inner_folds(examples, settings.seed), dict[Any, list[float]]()
        for fold in np.unique(folds):
            outside, inside = (
                examples.part(np.flatnonzero(side)) for side in (folds == fold, folds != fold)
            )
            for rate, penalty in grid:
                for steps, fitted in self.trained(rung, inside, rate, penalty).items():
                    loss = self._loss_of(rung, fitted, outside)
                    losses.setdefault((rate, penalty, steps), []).append(loss)
        means = {key: float(np.mean(values)) for key, values in losses.items()}
        best = min(means, key=lambda key: means[key])
        before = next(loss for (_, _, steps), loss in means.items() if steps == 0)
        rate, penalty, steps = best
        fitted = self.trained(rung, examples, rate, penalty, steps)[steps]
        choice = Choice(rate, penalty, steps, means[best], before, rung.note(fitted))
        with torch.no_grad():
            weights = {n: w.detach() for n, w in rung.weights(fitted).items()}
        return Fit({**rung.base, **weights}, choice, fitted)

    def trained(
        self, rung: Rung, examples: Examples, rate: float, penalty: float, last: int | None = None
    ) -> dict[int, Fitted]:
        """The numbers by the number of steps that they were trained for; 0 is the start."""
        if rung.on_features:
            return self._solved(rung, examples, penalty, last)
        steps = self.settings.steps if last is None else last
        stops = {0, steps} if last is not None else {0, steps // 4, steps // 2, steps}
        fitted = {n: v.clone().requires_grad_() for n, v in rung.start().items()}
        snapshots = {0: {n: v.detach().clone() for n, v in fitted.items()}}
        optimiser = torch.optim.AdamW(list(fitted.values()), lr=rate, weight_decay=0.0)
        generator = np.random.default_rng(self.settings.seed)
        size = self.settings.batch_size
        rows, texts = (
            _order(len(x), size, steps, generator) for x in (examples.label, examples.told)
        )
        for step in range(1, steps + 1):
            weights = {**rung.base, **rung.weights(fitted)}
            loss = self._loss(weights, examples, rows[step - 1], texts[step - 1])
            loss = loss + penalty * rung.penalty(fitted)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(fitted.values()), 1.0)
            optimiser.step()
            rung.clamp(fitted)
            if step in stops:
                snapshots[step] = {n: v.detach().clone() for n, v in fitted.items()}
        return snapshots

    def _solved(
        self, rung: Rung, examples: Examples, penalty: float, last: int | None
    ) -> dict[int, Fitted]:
        """The last layer alone: a smooth problem of few numbers, solved to its end."""
        start = rung.start()
        if last == 0:
            return {0: start}
        fitted = {n: v.clone().requires_grad_() for n, v in start.items()}
        optimiser = torch.optim.LBFGS(
            list(fitted.values()), max_iter=200, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = self._objective(*self._from_features(rung, fitted, examples), examples)
            loss = loss + penalty * rung.penalty(fitted)
            loss.backward()
            return loss

        optimiser.step(closure)
        return {0: start, 1: {n: v.detach() for n, v in fitted.items()}}

    def _from_features(
        self, rung: Rung, fitted: Mapping[str, Tensor], examples: Examples
    ) -> tuple[Tensor, Tensor]:
        """Logits of repair examples and guard, of what the last layer reads."""
        if rung.name not in self._features:
            data = (self.examples.data, self.examples.guard)
            self._features[rung.name] = [self.model.features(d, rung.base) for d in data]
        repair, guard = (x.to(self.model.device) for x in self._features[rung.name])
        if isinstance(rung, LastLayer):
            rung.spread = torch.cat([repair, guard]).std(0).clamp_min(1e-9)
        new = rung.weights(fitted)
        matrix, shift = (new.get(n, rung.own(n)) for n in self.model.head_weights)
        return repair[examples.rows] @ matrix.T + shift, guard @ matrix.T + shift

    # -- the loss -------------------------------------------------------------------------------

    def _objective(
        self,
        repair: Tensor,
        guard: Tensor,
        examples: Examples,
        rows: Any = slice(None),
        texts: Any = slice(None),
    ) -> Tensor:
        """Of logits: balanced cross-entropy, and the guard."""
        label = examples.label
        counts = np.bincount(label)[label] * len(np.unique(label))
        weight = torch.as_tensor(len(label) / counts, dtype=repair.dtype)[rows].to(repair.device)
        correct = examples.correct[rows].to(repair.device)
        right = repair.log_softmax(-1).masked_fill(~correct, -torch.inf).logsumexp(-1)
        wanted = examples.told[texts].to(guard).log_softmax(-1)
        kl = (wanted.exp() * (wanted - guard.log_softmax(-1))).sum(-1)
        return -(weight * right).mean() + self.settings.guard * kl.mean()

    def _loss(
        self, weights: Weights, examples: Examples, rows: list[int], texts: list[int]
    ) -> Tensor:
        repair = self.model.logits(examples.data.rows(rows), weights)
        guard = self.model.logits(examples.guard.rows(texts), weights)
        return self._objective(repair, guard, examples, rows, texts)

    @torch.no_grad()
    def _loss_of(self, rung: Rung, fitted: Mapping[str, Tensor], examples: Examples) -> float:
        """On all of some examples, with the guard."""
        if rung.on_features:
            logits = self._from_features(rung, fitted, examples)
            return float(self._objective(*logits, examples))
        return self.loss({**rung.base, **rung.weights(fitted)}, examples)

    @torch.no_grad()
    def loss(self, weights: Weights, examples: Examples) -> float:
        """On all of some examples, with the guard."""
        repair, guard = (
            logits_of(self.model, d, weights).to(self.model.device)
            for d in (examples.data, examples.guard)
        )
        return float(self._objective(repair, guard, examples))

    def slopes(self, examples: Examples) -> Float[Tensor, "layer component"]:
        """The slope of the loss in every gate, at 1."""
        gates = torch.ones(
            self.model.shape.n_layers, self.model.shape.columns, device=self.model.device
        ).requires_grad_()
        n = len(examples.label)
        for rows in np.array_split(np.arange(n), max(1, n // self.settings.batch_size)):
            texts = (rows % len(examples.told)).tolist()
            loss = self._loss(self.model.gated(gates), examples, rows.tolist(), texts)
            (len(rows) / n * loss).backward()
        assert gates.grad is not None
        return gates.grad

    def _remove(self, rung: Remove) -> Fit:
        """Of the components that the loss falls without at first order, one after another."""
        examples, shape = self.examples, self.model.shape
        slopes = self.slopes(examples)
        candidates = sorted(shape.components, key=lambda c: -float(slopes[shape.index(c)]))
        folds = inner_folds(examples, self.settings.seed)
        parts = [examples.part(np.flatnonzero(folds == fold)) for fold in np.unique(folds)]
        gates = rung.start()["gates"]
        losses = [np.array([self.loss({}, part) for part in parts])]
        for _ in range(MOST_REMOVED):
            tried = {}
            for component in candidates[:CANDIDATES]:
                if gates[shape.index(component)] == 1:
                    without = gates.clone()
                    without[shape.index(component)] = 0
                    weights = self.model.gated(without)
                    tried[component] = np.array([self.loss(weights, part) for part in parts])
            # One that helps some kinds and hurts others is not removed.
            helping = {c: of for c, of in tried.items() if (of < losses[-1]).all()}
            if not helping:
                break
            best = min(helping, key=lambda c: helping[c].mean())
            gates[shape.index(best)] = 0
            losses.append(tried[best])
        after, before = (float(of.mean()) for of in (losses[-1], losses[0]))
        note, n = rung.note({"gates": gates}), len(losses) - 1
        return Fit(self.model.gated(gates), Choice(0.0, 0.0, n, after, before, note))


def _order(n: int, size: int, steps: int, generator: np.random.Generator) -> list[list[int]]:
    """Rows of each step: all in a random order, again and again."""
    needed = -(-size * steps // n)
    order = np.concatenate([generator.permutation(n) for _ in range(max(1, needed))])
    return [order[i * size : (i + 1) * size].tolist() for i in range(steps)]


@torch.no_grad()
def logits_of(
    model: RepairableModel, data: EncodedExamples, weights: Mapping[str, Tensor]
) -> Float[Tensor, "example cls"]:
    """Logits of all examples, in order, on the processor."""
    rows, index = [], []
    for batch in data.batches(64):
        rows.append(model.logits(batch, weights).cpu())
        index.append(batch["index"])
    return torch.cat(rows)[torch.cat(index).argsort()]
