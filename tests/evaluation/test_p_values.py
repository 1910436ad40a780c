"""p-values of paired differences, and their corrections."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats

from mechcore.evaluation.intervals import mean_intervals
from mechcore.evaluation.p_values import adjusted_p, corrected, paired_p, step_down_p


def test_p_is_that_of_a_paired_t_test() -> None:
    rng = np.random.default_rng(3)
    for n in (2, 3, 40):
        rows = rng.normal(0.3, 1, (20, n)) * rng.uniform(1e-3, 1e3, (20, 1))
        wanted = stats.ttest_1samp(rows, 0, axis=1).pvalue
        np.testing.assert_allclose(paired_p(rows), wanted, rtol=1e-9)
        np.testing.assert_allclose(paired_p(-rows), wanted, rtol=1e-9)


@pytest.mark.parametrize("level", [0.8, 0.95, 0.999])
def test_p_of_answers_says_what_their_interval_does(level: float) -> None:
    rng = np.random.default_rng(5)
    for n in (2, 5, 60):
        rows = rng.choice([-1.0, 0, 0, 0, 0.5, 1], (200, n))
        ends = mean_intervals(rows, answers=True, level=level)
        outside = [interval.low > 0 or interval.high < 0 for interval in ends]
        assert (paired_p(rows, answers=True) < 1 - level).tolist() == outside
    assert any(outside)
    assert not all(outside)


def test_p_of_answers_by_hand() -> None:
    # 3 of 4 changed, with the two examples more: mean 3/6, squares 4/6, t = 0.5 / sqrt(5/12 / 6).
    rows = np.array([[1.0, 1, 1, 0], [0, 0, 0, 0]])
    wanted = 2 * stats.t.sf(0.5 / np.sqrt((4 / 6 - 0.25) / 6), 3)
    np.testing.assert_allclose(paired_p(rows, answers=True), [wanted, 1])
    np.testing.assert_array_equal(paired_p(np.array([[1.0], [0]]), answers=True), [1, 1])


def test_p_without_any_spread_by_hand() -> None:
    rows = np.array([[0.0, 0, 0, 0], [2, 2, 2, 2], [-1e-3, -1e-3, -1e-3, -1e-3], [1, 1, 1, 0]])
    mixed = stats.ttest_1samp(rows[-1], 0).pvalue
    np.testing.assert_allclose(paired_p(rows), [1, 1 / 8, 1 / 8, mixed])
    np.testing.assert_array_equal(paired_p(np.array([[0.0], [3.0]])), [1, 1])
    # Thousands of equal answers leave no number above 0, and no warning.
    np.testing.assert_array_equal(paired_p(np.ones((1, 5000))), [0])


def test_differences_by_rounding_are_none() -> None:
    rounding = 1e-6 * (1 + np.random.default_rng(0).random((1, 50)))
    assert stats.ttest_1samp(rounding[0], 0).pvalue < 1e-10
    np.testing.assert_array_equal(paired_p(rounding), [1])
    assert paired_p(1000 * rounding)[0] < 1e-10


def test_corrections_by_hand() -> None:
    p = np.array([0.01, 0.04, 0.03, 0.005])
    # Holm: 0.005 x 4, 0.01 x 3, 0.03 x 2, and 0.04 x 1 is not below the one before.
    np.testing.assert_allclose(adjusted_p(p, "holm"), [0.03, 0.06, 0.06, 0.02])
    # Benjamini-Hochberg: 0.04 x 4/4, 0.03 x 4/3, 0.01 x 4/2, 0.005 x 4.
    np.testing.assert_allclose(adjusted_p(p, "benjamini-hochberg"), [0.02, 0.04, 0.04, 0.02])
    np.testing.assert_array_equal(adjusted_p(p, "none"), p)
    np.testing.assert_array_equal(adjusted_p(np.array([0.6, 0.7]), "holm"), [1, 1])


@given(
    npst.arrays(float, st.integers(1, 12), elements=st.floats(0, 1)),
    st.sampled_from(["holm", "benjamini-hochberg", "none"]),
)
def test_corrected_p_values_keep_their_order_and_do_not_shrink(p: Any, correction: Any) -> None:
    adjusted = adjusted_p(p, correction)
    assert (adjusted >= p).all()
    assert (adjusted <= 1).all()
    order = np.argsort(p, kind="stable")
    assert (np.diff(adjusted[order]) >= 0).all()
    smallest = min(1, len(p) * p.min())
    if correction == "holm":
        assert adjusted.min() == pytest.approx(smallest)
        assert (adjusted >= adjusted_p(p, "benjamini-hochberg") - 1e-15).all()
    shuffled = adjusted_p(p[::-1], correction)
    np.testing.assert_array_equal(shuffled[::-1], adjusted)


def test_step_down_by_hand() -> None:
    """Two rows of two examples, all their resamples: both examples, or one of them twice.

    Shifted to a mean of 0, row a is -1 and 1, row b is -2 and 2. A resample with both examples has
    means 0, so t 0; one with an example twice has a mean and no spread, so an infinite t. Each is
    half of all resamples. The observed t are 2 / 1 and 1 / 2.
    """
    rows = np.array([[1.0, 3.0], [-1.0, 3.0]])
    n = 4000
    p = step_down_p(rows, n_resamples=n)
    np.testing.assert_allclose(p, [0.5, 0.5], atol=0.03)
    # With two examples more, the variance has 1 / 2 + mean ** 2 / 2 more. Observed: 0.5 / 0.935 and
    # 1 / 1; resamples of the first 0.5 / 0.791, of the second 0.
    p = step_down_p(np.array([[1.0, 0], [1, 1]]), answers=True, n_resamples=n)
    np.testing.assert_allclose(p, [0.5, 1 / (n + 1)], atol=0.03)


def test_a_row_beside_its_copies_is_corrected_for_nothing() -> None:
    rows = np.random.default_rng(0).normal(0.3, 1, (1, 40))
    (alone,) = step_down_p(rows)
    assert 0.01 < alone < 0.2
    scaled = np.array([1.0, 4.0, -0.5, 8.0])
    np.testing.assert_array_equal(step_down_p(rows * scaled[:, None]), [alone] * 4)
    _, holm = corrected(np.repeat(rows, 4, axis=0), "holm")
    assert holm[0] > 2 * alone
