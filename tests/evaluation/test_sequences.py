"""Confidence sequences: values written out, and how often means are ever outside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechcore.errors import InputError
from mechcore.evaluation.sequences import confidence_sequence

LOOKS = (32, 48, 72, 108, 162, 243, 290)
N_ALL, N_RUNS = 300, 1000
TWO = np.array([2.0])


def test_the_first_examples_refute_what_is_written_out() -> None:
    # Two examples of a thousand, both 1 of at most 1; 0.5 and 1 in [0, 1] are 0 and 1 in [-1, 1].
    # Against a mean m from below 90 % of the capital are at stake at once: the first example makes
    # 1 + 0.9 / m (1 - m) of it, the second 1 + 0.9 / m' (1 - m') with m' = (1000 m - 1) / 999.
    low, high = confidence_sequence(np.ones((1, 2)), 1000, 0.5, np.ones(1))
    mean = (low[0] + 1) / 2
    later = (1000 * mean - 1) / 999
    first, second = (1 + 0.9 / m * (1 - m) for m in (mean, later))
    assert first * second == pytest.approx(2 / 0.5, rel=1e-6)
    assert high[0] == pytest.approx(1.0)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 40), st.integers(0, 2**32 - 1))
def test_all_examples_leave_the_mean_alone(n: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(-2, 3, (4, n)).astype(float)
    low, high = confidence_sequence(values, n, 0.05, np.array([2.0, 2, 3, 100]))
    np.testing.assert_allclose(low, values.mean(1), atol=1e-6)
    np.testing.assert_allclose(high, values.mean(1), atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.integers(0, 2**32 - 1))
def test_ends_know_what_is_possible(n: int, seed: int) -> None:
    """They lie between the means if all that is left is -1, and if it is 1."""
    values = np.random.default_rng(seed).integers(-1, 2, (3, n)).astype(float)
    low, high = confidence_sequence(values, 100, 0.05, np.ones(3))
    assert (low >= (values.sum(1) - (100 - n)) / 100 - 1e-9).all()
    assert (high <= (values.sum(1) + (100 - n)) / 100 + 1e-9).all()


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-6, 1e6), st.integers(0, 2**32 - 1))
def test_units_and_signs_do_not_matter(unit: float, seed: int) -> None:
    values = np.random.default_rng(seed).uniform(-1, 1, (2, 30))
    low, high = confidence_sequence(values, 200, 0.01, np.array([1.0, 1.5]))
    lower, higher = confidence_sequence(-unit * values, 200, 0.01, unit * np.array([1.0, 1.5]))
    np.testing.assert_allclose(lower, -unit * high, rtol=1e-5, atol=1e-6 * unit)
    np.testing.assert_allclose(higher, -unit * low, rtol=1e-5, atol=1e-6 * unit)


def _ever_outside(population: np.ndarray, error: float) -> float:
    """Share of random orders in which the mean is outside at some look."""
    rng = np.random.default_rng(1)
    values = np.stack([rng.permutation(population) for _ in range(N_RUNS)])
    outside, mean = np.zeros(N_RUNS, dtype=bool), population.mean()
    bounds = np.full(N_RUNS, 2.0)
    for n in LOOKS:
        low, high = confidence_sequence(values[:, :n], N_ALL, error, bounds)
        outside |= (mean < low - 1e-9) | (mean > high + 1e-9)
    return float(outside.mean())


@pytest.mark.parametrize(
    "shares",
    [(0.02, 0.02, 0.9, 0.03, 0.03), (0.0, 0.5, 0.0, 0.5, 0.0), (0.0, 0.0, 0.98, 0.0, 0.02)],
)
def test_a_stop_at_any_look_keeps_the_error_rate(shares: tuple[float, ...]) -> None:
    population = np.random.default_rng(0).choice([-2.0, -1, 0, 1, 2], N_ALL, p=shares)
    assert _ever_outside(population, 0.2) <= 0.2


def test_a_value_over_its_bound_is_refused() -> None:
    with pytest.raises(InputError, match=r"a value of size 2\.5; expected at most 2"):
        confidence_sequence(np.full((1, 5), 2.5), 10, 0.05, TWO)
