"""Fits rungs by cross-entropy on repair examples, KL on in-domain texts, and a rung's penalty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechcore.data.encoding import EncodedExamples
from mechcore.evaluation.recalibration import folds_of
from mechcore.repair.model import RepairableModel, Weights
from mechcore.repair.rungs import RUNGS, Fitted, Remove, Rung

FOLDS = 2  # of repair examples, to choose settings
CANDIDATES, MOST_REMOVED = 8, 4  # components, in `Remove`


@dataclass(frozen=True, eq=False)
class Examples:
    """What a repair learns from: repair examples, and in-domain texts as the guard.

    ``label`` and ``subset`` are numbers, ``guard_logits`` the full model's, and states the
    inputs of its last layer.
    """

    data: EncodedExamples
    correct: Bool[Tensor, "example cls"]
    label: Int[np.ndarray, " example"]
    subset: Int[np.ndarray, " example"]
    guard: EncodedExamples
    guard_logits: Float[Tensor, "guard cls"]
    states: Float[Tensor, "example d"]
    guard_states: Float[Tensor, "guard d"]

    def part(self, rows: Int[np.ndarray, " part"]) -> Examples:
        """Only these repair examples."""
        index = rows.tolist()
        names = ("correct", "label", "subset", "states")
        parts: dict[str, Any] = {name: getattr(self, name)[index] for name in names}
        return replace(self, data=self.data.part(index), **parts)

    @cached_property
    def weight(self) -> Float[Tensor, " example"]:
        """Weight of each example so that all labels weigh the same; 1 on average."""
        counts = np.bincount(self.label)[self.label] * len(np.unique(self.label))
        return torch.as_tensor(len(self.label) / counts, dtype=torch.float32)

    @property
    def kinds(self) -> Bool[Tensor, "label cls"]:
        """The correct classes of each label."""
        return torch.stack([self.correct[self.label == i][0] for i in np.unique(self.label)])


@dataclass(frozen=True)
class Settings:
    """How rungs are fitted: most training steps, repair examples per step, weight of the guard."""

    steps: int = 60
    batch_size: int = 16
    guard: float = 1.0
    seed: int = 0
    diagnose: bool = True
    """Whether gates are also trained for all steps, on true and on permuted labels."""


@dataclass(frozen=True)
class Choice:
    """Settings chosen within the repair examples; see `mechcore.repair.outcome.REPAIR_CHOICES`."""

    rate: float = 0.0
    penalty: float = 0.0
    steps: int = 0
    loss: float = float("nan")
    before: float = float("nan")
    penalty_random: float = float("nan")
    note: str = ""


@dataclass(eq=False)
class Fit:
    """A fitted rung; ``body`` names the rung whose weights below the last layer it has, if any."""

    weights: Weights
    choice: Choice
    body: str = ""
    fitted: Fitted = field(default_factory=dict)


def subset_folds(
    subset: Int[np.ndarray, " example"],
    label: Int[np.ndarray, " example"],
    n_folds: int,
    seed: int,
) -> Int[np.ndarray, " example"] | None:
    """Folds of whole subsets, with every label outside each fold; None if there are none."""
    labels = np.unique(label)
    n_folds = min(n_folds, *(len(np.unique(subset[label == i])) for i in labels))
    folds = folds_of(label, seed, 1 + subset, n_folds) if n_folds > 1 else np.zeros(len(label))
    left = all(np.isin(labels, label[folds != fold]).all() for fold in np.unique(folds))
    return folds if left else None


class Fitting:
    """Fits rungs to repair examples."""

    def __init__(self, model: RepairableModel, examples: Examples, settings: Settings) -> None:
        self.model, self.examples, self.settings = model, examples, settings
        self._done: dict[str, Fit] = {}

    def fit(self, name: str, *, by_chance: bool = True) -> Fit:
        """Fit the rung of that name, with the best settings.

        ``by_chance`` also finds the penalty that random folds of examples would choose.
        """
        if name not in self._done:
            kind, examples = RUNGS[name], self.examples
            base = self.fit(kind.after) if kind.after else Fit({}, Choice())
            if base.body:
                states, guard_states = self._states(base.weights)
                examples = replace(examples, states=states, guard_states=guard_states)
            rung = kind(name, self.model, base.weights, examples.kinds, self.settings.seed)
            rung.prepare(torch.cat([examples.states, examples.guard_states]), self.slopes)
            if not rung.start():
                self._done[name] = base
            elif isinstance(rung, Remove):
                self._done[name] = self._removed(rung)
            else:
                self._done[name] = self._chosen(rung, examples, base, by_chance)
        return self._done[name]

    def _chosen(self, rung: Rung, examples: Examples, base: Fit, by_chance: bool) -> Fit:
        losses = self._losses(rung, examples, self._folds())
        rate, penalty, steps = best = min(losses, key=lambda key: losses[key])
        training = self.trained(rung, examples, rate, penalty, steps)
        fitted = next(training)[1] if steps else rung.start()
        other = float("nan")
        if by_chance and rung.on_features and len(rung.penalties) > 1:
            random = self._losses(rung, examples, self._folds(by_subset=False))
            other = min(random, key=lambda key: random[key])[1]
        before, note = losses[(0.0, 0.0, 0)], rung.note(fitted)
        choice = Choice(rate, penalty, steps, losses[best], before, other, note)
        if not steps:
            return replace(base, choice=choice, fitted=fitted)
        with torch.no_grad():
            weights = {n: w.detach() for n, w in rung.weights(fitted).items()}
        body = base.body if rung.on_features else rung.name
        return Fit({**rung.base, **weights}, choice, body, fitted)

    def _folds(self, *, by_subset: bool = True) -> Int[np.ndarray, " example"]:
        label, seed = self.examples.label, self.settings.seed
        whole = subset_folds(self.examples.subset, label, FOLDS, seed) if by_subset else None
        return folds_of(label, seed, n_folds=FOLDS) if whole is None else whole

    def _losses(
        self, rung: Rung, examples: Examples, folds: Int[np.ndarray, " example"]
    ) -> dict[tuple[float, float, int], float]:
        """The mean loss over folds by learning rate, penalty and number of steps, 0 first.

        A training ends early once its loss rises from one stop to the next.
        """
        sides = ((folds == fold, folds != fold) for fold in np.unique(folds))
        parts = [[examples.part(np.flatnonzero(side)) for side in both] for both in sides]
        before = [float(self._loss_of_head(rung.base, outside)) for outside, _ in parts]
        losses = {(0.0, 0.0, 0): float(np.mean(before))}
        starts: list[Fitted | None] = [None] * len(parts)
        for point in product(rung.rates, rung.penalties):
            last = losses[0.0, 0.0, 0]
            trainings = [
                self.trained(rung, inside, *point, start=start)
                for (_, inside), start in zip(parts, starts, strict=True)
            ]
            for stop in zip(*trainings, strict=True):
                known = zip(parts, stop, strict=True)
                of = [self._loss_of(rung, fitted, outside) for (outside, _), (_, fitted) in known]
                loss = losses[(*point, stop[0][0])] = float(np.mean(of))
                starts = [fitted if rung.on_features else None for _, fitted in stop]
                if loss > last:
                    break
                last = loss
        return losses

    def trained(
        self,
        rung: Rung,
        examples: Examples,
        rate: float,
        penalty: float,
        last: int | None = None,
        start: Fitted | None = None,
    ) -> Iterator[tuple[int, Fitted]]:
        """Numbers of training steps, and the numbers fitted by then."""
        if rung.on_features:
            yield 1, self._solved(rung, examples, penalty, start or rung.start())
            return
        steps = self.settings.steps if last is None else last
        stops = {steps} if last is not None else {steps // 4, steps // 2, steps}
        fitted = {n: v.clone().requires_grad_() for n, v in rung.start().items()}
        optimiser = torch.optim.AdamW(list(fitted.values()), lr=rate, weight_decay=0.0)
        generator = np.random.default_rng(self.settings.seed)
        size = self.settings.batch_size
        rows = _order(range(len(examples.label)), size * steps, generator)
        alike = [b["index"].tolist() for b in examples.guard.batches(max(1, size // 2))]
        texts = _order(alike, steps, generator)
        for step in range(1, steps + 1):
            batch = rows[(step - 1) * size : step * size]
            weights = {**rung.base, **rung.weights(fitted)}
            loss = self._loss(weights, examples, batch, texts[step - 1])
            loss = loss + penalty * rung.penalty(fitted)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(fitted.values()), 1.0)
            optimiser.step()
            rung.clamp(fitted)
            if step in stops:
                yield step, {n: v.detach().clone() for n, v in fitted.items()}

    def _solved(self, rung: Rung, examples: Examples, penalty: float, start: Fitted) -> Fitted:
        """Fit only the last layer: a small, smooth problem, solved to convergence."""
        fitted = {n: v.clone().requires_grad_() for n, v in start.items()}
        optimiser = torch.optim.LBFGS(
            list(fitted.values()), 1, 200, None, 1e-5, 1e-7, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = self._loss_of_head({**rung.base, **rung.weights(fitted)}, examples)
            loss = loss + penalty * rung.penalty(fitted)
            loss.backward()
            return loss

        optimiser.step(closure)
        return {n: v.detach() for n, v in fitted.items()}

    def _loss_of_head(self, weights: Weights, examples: Examples) -> Tensor:
        """The loss if only the last layer has other weights."""
        known = (examples.states, examples.guard_states)
        return self._objective([self.model.classified(s, weights) for s in known], examples)

    def _loss(
        self, weights: Weights, examples: Examples, rows: Sequence[int], texts: Sequence[int]
    ) -> Tensor:
        repair = self.model.logits(examples.data.rows(rows), weights)
        guard = self.model.logits(examples.guard.rows(texts), weights)
        return self._objective([repair, guard], examples, rows, texts)

    @torch.no_grad()
    def _loss_of(self, rung: Rung, fitted: Mapping[str, Tensor], examples: Examples) -> float:
        weights = {**rung.base, **rung.weights(fitted)}
        if rung.on_features:
            return float(self._loss_of_head(weights, examples))
        both = (self.model.answers(data, weights) for data in (examples.data, examples.guard))
        return float(self._objective(both, examples))

    def _states(self, weights: Weights) -> list[Tensor]:
        return [self.model.states(d, weights) for d in (self.examples.data, self.examples.guard)]

    def _objective(
        self,
        logits: Iterable[Tensor],
        examples: Examples,
        rows: Any = slice(None),
        texts: Any = slice(None),
    ) -> Tensor:
        repair, guard = logits
        wanted = examples.guard_logits[texts].log_softmax(-1)
        kl = (wanted.exp() * (wanted - guard.log_softmax(-1))).sum(-1)
        return _cross_entropy(repair, examples, rows) + self.settings.guard * kl.mean()

    def slopes(self) -> Float[Tensor, "layer component"]:
        """The slope of the loss in every gate at 1, where that of the guard is 0."""
        shape, examples = self.model.shape, self.examples
        gates = torch.ones(shape.n_layers, shape.columns, device=self.model.device)
        gates.requires_grad_()
        for batch in examples.data.batches(self.settings.batch_size):
            logits, rows = self.model.logits(batch, self.model.gated(gates)), batch["index"]
            loss = _cross_entropy(logits, examples, rows)
            (len(rows) / len(examples.label) * loss).backward()
        assert gates.grad is not None
        return gates.grad

    def _removed(self, rung: Remove) -> Fit:
        """Remove components one at a time, trying those with the steepest slopes."""
        examples, shape, folds = self.examples, self.model.shape, self._folds()
        slopes = self.slopes()
        candidates = sorted(shape.components, key=lambda c: -float(slopes[shape.index(c)]))
        rows_of = (np.flatnonzero(folds == fold) for fold in np.unique(folds))
        parts = [(rows, examples.part(rows)) for rows in rows_of]

        @torch.no_grad()
        def losses_with(gates: Tensor) -> Float[np.ndarray, " fold"]:
            weights = self.model.gated(gates)
            repair = self.model.answers(examples.data, weights)
            least = np.array([float(_cross_entropy(repair[rows], of)) for rows, of in parts])
            if not (least < losses[-1]).all():  # which the guard, never negative, adds to
                return least
            guard = self.model.answers(examples.guard, weights)
            both = [self._objective([repair[rows], guard], of) for rows, of in parts]
            return np.array([float(loss) for loss in both])

        gates = rung.start()["gates"]
        losses = [np.array([float(self._loss_of_head({}, of)) for _, of in parts])]
        for _ in range(MOST_REMOVED):
            tried = {}
            for component in candidates[:CANDIDATES]:
                if gates[shape.index(component)] == 1:
                    without = gates.clone()
                    without[shape.index(component)] = 0
                    tried[component] = losses_with(without)
            # A removal must help all kinds.
            helping = {c: of for c, of in tried.items() if (of < losses[-1]).all()}
            if not helping:
                break
            best = min(helping, key=lambda c: helping[c].mean())
            gates[shape.index(best)] = 0
            losses.append(tried[best])
        after, before = (float(of.mean()) for of in (losses[-1], losses[0]))
        note, n = rung.note({"gates": gates}), len(losses) - 1
        choice = Choice(steps=n, loss=after, before=before, note=note)
        return Fit(self.model.gated(gates), choice, rung.name) if n else Fit({}, choice)


def _cross_entropy(logits: Tensor, examples: Examples, rows: Any = slice(None)) -> Tensor:
    weight = examples.weight[rows].to(logits)
    wrong = ~examples.correct[rows].to(logits.device)
    right = logits.log_softmax(-1).masked_fill(wrong, -torch.inf).logsumexp(-1)
    return -(weight * right).mean()


def _order(items: Sequence[Any], n: int, generator: np.random.Generator) -> list[Any]:
    """``n`` items: all of them in random order, repeatedly."""
    rounds = (generator.permutation(len(items)) for _ in range(-(-n // len(items))))
    return [items[i] for order in rounds for i in order.tolist()][:n]
