"""Selectivity of units: designs worked out by hand, a literal Freedman-Lane loop, and its level."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mechcore.errors import InputError
from mechcore.papers.cognitive.probing.selectivity import Selectivity, selectivity

# Two variables of correlation 1/2, and a residual w that is orthogonal to them and to 1.
X1 = np.array([-1, -1, -1, -1, 1, 1, 1, 1])
X2 = np.array([-1, -1, -1, 1, -1, 1, 1, 1])
W = np.array([1, -1, 0, 0, 0, 1, -1, 0])
FOUR = {"a": [1, 2, 3, 5], "b": [1, 3, 2, 1]}
VARIABLES = ("context", "motion", "color", "choice")


def cognitive(n: int, seed: int = 0, graded: bool = True) -> dict[str, np.ndarray]:
    """Variables of the cognitive task, balanced where n is a multiple of 8.

    The choice is the sign of the evidence that is cued.
    """
    conditions = 2 * np.array(list(np.ndindex(2, 2, 2))) - 1
    context, motion, color = np.resize(conditions, (n, 3)).T
    choice = np.where(context > 0, motion, color)
    if graded:
        strengths = np.random.default_rng(seed).uniform(0.1, 1, (2, n))
        motion, color = motion * strengths[0], color * strengths[1]
    return {"context": context, "motion": motion, "color": color, "choice": choice}


def noise(n: int, units: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, units))


def by_term(result: Selectivity, column: str) -> pd.DataFrame:
    """[unit, term]."""
    return result.table.pivot(index="unit", columns="term", values=column)


def test_coefficients_of_correlated_variables_by_hand() -> None:
    # 2 x1 + x2 + w has the variance 4 + 1 + 2 * 2 * 1/2 + 1/2 = 15/2. What is left of x1 given x2
    # is x1 - x2 / 2, of variance 3/4; given x2 the unit has 4 * 3/4 + 1/2, of which x1 gives 3.
    states = (7 + 2 * X1 + X2 + W)[:, None]
    fitted = selectivity(states, {"a": X1, "b": X2}, permutations=99, alpha=0.05)
    assert fitted.table["unit"].tolist() == [0, 0]
    assert fitted.table["term"].tolist() == ["a", "b"]
    np.testing.assert_allclose(fitted.table["coefficient"], [2 / 7.5**0.5, 1 / 7.5**0.5])
    np.testing.assert_allclose(fitted.table["partial_r"], [(6 / 7) ** 0.5, (3 / 5) ** 0.5])
    # Two terms of correlation 1/2: their coefficients have the correlation -1/2.
    np.testing.assert_allclose(fitted.correlations.to_numpy(), [[1, -0.5], [-0.5, 1]])
    assert list(fitted.correlations) == fitted.correlations.index.tolist() == ["a", "b"]


def test_a_unit_that_the_terms_explain_wholly() -> None:
    states = np.stack([2 * X1 + X2, X1, X1 + W], axis=1).astype(float)
    fitted = selectivity(states, {"a": X1, "b": X2}, permutations=999, alpha=0.05)
    partial_r, p = by_term(fitted, "partial_r"), by_term(fitted, "p")
    np.testing.assert_allclose(partial_r, [[1, 1], [1, 0], [(3 / 5) ** 0.5, 0]], atol=1e-7)
    assert (p.to_numpy()[1:, 1] > 0.9).all()


def t_value(y: np.ndarray, design: np.ndarray, term: int) -> float:
    """Student's t of one term of a regression with a constant."""
    full = np.column_stack([np.ones(len(y)), design])
    beta, *_ = np.linalg.lstsq(full, y, rcond=None)
    variance = ((y - full @ beta) ** 2).sum() / (len(y) - full.shape[1])
    place = term + 1
    return float(beta[place] / np.sqrt(variance * np.linalg.inv(full.T @ full)[place, place]))


def literal_p(y: np.ndarray, design: np.ndarray, term: int, n: int, seed: int) -> float:
    """Freedman and Lane word by word: permute residuals, add the fit back, fit all, compare t."""
    others = np.column_stack([np.ones(len(y)), np.delete(design, term, axis=1)])
    fit = others @ np.linalg.lstsq(others, y, rcond=None)[0]
    generator = np.random.default_rng(seed)
    larger = 0
    for _ in range(n):
        permuted = np.empty_like(y)
        permuted[generator.permutation(len(y))] = y - fit
        larger += abs(t_value(fit + permuted, design, term)) >= abs(t_value(y, design, term))
    return (1 + larger) / (1 + n)


def test_p_and_partial_r_are_those_of_a_literal_loop() -> None:
    variables = cognitive(24)
    product = variables["context"] * (variables["motion"] - variables["motion"].mean())
    design = np.stack([*variables.values(), product], 1)
    states = noise(24, 3) + 0.3 * np.stack([design[:, 3], design[:, 1], 0 * design[:, 0]], 1)
    pairs = [("context", "motion")]
    fitted = selectivity(states, variables, interactions=pairs, permutations=79, alpha=0.05, seed=5)
    p, partial_r = by_term(fitted, "p"), by_term(fitted, "partial_r")
    for unit, state in enumerate(states.T):
        for j, term in enumerate([*variables, "context x motion"]):
            t = t_value(state, design, j)
            assert partial_r[term][unit] == pytest.approx(t / np.sqrt(t**2 + 24 - 6))
            assert p[term][unit] == literal_p(state, design, j, 79, seed=5)


def test_permutations_that_tie_count() -> None:
    # Of the 70 ways to deal 4 ones to 8 places, 2 have |r| = 1 with the variable, 32 more 1/2.
    x = np.repeat([-1, 1], 4)
    states = np.stack([x, np.array([1, -1, -1, -1, -1, 1, 1, 1])], axis=1)
    p = selectivity(states, {"x": x}, permutations=20_000).table["p"]
    assert p[0] == pytest.approx(2 / 70, abs=0.004)
    assert p[1] == pytest.approx(34 / 70, abs=0.011)


def test_blocks_of_permutations_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    variables, states = cognitive(30), noise(30, 4)
    whole = selectivity(states, variables, permutations=49, alpha=0.05)
    module = importlib.import_module("mechcore.papers.cognitive.probing.selectivity")
    monkeypatch.setattr(module, "_BLOCK", 30 * 4 * 8)  # 8 permutations
    pd.testing.assert_frame_equal(
        selectivity(states, variables, permutations=49, alpha=0.05).table, whole.table
    )


@pytest.fixture(scope="module")
def of_noise() -> Selectivity:
    """2000 units of pure noise, at the level 0.05."""
    pairs = [("context", "motion"), ("context", "color")]
    states, variables = noise(60, 2000), cognitive(60)
    return selectivity(states, variables, interactions=pairs, permutations=199, alpha=0.05)


def test_noise_is_selective_at_the_level_alone(of_noise: Selectivity) -> None:
    shares = by_term(of_noise, "selective").mean()
    assert len(shares) == 6
    assert (abs(shares - 0.05) <= 3 * (0.05 * 0.95 / 2000) ** 0.5).all()  # exact, not only safe


def largest_z(counts: pd.DataFrame) -> float:
    """How far counts are from what is expected, in standard errors, at rows where that is not 0."""
    rows = counts[counts["expected_correlated"] > 1e-4]
    expected = rows["expected_correlated"]
    error = np.sqrt(expected * (1 - expected) / counts["units"].sum())
    return float((abs(rows["share"] - expected) / error).max())


def test_the_share_expected_by_chance_knows_which_p_there_can_be() -> None:
    # Of 38 permutations p is a multiple of 1 / 39: it is at most 0.05 only where it is 1 / 39.
    signs = cognitive(320, graded=False)
    del signs["choice"]  # so that terms are uncorrelated, and tests are Binomial(3, 1 / 39)
    counts = selectivity(noise(320, 3000), signs, permutations=38, alpha=0.05).counts([*signs])
    expected = [(38 / 39) ** 3, 3 * 38**2 / 39**3, 3 * 38 / 39**3, 1 / 39**3]
    np.testing.assert_allclose(counts["expected_correlated"], expected, atol=0.002)
    assert largest_z(counts) < 3


def test_the_share_expected_by_chance_of_correlated_terms(of_noise: Selectivity) -> None:
    counts = of_noise.counts(VARIABLES)
    assert largest_z(counts) < 3
    assert counts["expected_correlated"].sum() == pytest.approx(1)
    # Binomial(4, 0.05), of uncorrelated terms, would expect 1.4 % of units to follow several.
    assert counts["expected_correlated"][2:].sum() > 0.02
    some = of_noise.counts(["motion", "choice"])
    assert largest_z(some) < 3
    assert counts["with_interaction"].sum() == some["with_interaction"].sum()
    either = counts["with_interaction"].sum() / 2000  # at most 0.1, at least that of one term
    assert 0.05 - 3 * 0.0049 < either < 0.1 + 3 * 0.0067


def test_constant_units_are_reported() -> None:
    variables = cognitive(60)
    states = noise(60, 4) + variables["context"][:, None]
    states[:, 1] = 3.7
    states[:, 2] = 0.1 + np.spacing(0.1) * (np.arange(60) % 2)  # rounding
    fitted = selectivity(states, variables, permutations=199)
    assert fitted.constant == (1, 2)
    rows = fitted.table[fitted.table["unit"].isin(fitted.constant)]
    assert (rows[["coefficient", "partial_r"]] == 0).all(axis=None)
    assert (rows["p"] == 1).all()
    assert not rows["selective"].any()
    counts = fitted.counts(VARIABLES)
    assert counts["units"].tolist() == [2, 2, 0, 0, 0]
    # Half of the units are not selective by necessity, the others with about 0.99 to the power 4.
    assert counts["expected_correlated"][0] == pytest.approx(0.5 + 0.5 * 0.9606, abs=0.005)


def test_signs_with_both_interactions_are_collinear() -> None:
    signs = cognitive(80, graded=False)
    pairs = [("context", "motion"), ("context", "color")]
    names = "motion, color, choice, context x motion, context x color"
    with pytest.raises(InputError, match=f"^terms {names}: collinear.*graded evidence"):
        selectivity(noise(80, 2), signs, interactions=pairs)
    # Graded evidence is not, nor are signs without the interactions.
    selectivity(noise(80, 2), cognitive(80), interactions=pairs, permutations=99)
    selectivity(noise(80, 2), signs, permutations=99)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"permutations": 98}, r"permutations: 98.*alpha = 0.01"),
        ({"variables": {"a": [1, 2]}}, r"variable 'a': 2 values for 8 examples"),
        ({"variables": {"a": [None] * 8}}, r"variable 'a': object values; expected numbers"),
        ({"variables": {"a": [4] * 8}}, r"variable 'a': 4 at all examples"),
        ({"variables": {"a": [1.0, np.nan] * 4}}, r"variable 'a': nan at example 1"),
        ({"states": np.ones(8)}, r"states: shape \(8,\)"),
        ({"states": np.ones((8, 0))}, r"states: shape \(8, 0\)"),
        ({"states": np.full((8, 2), np.inf)}, r"states: inf at example 0, unit 0"),
        ({"states": noise(4, 2), "variables": FOUR}, "4 examples for 2 terms.*at least 5"),
    ],
)
def test_what_cannot_be_used_is_named(changes: dict[str, Any], message: str) -> None:
    arguments = {"states": noise(8, 2), "variables": {"a": X1, "b": X2}, "permutations": 99}
    with pytest.raises(InputError, match=message):
        selectivity(**(arguments | changes))
