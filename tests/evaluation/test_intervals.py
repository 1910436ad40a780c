"""Intervals of means: by hand, and against resamples drawn one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats

from mechcore.errors import InputError
from mechcore.evaluation.intervals import (
    Interval,
    drawn_clusters,
    mean_intervals,
    ratio_intervals,
    share_interval,
)


def mean_interval(values: np.ndarray, **options: Any) -> Interval:
    return mean_intervals(values[None], **options)[0]


def test_differences_of_answers_by_hand() -> None:
    """One of four answers becomes wrong: 1, 0, 0, 0, and then 1 and -1 as well.

    Of these six the mean is 1/6 and the variance (1 + 1 + 1) / 6 - 1 / 36 = 17 / 36. Only half of
    each more example is counted: (1 + 1) / 6 - 1 / 36 = 11 / 36, so that the standard error is
    sqrt(11 / 36 / 6) = 0.22567; Student's t with 3 degrees of freedom is 3.18245.
    """
    interval = mean_interval(np.array([1.0, 0, 0, 0]), answers=True)
    assert interval.mean == 0.25
    assert interval.low == pytest.approx(1 / 6 - 3.18245 * 0.22567, abs=1e-4)
    assert interval.high == pytest.approx(1 / 6 + 3.18245 * 0.22567, abs=1e-4)


def test_no_answer_that_changes_does_not_say_that_none_ever_does() -> None:
    few, many = (mean_interval(np.zeros(n), answers=True) for n in (30, 3000))
    assert -few.low == few.high == pytest.approx(2.04523 / 32, abs=1e-5)  # sqrt(1 / 32 / 32)
    assert many.high < few.high / 90
    every = mean_interval(np.ones(4), answers=True)
    assert (every.mean, every.high) == (1, 1)
    assert every.low < 0.5


def test_a_share_by_hand() -> None:
    """Wilson, 9 of 10: (0.9 + z2 / 20 -+ z sqrt(0.009 + z2 / 400)) / (1 + z2 / 10), z = 1.95996."""
    interval = share_interval(np.array([True] * 9 + [False]))
    assert interval.mean == 0.9
    assert interval.low == pytest.approx(0.59585, abs=1e-5)
    assert interval.high == pytest.approx(0.98212, abs=1e-5)
    none = share_interval(np.zeros(10, dtype=bool))
    assert (none.low, none.high) == (0, pytest.approx(0.27753, abs=1e-5))


def test_measured_values_against_resamples_one_by_one() -> None:
    values = np.random.default_rng(5).exponential(size=20)
    interval = mean_interval(values, n_resamples=300, level=0.9, seed=3)
    counts = drawn_clusters(np.random.default_rng(3), 20, 300)
    t = []
    for column in counts.T:
        drawn = np.repeat(values, column)
        t.append((drawn.mean() - values.mean()) / (drawn.std(ddof=1) / math.sqrt(20)))
    low, high = np.quantile(t, [0.05, 0.95])
    student, error = stats.t.ppf(0.95, 19), values.std(ddof=1) / math.sqrt(20)
    assert high < student < -low  # skewed to the right: the upper end is farther away
    assert interval.low == pytest.approx(values.mean() - student * error)
    assert interval.high == pytest.approx(values.mean() - low * error)


def test_rows_share_their_resamples() -> None:
    values = np.random.default_rng(0).random((2, 50))
    pair = mean_intervals(np.stack([values[0], values[0] + 1]), seed=4)
    assert pair[1].low == pytest.approx(pair[0].low + 1)
    alone, again, other = (mean_interval(values[0], seed=seed) for seed in (4, 4, 5))
    assert pair[0].low == pytest.approx(alone.low)
    assert alone == again
    assert alone != other


@given(
    npst.arrays(float, st.integers(2, 40), elements=st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0])),
    st.booleans(),
)
def test_the_mean_is_inside_and_signs_mirror(values: np.ndarray, answers: bool) -> None:
    plain, mirrored = (mean_interval(v, answers=answers, n_resamples=50) for v in (values, -values))
    assert plain.low <= plain.mean + 1e-12
    assert plain.mean <= plain.high + 1e-12
    assert (mirrored.low, mirrored.high) == pytest.approx((-plain.high, -plain.low), abs=1e-9)


def test_one_example_has_no_interval_and_none_is_an_error() -> None:
    intervals = [
        *(mean_interval(np.array([1.0]), answers=answers) for answers in (True, False)),
        share_interval(np.array([True])),
        *ratio_intervals(np.array([[2.0]]), np.array([[2.0]])),
    ]
    for single in intervals:
        assert single.mean == 1
        assert math.isnan(single.low)
        assert math.isnan(single.high)
    empty = np.array([])
    for interval in (
        lambda: mean_interval(empty),
        lambda: share_interval(empty.astype(bool)),
        lambda: ratio_intervals(empty[None], empty[None]),
    ):
        with pytest.raises(InputError, match="no example"):
            interval()


@pytest.mark.parametrize("level", [95, 1, 0, -0.5, math.nan])
def test_a_level_that_is_no_share_is_an_error(level: float) -> None:
    values = np.ones((1, 4))
    for interval in (
        lambda: mean_intervals(values, level=level),
        lambda: mean_intervals(values, answers=True, level=level),
        lambda: ratio_intervals(values, values, level=level),
    ):
        with pytest.raises(InputError, match=f"level is {level}; expected a share such as 0.95"):
            interval()
    with pytest.raises(InputError, match="n_resamples is 0; expected at least 1"):
        mean_intervals(values, n_resamples=0)


def test_a_ratio_by_hand() -> None:
    """Over 1 for all, Fieller's interval is that of the mean.

    2, 4 and 6 have the mean 4, and Student's t with 2 degrees of freedom is 4.30265; 2 and 4 have
    the mean 3 with the standard error 1, and t with 1 is 12.7062.
    """
    for values, reach in (([2.0, 4, 6], 4.30265 * 2 / 3**0.5), ([2.0, 4], 12.7062)):
        (ratio,) = ratio_intervals(np.array([values]), np.ones((1, len(values))))
        middle = sum(values) / len(values)
        ends = (ratio.mean, ratio.low, ratio.high)
        assert ends == pytest.approx((middle, middle - reach, middle + reach), rel=1e-5)


@pytest.mark.parametrize("answers", [False, True])
def test_ends_of_a_ratio_are_where_the_difference_may_just_be_0(answers: bool) -> None:
    rng = np.random.default_rng(1)
    over = (rng.random(60) < 0.7).astype(float) if answers else rng.normal(2, 1, 60)
    values = over * (rng.random(60) < 0.4) if answers else 0.5 * over + rng.normal(0, 0.5, 60)
    (interval,) = ratio_intervals(values[None], over[None], answers=answers, level=0.9)
    assert interval.mean == pytest.approx(values.mean() / over.mean())
    for ratio in (interval.low, interval.high):
        rest = values - ratio * over
        if answers:  # half an example each way for both, and what is neither: two more in all
            more = [0.5 * (value - ratio * base) ** 2 for value, base in PSEUDO]
            mean = rest.sum() / 62
            error = np.sqrt((((rest**2).sum() + sum(more)) / 62 - mean**2) / 62)
        else:
            mean, error = rest.mean(), rest.std(ddof=1) / 60**0.5
        assert abs(mean) == pytest.approx(stats.t.ppf(0.95, 59) * error)


PSEUDO = [(1, 0), (-1, 0), (0, 1), (0, -1)]


def test_a_ratio_over_what_may_be_0_has_no_interval() -> None:
    (interval,) = ratio_intervals(np.array([[1.0, 2, 3]]), np.array([[1.0, -1, 0.5]]))
    assert interval.mean == pytest.approx(2 / (0.5 / 3))
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
