"""The ladder: all rungs fitted to the same examples, with held-out kinds, over draws and folds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechcore import progress
from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import CLUSTER
from mechcore.errors import InputError
from mechcore.partial import Partial
from mechcore.repair import HELD_OUT, INSIDE, REPAIRED
from mechcore.repair.fitting import Choice, Examples, Fitting, Settings, subset_folds
from mechcore.repair.model import RepairableModel
from mechcore.repair.rungs import RUNGS, Gates

MOST_TESTED = 1000
"""Maximum number of test examples per place; more are sampled at random."""


@dataclass(frozen=True, eq=False)
class Labelled:
    """Encoded examples with their correct classes, and numbers of their labels."""

    data: EncodedExamples
    correct: Bool[Tensor, "example cls"]

    @property
    def label(self) -> Int[np.ndarray, " example"]:
        """Label number of every example."""
        return np.unique(self.correct.numpy(), axis=0, return_inverse=True)[1].reshape(-1)

    @property
    def subset(self) -> Int[np.ndarray, " example"]:
        """Subset number of every example."""
        names = self.data.examples.frame["subset"]
        return np.unique(names.astype(str), return_inverse=True)[1].reshape(-1)

    @property
    def group(self) -> Int[np.ndarray, " example"]:
        """Group number of every example, by cluster or else by first text."""
        frame = self.data.examples.frame
        names = frame["text_a"]
        if CLUSTER in frame:
            names = names.where(frame[CLUSTER] == "", "\0" + frame[CLUSTER])
        return np.unique(names.astype(str), return_inverse=True)[1].reshape(-1)


@dataclass(frozen=True)
class Run:
    """One draw of repair examples, and the test examples by place."""

    n_examples: int
    draw: int
    fold: int
    repair: np.ndarray
    tested: Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Outcome:
    """Answers of each rung in one run, and how it was fitted."""

    run: Run
    logits: Mapping[str, Mapping[str, Float[np.ndarray, "example cls"]]]
    choices: Mapping[str, Choice]
    gates: np.ndarray | None = None
    permuted: np.ndarray | None = None

    def save(self, partial: Partial) -> None:
        """Save the outcome, to resume from."""
        arrays = {f"{name}/{p}": a for name, of in self.logits.items() for p, a in of.items()}
        more = {"gates": self.gates, "permuted": self.permuted}
        arrays |= {name: array for name, array in more.items() if array is not None}
        tensors = {name: torch.from_numpy(array).contiguous() for name, array in arrays.items()}
        partial.save(tensors, {name: asdict(choice) for name, choice in self.choices.items()})

    @classmethod
    def restored(cls, run: Run, partial: Partial) -> Outcome | None:
        """The saved outcome of the run; None if it is not done."""
        if (kept := partial.restore()) is None:
            return None
        arrays = {name: tensor.numpy() for name, tensor in kept[0].items()}
        logits = {name: {p: arrays[f"{name}/{p}"] for p in run.tested} for name in kept[1]}
        choices = {name: Choice(**values) for name, values in kept[1].items()}
        return cls(run, logits, choices, arrays.get("gates"), arrays.get("permuted"))


def runs_of(
    outside: Labelled, sizes: Sequence[int], draws: int, folds: int, seed: int, inside: int
) -> list[Run]:
    """For each size and draw of repair examples, one run for each fold of held-out subsets.

    There is one fold if subsets are too few; ``inside`` is the number of in-domain examples. Raises
    `InputError` if there are too few examples, or none are left to test on.
    """
    runs = []
    for draw in range(draws):
        rng = np.random.default_rng([seed, draw])
        fold_of = subset_folds(outside.subset, outside.label, folds, seed + draw)
        for fold in range(1 if fold_of is None else int(fold_of.max()) + 1):
            held = np.zeros(len(outside.label), bool) if fold_of is None else fold_of == fold
            order = _drawn(outside, np.flatnonzero(~held), rng)
            for n in sizes:
                repair = np.sort(order[:n])
                seen = np.isin(outside.group, outside.group[repair])
                tested = {REPAIRED: ~held & ~seen, HELD_OUT: held & ~seen}
                rows = {k: _at_most(np.flatnonzero(v), rng) for k, v in tested.items()}
                rows[INSIDE] = np.arange(inside)
                if n >= len(order) or not len(rows[REPAIRED]):
                    raise InputError(
                        f"repair: {n} repair examples, of {len(order)} out-of-domain examples that "
                        "are not held out; expected fewer, to leave test examples that share no "
                        "cluster or first text with them: lower --examples, or draw more "
                        "(--max-ood)"
                    )
                runs.append(Run(n, draw, fold, repair, {k: v for k, v in rows.items() if len(v)}))
    return runs


def _drawn(outside: Labelled, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows in random order: subsets and labels alternate; half of the clusters come last."""
    rows = rng.permutation(rows)
    group = outside.group
    late = rng.permutation(group.max() + 1)[group[rows]] % 2
    kinds = np.stack([outside.subset[rows], outside.label[rows], late])
    kind = np.unique(kinds, axis=1, return_inverse=True)[1].reshape(-1)
    turn = late * len(rows)
    for i in np.unique(kind):
        turn[kind == i] += np.arange((kind == i).sum())
    return rows[np.argsort(turn, kind="stable")]


def _at_most(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rows if len(rows) <= MOST_TESTED else np.sort(rng.permutation(rows)[:MOST_TESTED])


class Ladder:
    """Rungs fitted to out-of-domain examples, with in-domain training texts as the guard."""

    def __init__(
        self,
        model: RepairableModel,
        outside: Labelled,
        inside: Labelled,
        guard: EncodedExamples,
        settings: Settings,
    ) -> None:
        self.model, self.outside, self.inside, self.settings = model, outside, inside, settings
        self.guard, self._states = guard, dict[int, Tensor]()

    def own_states(self, data: EncodedExamples) -> Float[Tensor, "example d"]:
        """Inputs of the unchanged model's last layer, computed once."""
        if id(data) not in self._states:
            self._states[id(data)] = self.model.states(data, {})
        return self._states[id(data)]

    def fitting(self, rows: Int[np.ndarray, " row"], seed: int | None = None) -> Fitting:
        """The fitting of rungs to these out-of-domain examples."""
        outside, index, guard_states = self.outside, rows.tolist(), self.own_states(self.guard)
        examples = Examples(
            outside.data.part(index),
            outside.correct[index],
            outside.label[rows],
            outside.subset[rows],
            self.guard,
            self.model.classified(guard_states, {}).detach(),
            self.own_states(outside.data)[index],
            guard_states,
        )
        seed = self.settings.seed if seed is None else seed
        return Fitting(self.model, examples, replace(self.settings, seed=seed))

    def outcomes(
        self, runs: Sequence[Run], rungs: Sequence[str], folder: Path | None = None
    ) -> Iterator[Outcome]:
        """Fit and test all rungs in every run; ``folder`` keeps finished runs."""
        settings = {"settings": asdict(self.settings), "rungs": [*rungs]}
        with progress.bar("repairs", len(runs) * len(rungs)) as advance:
            for i, run in enumerate(runs):
                depends_on = {"rows": run.repair.tolist(), **settings}
                partial = Partial(folder, f"repair-{i}", data=self.outside.data, **depends_on)
                done = Outcome.restored(run, partial)
                if done is None:
                    done = self._outcome(run, rungs, advance)
                    done.save(partial)
                else:
                    advance(len(rungs))
                yield done

    def _outcome(self, run: Run, rungs: Sequence[str], advance: Callable[[], object]) -> Outcome:
        fitting = self.fitting(run.repair, self.settings.seed + 1000 * run.draw + run.fold)
        of = {place: self.inside if place == INSIDE else self.outside for place in run.tested}
        data = {place: of[place].data.part(rows.tolist()) for place, rows in run.tested.items()}
        own = {place: self.own_states(of[place].data)[rows] for place, rows in run.tested.items()}
        states, logits, choices = {"": own}, {}, {}
        for name in rungs:
            fit = fitting.fit(name)
            if fit.body not in states:
                states[fit.body] = {p: self.model.states(d, fit.weights) for p, d in data.items()}
            answers = {
                place: self.model.classified(read, fit.weights).detach().cpu().numpy()
                for place, read in states[fit.body].items()
            }
            choices[name], logits[name] = fit.choice, answers
            advance()
        gates = _diagnosed(fitting) if "gates" in rungs and self.settings.diagnose else ()
        return Outcome(run, logits, choices, *gates)

    def transfer(self, n: int) -> Float[np.ndarray, "repaired tested"]:
        """Change in accuracy on each subset when the last layer is fitted to a single subset.

        Missing labels are drawn from all subsets; the diagonal is NaN where no example is left.
        """
        outside, states = self.outside, self.own_states(self.outside.data)
        names, label = np.unique(outside.subset), outside.label
        changes = np.full((len(names), len(names)), np.nan)
        right = _right(self.model.classified(states, {}), outside.correct)
        for i in names:
            rng = np.random.default_rng([self.settings.seed, int(i)])
            rows = rng.permutation(np.flatnonzero(outside.subset == i))[: max(1, n // 2)]
            lacking = np.flatnonzero(~np.isin(label, label[rows]))
            rows = np.concatenate([rows, rng.permutation(lacking)[: max(1, n // 2)]])
            weights = self.fitting(rows).fit("last-layer", by_chance=False).weights
            change = _right(self.model.classified(states, weights), outside.correct) - right
            unseen = ~np.isin(outside.group, outside.group[rows])
            for j in names:
                tested = unseen & (outside.subset == j)
                changes[i, j] = change[tested].mean() if tested.any() else np.nan
        return changes


def _diagnosed(fitting: Fitting) -> tuple[np.ndarray, np.ndarray]:
    """Gates trained for all steps with the middle penalty, on true and on permuted labels."""
    examples, settings = fitting.examples, fitting.settings
    order = np.random.default_rng(settings.seed).permutation(len(examples.label))
    mixed = replace(examples, correct=examples.correct[order], label=examples.label[order])
    rung = Gates("gates", fitting.model, {}, examples.kinds, settings.seed)
    how = (rung.rates[0], rung.penalties[1], settings.steps)
    trained = [next(fitting.trained(rung, of, *how)) for of in (examples, mixed)]
    own, permuted = (fitted["gates"].cpu().numpy() for _, fitted in trained)
    return own, permuted


def _right(logits: Tensor, correct: Tensor) -> Float[np.ndarray, " example"]:
    answers = logits.detach().cpu().argmax(-1)
    return correct[torch.arange(len(answers)), answers].numpy().astype(float)


def check_rungs(names: Sequence[str]) -> list[str]:
    """The rungs in the order of the ladder, ``none`` among them; raises `InputError` if unknown."""
    for name in names:
        RUNGS[name]
    return [name for name in RUNGS if name in names or name == "none"]
