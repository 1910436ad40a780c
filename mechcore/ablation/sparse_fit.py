"""The random sets that a sparse model of drops is fitted to, and its fit.

Here sets are rows of flags, one a component, and no model of a transformer is known; see
`mechcore.ablation.sparse_dividends` for the steps, of which these are 1 to 3.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float
from sklearn.linear_model import Lasso, LassoCV
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold

from mechcore.ablation.effects import Ablations, ComponentSet
from mechcore.components import Component
from mechcore.errors import InputError, warn
from mechcore.evaluation.evaluate import Metric
from mechcore.tables import Column, Schema

Term: TypeAlias = tuple[int, ...]
"""Places of components, in order."""

LARGEST = 6
"""Components of the largest sets, if these tell enough of all pairs or larger terms."""
OFTEN = 10
"""Random sets that contain any term of the highest order, on average."""
MOST_GROWN = 2000
"""Candidates of one order, from three components on."""
LEAST_FIT = 0.5
"""R2 under which there is a warning."""
_FOLDS = 5
_LEAST_SEEN = 2
_FIT = {"fit_intercept": False, "max_iter": 10_000, "tol": 1e-7, "random_state": 0}
_COARSE = {**_FIT, "tol": 1e-4}
"""From three components on, where there may be more candidates than sets."""

DIVIDEND_FIT = Schema(
    "dividend_fit",
    "How much of the drops of random sets a sparse model explains, by its order.",
    (
        Column("order", "whole", "components of its largest terms"),
        Column("candidates", "whole", "terms of two and more to choose from"),
        Column("too_rare", "whole", "terms besides in too few random sets, taken to be 0"),
        Column("terms", "whole", "terms of two and more that are not 0"),
        Column("penalty", "number", "of the lasso; missing for single drops", shown="small"),
        Column("r2", "number", "R2 of the drops of sets held out", header="R2"),
        Column(
            "r2_interactions",
            "number",
            "R2 of what these sets lose beyond their members",
            header="R2 of interactions",
        ),
    ),
)

# -- the sets -------------------------------------------------------------------------------------


def largest_size(n: int, order: int, n_sets: int) -> int:
    """Components of the largest sets to draw from ``n``.

    It is the smallest number from `LARGEST` on with which every term of ``order`` components is in
    `OFTEN` of the sets on average: of 54 components with 2000 sets of up to 6, a triple would
    be in fewer than one of them.
    """
    for size in range(min(LARGEST, n), n):
        shares = [comb(s, order) / comb(n, order) for s in range(2, size + 1)]
        if n_sets * np.mean(shares) >= OFTEN:
            return size
    return n


def random_sets(
    components: Sequence[Component], n_sets: int, largest: int, seed: int, who: str, instead: str
) -> list[ComponentSet]:
    """Different random sets of 2 to ``largest`` components, all sizes as likely.

    Args:
        components: to draw from.
        n_sets: how many; one drawn twice counts once.
        largest: components of the largest.
        seed: of the draws.
        who: what they are for, for messages.
        instead: what may be done without them, likewise.

    Raises:
        InputError: there are too few different ones for cross-validation.
    """
    n, rng = len(components), np.random.default_rng(seed)
    sizes = rng.integers(2, min(largest, n), n_sets, endpoint=True)
    drawn = [rng.choice(n, size, replace=False) for size in sizes]
    sets = list(dict.fromkeys(ComponentSet.of([components[i] for i in each]) for each in drawn))
    if len(sets) < 2 * _FOLDS:
        raise InputError(
            f"{who}: {len(sets)} different sets among {n_sets} random ones of {n} components; "
            f"expected at least {2 * _FOLDS}: take more, or {instead}"
        )
    return sets


def membership(
    sets: Sequence[ComponentSet], components: Sequence[Component]
) -> Bool[np.ndarray, "set component"]:
    """Which components are in which set."""
    return np.array([[c in set(s.components) for c in components] for s in sets], dtype=bool)


def drops_of(
    ablations: Ablations, sets: Sequence[ComponentSet], metric: Metric
) -> tuple[Float[np.ndarray, " set"], Float[np.ndarray, " set"]]:
    """Mean drops without sets, and the sums of those without each member alone."""
    drops = {each: float(ablations.drops(each, metric).mean()) for each in ablations.sets}
    alone = [sum(drops[ComponentSet((c,))] for c in each.components) for each in sets]
    return np.array([drops[each] for each in sets]), np.array(alone)


# -- the fit --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Stage:
    """The model up to one order.

    Attributes:
        order: components of its largest terms.
        terms: the candidates.
        coefficients: theirs, from all sets.
        too_rare: terms in too few sets to tell.
        penalty: of the lasso.
        held_out: predicted interactions of every set, by a model that did not see it.
    """

    order: int
    terms: Sequence[Term]
    coefficients: Float[np.ndarray, " term"]
    too_rare: int
    penalty: float
    held_out: Float[np.ndarray, " set"]

    def row(
        self, drops: Float[np.ndarray, " set"], alone: Float[np.ndarray, " set"]
    ) -> dict[str, float]:
        """Its row of `DIVIDEND_FIT`, from the drops of sets and the sums of single ones."""
        return {
            "order": self.order,
            "candidates": len(self.terms),
            "too_rare": self.too_rare,
            "terms": int(np.count_nonzero(self.coefficients)),
            "penalty": self.penalty,
            "r2": float(r2_score(drops, alone + self.held_out)),
            "r2_interactions": float(r2_score(drops - alone, self.held_out)),
        }


def fit_orders(
    present: Bool[np.ndarray, "set component"], interactions: Float[np.ndarray, " set"], order: int
) -> list[Stage]:
    """Fit terms of two, then of three and so on to what sets lose beyond their members.

    The penalty of each order is that of cross-validation with the candidates of all sets.
    Predictions for sets held out come from candidates grown, and coefficients fitted, without them.

    Args:
        present: which components are in which set.
        interactions: of the sets.
        order: the highest.

    Returns:
        A stage for every order from 1, which has no terms but single drops.
    """
    n_sets, n = present.shape
    everything = np.arange(n_sets)
    parts = [train for train, _ in KFold(_FOLDS).split(present)]
    stages = [Stage(1, [], np.zeros(0), 0, float("nan"), np.zeros(n_sets))]
    pairs: list[Term] = list(itertools.combinations(range(n), 2))
    unseen = int((containing(present, pairs).sum(0) == 0).sum())
    candidates = [(pairs, unseen)] * (_FOLDS + 1)  # of all sets, and of those of each fold
    for k in range(2, order + 1):
        terms, too_rare = candidates[0]
        features, penalty = containing(present, terms), stages[-1].penalty
        values, settings = np.zeros(len(terms)), _FIT if k == 2 else _COARSE
        if terms:
            largest = np.abs(features.T @ interactions).max() / n_sets
            grid = {"eps": 1e-4} if k == 2 else {"alphas": np.geomspace(largest, largest / 1e3, 30)}
            lasso = LassoCV(**grid, cv=KFold(_FOLDS), **settings).fit(features, interactions)
            values, penalty = lasso.coef_, float(lasso.alpha_)
        stages.append(Stage(k, terms, values, too_rare, penalty, np.zeros(n_sets)))
        fits = [(everything, features, values)]
        for train, (own, _) in zip(parts, candidates[1:], strict=True):
            features, values = containing(present, own), np.zeros(len(own))
            if own:
                fold = Lasso(penalty, **settings).fit(features[train], interactions[train])
                test, values = np.setdiff1d(everything, train), fold.coef_
                stages[-1].held_out[test] = fold.predict(features[test])
            fits.append((train, features, values))
        if k < order:
            candidates = [
                grown(present[rows], interactions[rows] - features[rows] @ values, own, values)
                for (rows, features, values), (own, _) in zip(fits, candidates, strict=True)
            ]
    return stages


def containing(
    present: Bool[np.ndarray, "set component"], terms: Sequence[Term]
) -> Float[np.ndarray, "set term"]:
    """1 where a set has all components of a term, 0 elsewhere."""
    found = np.empty((len(present), len(terms)))
    for column, term in zip(found.T, terms, strict=True):
        column[:] = present[:, list(term)].all(1)
    return found


def grown(
    present: Bool[np.ndarray, "set component"],
    errors: Float[np.ndarray, " set"],
    terms: Sequence[Term],
    coefficients: Float[np.ndarray, " term"],
) -> tuple[list[Term], int]:
    """The terms found, and those of the next order that grow from the largest of them.

    Of more than `MOST_GROWN` new ones those are taken on which the errors depend most, by their sum
    over the sets with the term, divided by the root of how many these are.

    Args:
        present: which components are in which set.
        errors: interactions of the sets less the model's.
        terms: the model's candidates.
        coefficients: theirs.

    Returns:
        Terms, and how many new ones were left out because they are in one set or none.
    """
    found = [term for term, value in zip(terms, coefficients, strict=True) if value]
    top = max(map(len, terms), default=0)
    parents = [term for term in found if len(term) == top]
    having = containing(present, parents).T
    seen = having @ present
    scores = np.abs(having @ (present * errors[:, None])) / np.sqrt(np.maximum(seen, 1))
    new: dict[Term, float] = {}
    too_rare: set[Term] = set()
    for i, parent in enumerate(parents):
        for j in set(range(present.shape[1])).difference(parent):
            child = tuple(sorted((*parent, j)))
            if seen[i, j] < _LEAST_SEEN:
                too_rare.add(child)
            else:
                new[child] = scores[i, j]
    best = sorted(new, key=lambda term: (-new[term], term))[:MOST_GROWN]
    return [*found, *sorted(best)], len(too_rare)


def warn_if_poor(who: str, fit: float, what: str) -> None:
    """Say that a model explains little of the interactions of sets held out.

    Args:
        who: whose it is.
        fit: its R2.
        what: the consequence.
    """
    if fit < LEAST_FIT:
        warn(f"{who}: the model explains little (R2 {fit:.2f} on sets held out), so that {what}")
