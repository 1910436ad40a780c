"""Which task variables every single unit follows, by regression with a permutation null.

unit ~ 1 + context + motion + color + choice (+ interactions), for every unit on its own, as in
Mante et al. 2013 (Nature 503, Supplementary Information, linear regression). A unit that follows
several variables has mixed selectivity; if it follows a product of variables, nonlinear mixed
selectivity (Rigotti et al. 2013, Nature 497).

The null of a term is Freedman and Lane's (1983): the residuals of the unit given all other terms
are permuted, the other terms' fit is added back, and the whole model is fitted again. The other
terms may be correlated with the term. Residuals are estimates of the errors, so this is exact with
no other term and approximate else, with an error that goes to 0 as examples become many. It takes
the errors of different examples as exchangeable: independent, and of the same spread.

The model is linear, and a misfit can pass for selectivity: a unit that follows the sign of a
variable given as graded evidence is called selective for a choice that this sign determines, too.
Give the sign as a further variable where units may saturate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from scipy.stats import binom, false_discovery_control, multivariate_t
from scipy.stats import t as student_t
from torch import Tensor

from mechcore.errors import InputError, warn
from mechcore.evaluation.p_values import attained_level
from mechcore.papers.cognitive.probing.projection import standardised
from mechcore.showing import Shown

VIF_LIMIT = 10
"""Variance inflation above which a warning is due."""

_BLOCK = 2**22
"""Most numbers (float64) in an array of a block of permutations."""

_SINGULAR = 1e-10
"""Eigenvalue of the terms' correlation matrix under which terms are collinear."""

_NOTHING = 1e-20
"""Share of a unit's variance that is rounding."""

_TIE = 1e-12
"""Squared partial correlations no further apart than this are equal, whichever way they round."""

_DRAWS = 200_000
"""Noise units drawn for what is expected by chance where terms are correlated."""

_KINDS = ("none", "pure", "linear mixed", "nonlinear mixed")


@dataclass(frozen=True, eq=False, repr=False)
class Selectivity(Shown):
    """What `selectivity` found.

    Attributes:
        table: one row per unit and term. unit (index); term (a variable, or ``"a x b"``);
            coefficient (standard deviations of the unit per standard deviation of the term, the
            other terms held: positive where the unit grows with the variable); partial_r
            (correlation given the other terms, in [-1, 1], of the coefficient's sign); p
            (two-sided, (1 + permutations at least as large) / (1 + permutations)); q
            (Benjamini-Hochberg over the units that vary, within the term); selective
            (p <= alpha); constant (whether the unit is constant: then coefficient and partial_r
            are 0, p and q are 1).
        vif: term and vif, its variance inflation factor: 1 / (1 - R2 of the term on the others).
        correlations: of the estimated coefficients of two terms, [term, term]; all 0 but the
            diagonal where the terms are uncorrelated.
        variables: the main effects.
        interactions: the names of the interactions.
        constant: units that are constant.
        n_units: units in all.
        n_examples: examples in the regression.
        alpha: level of ``selective``, of a single test: not corrected for the number of units.
        permutations: of every test.
        seed: of the permutations.
    """

    table: pd.DataFrame
    vif: pd.DataFrame
    correlations: pd.DataFrame
    variables: tuple[str, ...]
    interactions: tuple[str, ...]
    constant: tuple[int, ...]
    n_units: int
    n_examples: int
    alpha: float
    permutations: int
    seed: int

    @property
    def level(self) -> float:
        """How often a test finds a unit selective that follows nothing: alpha or less."""
        return attained_level(self.alpha, self.permutations)

    def units(self, terms: Sequence[str] | None = None) -> pd.DataFrame:
        """Kind of every unit; ``terms`` are the main effects to look at, by default all.

        Returns:
            unit, n_variables (main effects it is selective for), n_interactions, and kind:
            ``"pure"`` (one main effect), ``"linear mixed"`` (several), ``"nonlinear mixed"`` (any
            interaction, with or without main effects), ``"none"`` or ``"constant"``. Without
            interactions in the regression, nonlinear mixed selectivity is not seen.

        Raises:
            InputError: a term is not a main effect, or is given twice.
        """
        chosen = self._main_effects(terms)
        selective = self.table.pivot(index="unit", columns="term", values="selective")
        n_variables = selective[chosen].sum(axis=1)
        n_interactions = selective[list(self.interactions)].sum(axis=1).astype(int)
        names = np.array(_KINDS)[np.where(n_interactions > 0, 3, n_variables.clip(upper=2))]
        kinds = pd.Series(names, index=selective.index, dtype=object)
        kinds[list(self.constant)] = "constant"
        columns = {"n_variables": n_variables, "n_interactions": n_interactions, "kind": kinds}
        return pd.DataFrame(columns).reset_index()

    def counts(self, terms: Sequence[str] | None = None) -> pd.DataFrame:
        """How many units are selective for 0, 1, ... of the main effects ``terms``, by default all.

        Returns:
            n_variables; units; share (of all units); expected_by_chance and expected_correlated
            (the same share if no unit followed anything); with_interaction (those of ``units``
            that are also selective for an interaction).

            Both take every test as exact, at `level`, and constant units as never selective.
            expected_by_chance is Binomial(number of terms, `level`), which expects too few mixed
            units where terms are correlated, as choice and evidence are. expected_correlated knows
            the correlations of the terms, and that a unit's tests share an estimate of its error;
            it takes errors as normal, and comes from seeded draws. Both are for units that follow
            nothing: one that follows a variable passes for mixed with a chance of about alpha for
            each other term.

        Raises:
            InputError: a term is not a main effect, or is given twice.
        """
        units = self.units(terms)
        chosen = self._main_effects(terms)
        sizes = np.arange(len(chosen) + 1)
        found = units["n_variables"].value_counts().reindex(sizes, fill_value=0).to_numpy()
        mixed = units.loc[units["n_interactions"] > 0, "n_variables"].value_counts()
        columns = {"n_variables": sizes, "units": found, "share": found / self.n_units}
        still = len(self.constant) / self.n_units
        for name, chance in (
            ("expected_by_chance", binom.pmf(sizes, len(chosen), self.level)),
            ("expected_correlated", self._chance(chosen)),
        ):
            columns[name] = (1 - still) * chance + still * (sizes == 0)
        columns["with_interaction"] = mixed.reindex(sizes, fill_value=0).to_numpy()
        return pd.DataFrame(columns)

    def _chance(self, terms: list[str]) -> np.ndarray:
        """Share of noise units that are selective for 0, 1, ... of the terms."""
        freedom = self.n_examples - len(self.vif) - 1  # of the residuals
        correlations = self.correlations.loc[terms, terms].to_numpy()
        null = multivariate_t(shape=correlations, df=freedom, allow_singular=True, seed=self.seed)
        draws = np.abs(null.rvs(_DRAWS)).reshape(_DRAWS, len(terms))
        selective = (draws > student_t.isf(self.level / 2, freedom)).sum(axis=1)
        return np.bincount(selective, minlength=len(terms) + 1) / _DRAWS

    def _main_effects(self, terms: Sequence[str] | None) -> list[str]:
        chosen = list(self.variables if terms is None else terms)
        unknown = [each for each in chosen if each not in self.variables]
        if unknown or isinstance(terms, str) or len(set(chosen)) < len(chosen) or not chosen:
            raise InputError(
                f"terms: found {terms!r}; expected a list of main effects, each once, out of "
                f"{', '.join(self.variables)}; interactions are counted on their own"
            )
        return chosen


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

    Units and terms are standardised (mean 0, population standard deviation 1). An interaction is
    the product of two standardised variables, standardised again; so a main effect beside it is
    the effect at the mean of the other variable. The same permutations serve all units and terms.

    Args:
        states: activations, in any unit, e.g. of the last layer at the last token.
        variables: numbers by name, one per example, e.g. signed evidence, or -1 and 1.
        interactions: pairs of variables whose product is a further term.
        permutations: drawn for every test.
        alpha: level of a single test.
        seed: of the permutations.

    Raises:
        InputError: a value is not a finite number; a variable has a single value; terms are
            collinear; there are too few examples; an interaction cannot be used; alpha is not
            between 0 and 1, or smaller than the smallest p that so few permutations can give.

    Warns:
        MechcoreWarning: a variance inflation factor is above `VIF_LIMIT`, so that the
            coefficients of the terms it names are unsure.
    """
    _check_settings(permutations, alpha)
    values, constant = standardised(states)
    names = [str(name) for name in variables]
    if not names or len(set(names)) < len(names):
        found = ", ".join(names) or "none"
        raise InputError(f"variables: found {found}; expected at least one, each once")
    n = len(values)
    main = {str(name): _standard(str(name), column, n) for name, column in variables.items()}
    products = _products(main, interactions)
    terms = {**main, **products}
    if n < len(terms) + 3:
        raise InputError(
            f"states: {n} examples for {len(terms)} terms and a constant; expected "
            f"at least {len(terms) + 3}, so that something is left to permute"
        )
    names = list(terms)
    design = np.stack(list(terms.values()), axis=1)
    precision = _inverse_correlations(design, names)
    inflation = precision.diagonal()
    correlations = precision / np.sqrt(np.outer(inflation, inflation))
    _warn_inflation(names, inflation)
    results = _regress(values, design, permutations, seed)
    return Selectivity(
        table=_table(names, *results, permutations, alpha, constant),
        vif=pd.DataFrame({"term": names, "vif": inflation}),
        correlations=pd.DataFrame(correlations, index=names, columns=names),
        variables=tuple(main),
        interactions=tuple(products),
        constant=tuple(np.flatnonzero(constant).tolist()),
        n_units=values.shape[1],
        n_examples=n,
        alpha=alpha,
        permutations=permutations,
        seed=seed,
    )


def _table(
    names: list[str],
    coefficient: Float[np.ndarray, "term unit"],
    partial_r: Float[np.ndarray, "term unit"],
    exceeding: Int[np.ndarray, "term unit"],
    permutations: int,
    alpha: float,
    constant: Bool[np.ndarray, " unit"],
) -> pd.DataFrame:
    p = (1 + exceeding) / (1 + permutations)
    q = np.ones_like(p)
    if not constant.all():
        q[:, ~constant] = false_discovery_control(p[:, ~constant], axis=1)
    columns = {"coefficient": coefficient, "partial_r": partial_r, "p": p, "q": q}
    return pd.DataFrame(
        {
            "unit": np.repeat(np.arange(len(constant)), len(names)),
            "term": names * len(constant),
            **{name: column.T.ravel() for name, column in columns.items()},
            "selective": (p <= alpha).T.ravel(),
            "constant": np.repeat(constant, len(names)),
        }
    )


def _check_settings(permutations: int, alpha: float) -> None:
    if not 0 < alpha < 1:
        raise InputError(f"alpha: found {alpha}; expected a level between 0 and 1, such as 0.01")
    if permutations < 1 or 1 / (1 + permutations) > alpha:
        raise InputError(
            f"permutations: found {permutations}, with which p is never under 1 / (1 + "
            f"permutations); expected more, so that it can reach alpha = {alpha}"
        )


def _standard(name: str, column: Any, n: int) -> np.ndarray:
    """A variable, standardised."""
    values = np.asarray(column)
    if values.shape != (n,):
        raise InputError(
            f"variable {name!r}: shape {values.shape}; expected one number for each of the {n} "
            "examples"
        )
    scaled, constant = standardised(values[:, None], f"variable {name!r}")
    if constant[0]:
        raise InputError(
            f"variable {name!r}: {values[0]} at all examples; expected at least two values: leave "
            "it out"
        )
    return scaled[:, 0]


def _products(
    main: Mapping[str, np.ndarray], interactions: Sequence[tuple[str, str]]
) -> dict[str, np.ndarray]:
    """Every interaction, standardised."""
    found: dict[str, np.ndarray] = {}
    pairs: set[frozenset[str]] = set()
    for pair in interactions:
        names = tuple(pair)
        usable = len(names) == 2 and names[0] != names[1] and set(names) <= set(main)
        name = " x ".join(map(str, names))
        if not usable or isinstance(pair, str) or frozenset(names) in pairs or name in main:
            raise InputError(
                f"interactions: found {pair!r}; expected pairs of two different variables, each "
                f"pair once, out of {', '.join(main)}"
            )
        pairs.add(frozenset(names))
        found[name] = _standard(name, main[names[0]] * main[names[1]], len(main[names[0]]))
    return found


def _inverse_correlations(
    design: Float[np.ndarray, "example term"], names: Sequence[str]
) -> Float[np.ndarray, "term term"]:
    """Inverse of the terms' correlation matrix.

    Its diagonal are the variance inflation factors. It is the covariance of the coefficients'
    estimates, but for a factor.
    """
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


def _warn_inflation(names: Sequence[str], inflation: Float[np.ndarray, " term"]) -> None:
    factors = zip(names, inflation, strict=True)
    high = [f"{name} {factor:.1f}" for name, factor in factors if factor > VIF_LIMIT]
    if high:
        warn(
            f"variance inflation above {VIF_LIMIT}: {', '.join(high)}; these terms are nearly "
            "collinear, so that their coefficients are unsure and selectivity for them is hard to "
            "detect"
        )


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

    The residuals of a unit given all terms but one are e = E + b x: E are its residuals given all
    terms, x (of length 1) is what is left of that term given the others. In the permuted data the
    partial correlation is <x, Pe> / |Pe without its part in the other terms|. So all that is needed
    of P is the part of PE and Px in the terms, one product for all units and terms: no
    permutation needs a fit.
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
