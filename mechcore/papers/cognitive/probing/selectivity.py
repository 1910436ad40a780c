"""Which task variables every single unit follows, by regression with a permutation null.

After Mante et al. 2013 (Nature 503, Supplement) and Rigotti et al. 2013 (Nature 497).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.stats import multivariate_t
from scipy.stats import t as student_t
from torch import Tensor

from mechcore.errors import InputError
from mechcore.evaluation.p_values import attained_level
from mechcore.papers.cognitive.probing.activations import standardised
from mechcore.showing import Shown

_BLOCK = 2**22  # most numbers (float64) in an array of a block of permutations

_SINGULAR = 1e-10  # eigenvalue of the terms' correlation matrix under which terms are collinear

_NOTHING = 1e-20  # share of a unit's variance that is rounding

_TIE = 1e-12  # squared partial correlations no further apart than this are equal

_DRAWS = 200_000  # noise units drawn for what is expected by chance where terms are correlated

_SEED = 0


@dataclass(frozen=True, eq=False, repr=False)
class Selectivity(Shown):
    """What `selectivity` found.

    Attributes:
        table: one row per unit and term. unit; term (a variable, or ``"a x b"``); coefficient
            (standard deviations of the unit per standard deviation of the term, the other terms
            held); partial_r (correlation given the other terms); p (two-sided, (1 + permutations at
            least as large) / (1 + permutations)); selective (p <= alpha).
        correlations: of the estimated coefficients of two terms, [term, term].
        constant: units that are constant; their coefficients are 0, and their p is 1.
        level: how often a test finds a unit selective that follows nothing: alpha or less.
    """

    table: pd.DataFrame
    correlations: pd.DataFrame
    interactions: tuple[str, ...]
    constant: tuple[int, ...]
    n_units: int
    n_examples: int
    level: float

    def counts(self, terms: Sequence[str]) -> pd.DataFrame:
        """How many units are selective for 0, 1, ... of the main effects ``terms``.

        Columns: n_variables, units, share, expected_correlated (the share if no unit followed
        anything, given the correlations of the terms), with_interaction (units also selective for
        one).
        """
        selective = self.table.pivot(index="unit", columns="term", values="selective")
        followed = selective[list(terms)].sum(axis=1)
        mixed = followed[selective[list(self.interactions)].any(axis=1)]
        sizes = np.arange(len(terms) + 1)
        units, with_interaction = (
            part.value_counts().reindex(sizes, fill_value=0).to_numpy()
            for part in (followed, mixed)
        )
        constant = len(self.constant) / self.n_units
        return pd.DataFrame(
            {
                "n_variables": sizes,
                "units": units,
                "share": units / self.n_units,
                "expected_correlated": (1 - constant) * self._chance(list(terms))
                + constant * (sizes == 0),
                "with_interaction": with_interaction,
            }
        )

    def _chance(self, terms: list[str]) -> np.ndarray:
        """Share of noise units that are selective for 0, 1, ... of the terms."""
        freedom = self.n_examples - len(self.correlations) - 1  # of the residuals
        correlations = self.correlations.loc[terms, terms].to_numpy()
        null = multivariate_t(shape=correlations, df=freedom, allow_singular=True, seed=_SEED)
        draws = np.abs(null.rvs(_DRAWS)).reshape(_DRAWS, len(terms))
        selective = (draws > student_t.isf(self.level / 2, freedom)).sum(axis=1)
        return np.bincount(selective, minlength=len(terms) + 1) / _DRAWS


def selectivity(
    states: Float[Tensor | np.ndarray, "example unit"],
    variables: Mapping[str, Sequence[float]] | pd.DataFrame,
    *,
    interactions: Sequence[tuple[str, str]] = (),
    permutations: int = 1000,
    alpha: float = 0.01,
    seed: int = 0,
) -> Selectivity:
    """Regress every unit on task variables, and test every term by Freedman-Lane permutation.

    unit ~ 1 + variables + interactions, all standardised. The residuals of the unit given all other
    terms are permuted, the other terms' fit is added back, and the whole model is fitted again
    (Freedman and Lane 1983). The same permutations serve all units and terms. The model is linear,
    and a misfit can pass for selectivity. ``variables`` are numbers by name, one per example;
    ``interactions`` are pairs of them whose product is a further term; ``alpha`` is the level of a
    single test.

    Raises:
        InputError: a value is not a finite number; a variable has a single value; terms are
            collinear; there are too few examples; or so few permutations cannot reach alpha.
    """
    if permutations < 1 or 1 / (1 + permutations) > alpha:
        raise InputError(
            f"permutations: {permutations}, with which p is never under 1 / (1 + permutations); "
            f"expected more, so that it can reach alpha = {alpha}"
        )
    values, constant = standardised(states)
    n, n_units = values.shape
    main = {str(name): _standard(str(name), column, n) for name, column in variables.items()}
    products = {
        f"{one} x {other}": _standard(f"{one} x {other}", main[one] * main[other], n)
        for one, other in interactions
    }
    names = [*main, *products]
    if n < len(names) + 3:
        raise InputError(
            f"states: {n} examples for {len(names)} terms and a constant; expected "
            f"at least {len(names) + 3}, so that something is left to permute"
        )
    design = np.stack([*main.values(), *products.values()], axis=1)
    precision = _inverse_correlations(design, names)
    inflation = precision.diagonal()
    correlations = precision / np.sqrt(np.outer(inflation, inflation))
    coefficient, partial_r, exceeding = _regress(values, design, permutations, seed)
    p = (1 + exceeding) / (1 + permutations)
    columns = {"coefficient": coefficient, "partial_r": partial_r, "p": p, "selective": p <= alpha}
    table = pd.DataFrame(
        {
            "unit": np.repeat(np.arange(n_units), len(names)),
            "term": names * n_units,
            **{name: column.T.ravel() for name, column in columns.items()},
        }
    )
    return Selectivity(
        table=table,
        correlations=pd.DataFrame(correlations, index=names, columns=names),
        interactions=tuple(products),
        constant=tuple(np.flatnonzero(constant).tolist()),
        n_units=n_units,
        n_examples=n,
        level=attained_level(alpha, permutations),
    )


def _standard(name: str, column: Any, n: int) -> np.ndarray:
    values = np.asarray(column)
    if len(values) != n:
        raise InputError(f"variable {name!r}: {len(values)} values for {n} examples")
    scaled, constant = standardised(values[:, None], f"variable {name!r}")
    if constant[0]:
        raise InputError(
            f"variable {name!r}: {values[0]} at all examples; expected at least two values: leave "
            "it out"
        )
    return scaled[:, 0]


def _inverse_correlations(
    design: Float[np.ndarray, "example term"], names: Sequence[str]
) -> Float[np.ndarray, "term term"]:
    """Inverse of the terms' correlation matrix, whose diagonal are the inflation factors."""
    sizes, directions = np.linalg.eigh(design.T @ design / len(design))
    singular = np.abs(directions[:, sizes < _SINGULAR])
    if singular.size:
        involved = [name for name, row in zip(names, singular, strict=True) if row.max() > 1e-4]
        raise InputError(
            f"terms {', '.join(involved)}: collinear, so their coefficients are not determined; "
            "expected no term to be a sum of others: use graded evidence (signed strengths in "
            "place of signs), or leave out one of these terms"
        )
    return (directions / sizes) @ directions.T


# -- the regression -------------------------------------------------------------------------------


def _regress(
    values: Float[np.ndarray, "example unit"],
    design: Float[np.ndarray, "example term"],
    permutations: int,
    seed: int,
) -> tuple[
    Float[np.ndarray, "term unit"],
    Float[np.ndarray, "term unit"],
    Int[np.ndarray, "term unit"],
]:
    """Coefficients, partial correlations, and the permutations that give one as large.

    The residuals of a unit given all terms but one are e = E + b x: E are those given all terms, x
    (of length 1) is what is left of that term given the others. In the permuted data the partial
    correlation is <x, Pe> / |Pe without its part in the other terms|, which needs no fit.
    """
    basis, triangle = np.linalg.qr(design)
    inverse = np.linalg.inv(triangle)
    lengths = np.linalg.norm(inverse, axis=1, keepdims=True)
    left = inverse / lengths  # x in the basis, [term, basis]
    fit = basis.T @ values
    residuals = values - basis @ fit
    b = left @ fit
    total = (residuals**2).sum(axis=0) + b**2  # |e|^2
    total[total < _NOTHING * len(values)] = 0.0
    r = np.divide(b, np.sqrt(total), out=np.zeros_like(b), where=total > 0)

    exceeding = np.zeros(b.shape, dtype=int)
    generator = np.random.default_rng(seed)
    n, n_terms = design.shape
    block = max(1, _BLOCK // (n_terms * max(n, values.shape[1])))
    for start in range(0, permutations, block):
        size = min(block, permutations - start)
        orders = np.stack([generator.permutation(n) for _ in range(size)])
        rows = basis.T[:, orders].reshape(n_terms * size, n)
        of_residuals = (rows @ residuals).reshape(n_terms, size, -1)
        of_basis = (rows @ basis).reshape(n_terms, size, n_terms)
        for j, x in enumerate(left):
            inside = of_residuals + (of_basis @ x)[:, :, None] * b[j]
            along = np.tensordot(x, inside, axes=1) ** 2
            rest = total[j] - (inside**2).sum(axis=0) + along
            exceeding[j] += (along >= r[j] ** 2 * rest - _TIE * total[j]).sum(axis=0)
    return inverse @ fit, r, exceeding
