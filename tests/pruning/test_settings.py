"""Schedules against written-out numbers, and settings that make no sense."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechcore.errors import InputError
from mechcore.pruning import PRESETS, PruneSettings, prune_settings
from mechcore.pruning.settings import as_runs

# -- presets --------------------------------------------------------------------------------------


def test_wanted_sparsity_of_the_paper() -> None:
    # At 50 % the rise ends at 6500 + 50 * 50 = 9000, at 70 % at 6500 + 50 * 70 = 10000.
    half = {0: 0.0, 900: 0.05, 4500: 0.25, 8999: 0.5 * 8999 / 9000, 9000: 0.5, 9299: 0.5}
    more = {1000: 0.07, 9999: 0.69993, 10419: 0.7}
    for target, wanted in ((0.5, half), (0.7, more), (0.0, {3000: 0.0})):
        sparsities = [PRESETS["paper"].wanted_sparsity(target, step) for step in wanted]
        assert sparsities == pytest.approx([*wanted.values()], abs=1e-12)


def test_learning_rates_of_the_paper() -> None:
    # They rise over 200 steps, and fall from 1 at step 200 to 0 at step 9300.
    rates = {0: 1 / 200, 99: 0.5, 199: 1.0, 200: 1.0, 4750: 0.5, 7025: 0.25, 9299: 1 / 9100}
    shares = [PRESETS["paper"].rate(0.5, step) for step in rates]
    assert shares == pytest.approx([*rates.values()], abs=1e-12)
    paper = PRESETS["paper"]
    assert (paper.lr, paper.lr_lambda, paper.weight_decay) == (0.1, 1.0, 0.01)


def test_the_fast_preset_is_the_default_and_as_long_for_every_target() -> None:
    fast = PRESETS["fast"]
    assert fast == PruneSettings()
    assert [fast.total_steps(target) for target in (0.0, 0.5, 0.95)] == [400] * 3
    # The target rises over 240 steps; the rates rise over 20 and fall over 380.
    assert [fast.wanted_sparsity(0.5, step) for step in (0, 120, 240, 399)] == [0, 0.25, 0.5, 0.5]
    rates = [fast.rate(0.5, step) for step in (0, 19, 20, 210, 399)]
    assert rates == pytest.approx([0.05, 1.0, 1.0, 0.5, 1 / 380])


@given(
    st.builds(
        PruneSettings,
        steps=st.integers(1, 40),
        steps_per_percent=st.floats(1, 3),
        ramp=st.floats(0.05, 1),
        ramp_per_percent=st.floats(0, 1),
        warmup=st.integers(0, 60),
    ),
    st.floats(0, 1, exclude_max=True),
)
def test_schedules_rise_to_the_target_and_rates_are_shares(
    settings: PruneSettings, target_sparsity: float
) -> None:
    total = settings.total_steps(target_sparsity)
    # total is rounded to a whole step, so the rise may end half a step after it.
    wanted = [settings.wanted_sparsity(target_sparsity, step) for step in range(total + 2)]
    assert wanted == sorted(wanted)
    assert (wanted[0], wanted[-1]) == (0, target_sparsity)
    assert all(0 < settings.rate(target_sparsity, step) <= 1 for step in range(total))


# -- choosing settings ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": "slow"}, r"pruning: unknown preset 'slow'; expected fast or thorough or paper"),
        ({"step": 100}, r"pruning: unknown setting 'step'; expected steps, steps_per_percent, "),
        ({"steps": 1.5}, r"pruning: steps is 1\.5; expected a whole number"),
        ({"sparsity": "drawn"}, r"pruning: sparsity is 'drawn'; expected 'expected' or 'sampled'"),
        ({"steps": 0}, r"pruning: steps is 0; expected a whole number from 1"),
    ],
)
def test_changes_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prune_settings(**changes)


def test_the_target_cannot_rise_for_longer_than_the_training() -> None:
    assert PruneSettings(steps_per_percent=2.0, ramp_per_percent=2.0).total_steps(0.5) == 500
    with pytest.raises(InputError, match=r"expected at most steps_per_percent \(2\.0\)"):
        PruneSettings(steps_per_percent=2.0, ramp_per_percent=2.1)


@pytest.mark.parametrize(
    ("seeds", "target_sparsities", "message"),
    [
        ([1], [0.5, 1.0], r"sparsity 1\.0: expected a share"),
        ([1], [-0.1], r"sparsity -0\.1: expected a share"),
        ([1], [math.nan], "sparsity nan: expected a share"),
        ([1, 2, 1], [0.5], r"seeds \[1, 2, 1\]: expected at least one, each once"),
        ([1], [0.5, 0.5], r"sparsities \[0\.5, 0\.5\]: expected at least one, each once"),
        ([], [0.5], r"seeds \[\]: expected at least one"),
        ([1], [], r"sparsities \[\]: expected at least one"),
        ([-1], [0.5], "seed -1: expected a whole number from 0"),
        ([2**63], [0.5], "seed 9223372036854775808: expected a whole number from 0 to"),
    ],
)
def test_runs_that_make_no_sense(
    seeds: list[int], target_sparsities: list[float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        as_runs(target_sparsities, seeds)
