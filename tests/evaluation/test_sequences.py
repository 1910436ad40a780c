"""Confidence sequences: values written out, and how often means are ever outside."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechcore.errors import InputError
from mechcore.evaluation.sequences import bounded_sequence, normal_sequence

LOOKS = (32, 48, 72, 108, 162, 243, 290)
N_ALL, N_RUNS = 300, 1000


def test_bounds_are_where_the_evidence_against_a_mean_reaches_the_error_rate() -> None:
    """The t test's likelihood ratio, mixed over effect sizes of variance 1/4, computed as such."""
    values = np.random.default_rng(0).gamma(2.0, size=40)
    low, high = normal_sequence(values[None], math.inf, 0.01)

    def evidence(mean: float) -> float:
        squares = ((values - mean) ** 2).mean()
        explained = 40 / 44 * (values.mean() - mean) ** 2 / squares
        return math.sqrt(4 / 44) * (1 - explained) ** (-40 / 2)

    assert evidence(low[0]) == pytest.approx(100)
    assert evidence(high[0]) == pytest.approx(100)
    assert evidence(values.mean()) < 1


def test_bounds_of_some_of_all_examples_are_those_of_a_bridge() -> None:
    # 400 of 800: a Brownian bridge at its half, as a Brownian motion is at 800; mean 2, spread 1.
    low, high = normal_sequence(np.array([[1.0, 3.0] * 200]), 800, 0.01)
    of_motion = math.sqrt((800 + 4) / 800**2 * math.log((800 + 4) / (4 * 0.01**2)))
    assert (high[0] - low[0]) / 2 == pytest.approx(of_motion, rel=0.02)  # of estimated variance
    assert (high[0] + low[0]) / 2 == pytest.approx(2)


def test_draws_from_a_distribution_are_the_limit_of_many_examples() -> None:
    values = np.random.default_rng(0).normal(size=(3, 50))
    for some, all_of_them in zip(
        normal_sequence(values, 10**9, 0.05), normal_sequence(values, math.inf, 0.05), strict=True
    ):
        np.testing.assert_allclose(some, all_of_them, rtol=1e-6)


def test_too_few_examples_bound_nothing() -> None:
    low, high = normal_sequence(np.array([[0.0, 1.0, 2.0]]), 100, 1e-6)
    assert (low[0], high[0]) == (-math.inf, math.inf)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 40), st.integers(0, 2**32 - 1))
def test_all_examples_leave_the_mean_alone(n: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(-2, 3, (4, n)).astype(float)
    for low, high in (normal_sequence(values, n, 0.05), bounded_sequence(values, n, 0.05, 2)):
        np.testing.assert_allclose(low, values.mean(1), atol=1e-9)
        np.testing.assert_allclose(high, values.mean(1), atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.integers(0, 2**32 - 1))
def test_bounds_know_what_is_possible(n: int, seed: int) -> None:
    """They lie between the means if all that is left is -1, and if it is 1."""
    values = np.random.default_rng(seed).integers(-1, 2, (3, n)).astype(float)
    low, high = bounded_sequence(values, 100, 0.05, 1)
    assert (low >= (values.sum(1) - (100 - n)) / 100 - 1e-9).all()
    assert (high <= (values.sum(1) + (100 - n)) / 100 + 1e-9).all()


def _ever_outside(population: np.ndarray, error: float, bound: float | None) -> float:
    """Share of random orders in which the mean is outside at some look."""
    rng = np.random.default_rng(1)
    values = np.stack([rng.permutation(population) for _ in range(N_RUNS)])
    outside = np.zeros(N_RUNS, dtype=bool)
    for n in LOOKS:
        if bound is None:
            low, high = normal_sequence(values[:, :n], N_ALL, error)
        else:
            low, high = bounded_sequence(values[:, :n], N_ALL, error, bound)
        mean = population.mean()
        outside |= (mean < low - 1e-9) | (mean > high + 1e-9)
    return float(outside.mean())


@pytest.mark.parametrize("error", [0.05, 0.2])
def test_a_stop_at_any_look_keeps_the_error_rate_for_normal_values(error: float) -> None:
    population = np.random.default_rng(0).normal(0.3, 2, N_ALL)
    assert _ever_outside(population, error, None) <= error


@pytest.mark.parametrize("shares", [(0.02, 0.02, 0.9, 0.03, 0.03), (0.0, 0.5, 0.0, 0.5, 0.0)])
def test_a_stop_at_any_look_keeps_the_error_rate_for_answers(shares: tuple[float, ...]) -> None:
    population = np.random.default_rng(0).choice([-2.0, -1, 0, 1, 2], N_ALL, p=shares)
    outside = _ever_outside(population, 0.2, 2)
    assert outside <= 0.2


def test_rare_effects_are_what_normal_bounds_miss_and_bounds_of_answers_do_not() -> None:
    """What the module on races warns of: in 2 examples of 100, none of which may be seen."""
    population = np.zeros(N_ALL)
    population[:6] = 2.0
    assert _ever_outside(population, 0.05, None) > 0.2
    assert _ever_outside(population, 0.05, 2) <= 0.05


def test_bounds_of_answers_are_of_use() -> None:
    """They tell an effect of 1/2 from none after a quarter of 400 examples."""
    values = np.random.default_rng(0).choice([0.0, 1.0], (20, 100))
    low, high = bounded_sequence(values, 400, 0.01, 1)
    assert (low > 0.15).all()
    assert (high < 0.85).all()


@pytest.mark.parametrize(
    ("values", "n_all", "error", "message"),
    [
        (np.zeros((1, 1)), 10, 0.05, "1 examples seen; expected from 2 to all 10"),
        (np.zeros((1, 11)), 10, 0.05, "11 examples seen; expected from 2 to all 10"),
        (np.zeros((1, 5)), 10, 0.0, "error rate 0.0; expected between 0 and 1"),
        (np.full((1, 5), 1.5), 10, 0.05, "a value of size 1.5; expected at most 1"),
    ],
)
def test_what_cannot_be_bounded_is_refused(
    values: np.ndarray, n_all: int, error: float, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        bounded_sequence(values, n_all, error, 1)
