"""Estimates of sets' interactions in a race, and the decisions they allow: docs/ablation.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from mechcore.ablation.effects.changes import SET, SIZE, Ablations
from mechcore.ablation.joint.exact import joint_and_alone
from mechcore.ablation.sets import ComponentSet
from mechcore.errors import InputError
from mechcore.evaluation.metrics import ACCURACY, MARGIN, Metric, directed
from mechcore.evaluation.sequences import confidence_sequence
from mechcore.tables import DATA, SPLIT, Column, N, Schema

OPEN = "open"

STEP = 1.5
"""Ratio of successive bounds of the interaction on one example."""
FIRST_PART = 0.9
"""Part of the error rate for the first bound."""

_MOST_NUMBERS = 2**22
"""Maximum number of values whose intervals are computed at once, to limit memory."""

_ROUNDING = 1e-9  # relative rounding error of a mean

_DECISION = "``above``, ``below`` or ``within`` the least effect; ``top`` or ``rest``; ``open``"
DECISIONS = Schema(
    "race",
    "The decision of a race for every set.",
    (
        *(SET, SIZE, DATA, SPLIT, Column("decision", "text", _DECISION)),
        Column("effect", "number", "mean over the examples seen, in the unit of the metric"),
        Column("low", "number", "lower bound, valid for all sets and looks at once", signed=True),
        Column("high", "number", "upper bound, likewise", signed=True),
        N,
        Column("exact", "flag", "whether all examples were seen"),
    ),
)
AUDIT = Schema(
    "race_audit",
    "Decisions of a race against results on all examples, for sets drawn at random.",
    (
        SET,
        Column("decision", "text", "decision of the race"),
        N,
        Column("effect", "number", "mean over all examples"),
        Column("broken", "flag", "whether an effect on one example exceeds the final bound"),
        Column("right", "flag", "whether all examples give the same decision"),
    ),
)


def part_of_error(step: int) -> float:
    """Part of a set's error rate for its bound after ``step`` steps; sums to 1 over all steps.

    Under each bound the interval is that of the clipped interactions, whatever they are; it is that
    of the interactions themselves as long as none seen exceeds the bound.
    """
    return (1 - FIRST_PART) / (step * (step + 1)) if step else FIRST_PART


Ablated: TypeAlias = Callable[[Sequence[ComponentSet], int, int], Ablations]
"""Answers without sets, from one example to another in racing order."""


@dataclass(frozen=True)
class Goal:
    """What a race decides: interactions larger than ``least``, or the ``largest`` losses.

    ``bound`` is in the unit of the metric; None if it is known (accuracy) or still to be chosen.

    Raises:
        InputError: not one of ``least`` and ``largest`` is given, a number is out of range, or the
            metric does not say which changes are losses.
    """

    least: float | None
    largest: int | None
    metric: Metric = MARGIN
    error: float = 0.05
    bound: float | None = None

    def __post_init__(self) -> None:
        unit = f" in {self.metric.unit}" * (self.has_tails and bool(self.metric.unit))
        if self.largest is not None:
            directed(self.metric, "race")
        if (self.least is None) == (self.largest is None):
            raise InputError(
                f"race: least is {self.least} and largest {self.largest}; expected one of them"
            )
        bound = self.bound is None or (self.has_tails and 0 < self.bound < np.inf)
        for name, right, expected in (
            ("least", self.least is None or self.least >= 0, "an effect of 0 or more"),
            ("largest", self.largest is None or self.largest >= 1, "at least 1 set"),
            ("error", 0 < self.error < 1, "a probability between 0 and 1"),
            ("bound", bound, f"a number above 0{unit}, and none for accuracy"),
        ):
            if not right:
                raise InputError(f"race: {name} is {getattr(self, name)!r}; expected {expected}")

    @property
    def has_tails(self) -> bool:
        """Whether an effect on one example may have any size, as it may not on accuracy."""
        return self.metric != ACCURACY

    def decisions(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """The decision for each set, from bounds of all sets' means, [set]."""
        decisions = np.full(len(low), OPEN, dtype=object)
        if self.least is not None:
            decisions[(low >= -self.least) & (high <= self.least)] = "within"
            decisions[low > self.least] = "above"
            decisions[high < -self.least] = "below"
            return decisions
        assert self.largest is not None
        if self.metric.worse < 0:
            low, high = -high, -low
        n = len(low)  # from here, bounds of losses
        may_be_larger = n - 1 - np.searchsorted(np.sort(high), low)  # or as large, except itself
        are_larger = n - np.searchsorted(np.sort(low), high, side="right")
        decisions[are_larger >= self.largest] = "rest"
        decisions[may_be_larger < self.largest] = "top"
        return decisions


class Interactions:
    """Interactions of sets on the examples seen so far, bounds of their means, and decisions.

    By set: ``seen`` examples have known ``values`` [set, example in drawing order], ``n`` led to
    the decision, and ``steps`` is how often the bound was raised.
    """

    def __init__(self, sets: Sequence[ComponentSet], n_all: int, goal: Goal) -> None:
        self.sets, self.n_all, self.goal = sets, n_all, goal
        self.bound = goal.bound or 1.0
        if not goal.has_tails:
            self.bound = float(max(map(len, sets)))
        self.values = np.empty((len(sets), n_all), dtype=np.float32)
        self.low, self.high = np.full((2, len(sets)), -np.inf) * [[1], [-1]]
        self.n, self.seen, self.steps = np.zeros((3, len(sets)), dtype=int)
        self.decisions = np.full(len(sets), OPEN, dtype=object)

    @property
    def open(self) -> Bool[np.ndarray, " set"]:
        """Which sets are undecided."""
        return self.decisions == OPEN

    def run(
        self, ablated: Ablated, audited: Bool[np.ndarray, " set"], looks: Iterable[int]
    ) -> tuple[list[int], float, float]:
        """Decide on all sets at looks: these, the layers run, and those of all on all examples."""
        after, spent, exact_layers = list[int](), 0.0, 0.0
        for stop in looks:
            while (self.open & (self.n < stop)).any():
                layers = self._see_all((self.open | audited) & (self.seen < stop), ablated, stop)
                # For all sets, at the first look.
                exact_layers = exact_layers or layers / stop * self.n_all
                spent += layers
                self.decide(stop)
            after.append(stop)
            if not self.open.any():
                break
        if audited.any() and after[-1] < self.n_all:
            spent += self._see_all(audited, ablated, self.n_all)
        return after, spent, exact_layers

    def _see_all(self, running: Bool[np.ndarray, " set"], ablated: Ablated, stop: int) -> float:
        """See sets up to an example; returns the layer evaluations, for all examples."""
        spent = 0.0
        for start in np.unique(self.seen[running]):
            rows = np.flatnonzero(running & (self.seen == start))
            sets = [self.sets[row] for row in rows.tolist()]
            members = dict.fromkeys(member for cut in sets for member in cut.members)
            answers = ablated([*members, *sets], start, stop)
            self.values[rows, start:stop] = np.subtract(
                *joint_and_alone(answers, sets, self.goal.metric.name)
            )
            self.seen[rows] = stop
            assert answers.layers is not None
            spent += answers.layers * (stop - start)
        return spent

    def decide(self, stop: int) -> None:
        """Narrow the bounds of open sets, and decide; broken bounds open decisions again."""
        rows, goal = np.flatnonzero(self.open), self.goal
        if not len(rows):
            return
        self.n[rows], ratios = stop, self._ratios(rows, stop)
        broken = rows[ratios > 1]
        self.low[broken], self.high[broken] = -np.inf, np.inf
        self.steps[broken] += np.ceil(np.log(ratios[ratios > 1]) / np.log(STEP)).astype(int) + 1
        self._narrow(rows, stop)
        again = np.arange(len(self.sets)) if len(broken) else rows
        self.decisions[again] = goal.decisions(self.low, self.high)[again]
        ties = np.flatnonzero(self.open)
        if len(ties) and (self.n[ties] == self.n_all).all():  # of which the first are the larger
            assert goal.largest is not None
            left = goal.largest - int((self.decisions == "top").sum())
            first = ties[np.argsort(-goal.metric.worse * self.high[ties], kind="stable")]
            self.decisions[first[:left]], self.decisions[first[left:]] = "top", "rest"

    def _ratios(self, rows: Int[np.ndarray, " part"], stop: int) -> Float[np.ndarray, " part"]:
        """Largest interactions on the first examples, as multiples of the bounds."""
        return np.abs(self.values[rows, :stop]).max(1) / (self.bound * STEP ** self.steps[rows])

    def _narrow(self, rows: Int[np.ndarray, " part"], stop: int) -> None:
        """Bounds of means from the first examples."""
        for step in np.unique(self.steps[rows]):
            same = rows[self.steps[rows] == step]
            error = self.goal.error / len(self.sets)
            if self.goal.has_tails:
                error *= part_of_error(int(step))
            bound = self.bound * STEP**step
            for part in np.array_split(same, -(-same.size * stop // _MOST_NUMBERS)):
                values = self.values[part, :stop].astype(float)
                if stop == self.n_all:
                    self.low[part] = self.high[part] = values.mean(1)
                    continue
                bounds = np.full(len(part), bound)
                low, high = confidence_sequence(values, self.n_all, error, bounds)
                self.low[part] = np.maximum(self.low[part], low)
                self.high[part] = np.minimum(self.high[part], high)

    def table(self, data: str, split: str) -> pd.DataFrame:
        """The columns of `DECISIONS`; ``data`` is the name of the examples."""
        means = [self.values[row, :n].mean(dtype=float) for row, n in enumerate(self.n)]
        made = {"decision": self.decisions, "effect": means, "low": self.low, "high": self.high}
        sets = {"set": list(map(str, self.sets)), "size": list(map(len, self.sets))}
        seen = {"n": self.n, "exact": self.n == self.n_all}
        return pd.DataFrame({**sets, "data": data, "split": split, **made, **seen})

    def audit(self, rows: Int[np.ndarray, " part"]) -> pd.DataFrame:
        """The columns of `AUDIT`, for sets whose interactions are known on all examples."""
        rows = rows[~self.open[rows]]
        low, high = self.low.copy(), self.high.copy()
        means = self.values[rows].mean(1, dtype=float)
        low[rows] = high[rows] = means
        decisions, now = self.decisions[rows], self.goal.decisions(low, high)[rows]
        slack = _ROUNDING * np.maximum(1, np.abs(means))
        held = (self.low[rows] - slack <= means) & (means <= self.high[rows] + slack)
        return pd.DataFrame(
            {
                "set": [str(self.sets[row]) for row in rows],
                "decision": decisions,
                "n": self.n[rows],
                "effect": means,
                "broken": self._ratios(rows, self.n_all) > 1,
                "right": (now == decisions) | ((now == OPEN) & held),
            }
        )
