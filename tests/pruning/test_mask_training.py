"""The training of one mask, driven by hand: multipliers, histories, saving and diagnoses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from mechcore.components import ModelShape
from mechcore.pruning import PruneSettings, discretise, hard_concrete
from mechcore.pruning.hard_concrete import deterministic, probability_of_zero, sample
from mechcore.pruning.mask_training import MaskTraining, OffTrackError

SHAPE = ModelShape(2, 2)
COLUMNS = ["kl", "sparsity", "wanted_sparsity", "lambda1", "lambda2"]
NOTHING = torch.zeros(2, 3)


def one_draw(**settings: Any) -> PruneSettings:
    """A schedule with one draw a step."""
    return PruneSettings(**({"draws": 1, "lr_lambda": 0.1} | settings))


def trained(
    settings: PruneSettings,
    target_sparsity: float = 0.5,
    seed: int = 1,
    gradient: Callable[[int], torch.Tensor] = lambda step: NOTHING,
) -> MaskTraining:
    """A training that met these gradients, and a KL of 0.25 per step number."""
    training = MaskTraining(settings, SHAPE, target_sparsity, seed)
    while not training.is_done:
        training.draw()
        training.update(0.25 * training.step, gradient(training.step))
    return training


# -- the multipliers ------------------------------------------------------------------------------

HALF = -math.log(11 ** (2 / 3))
"""The log_alpha at which P(z = 0) is 1/2."""


def test_histories_by_hand() -> None:
    # Scores that never move have the expected sparsity 1/2. The target 1/2 rises over all ten
    # steps, so the gaps t - s are -0.50, -0.45 and -0.40. Ascent on lambda1 (t - s) by Adam with
    # the rates 1, 0.9 and 0.8:
    #   step 0: m = -0.05, v = 0.00025; their bias-free values are -0.5 and 0.25: -1.
    #   step 1: m = -0.045 - 0.045 = -0.09, v = 0.00024975 + 0.0002025 = 0.00045225;
    #           -0.09 / 0.19 = -0.4736842, 0.00045225 / 0.001999 = 0.2262381, its root 0.4756450:
    #           -0.9 * 0.9958776 = -0.8962899.
    # and on lambda2 (t - s)^2, whose gradients are 0.25, 0.2025 and 0.16:
    #   step 0: 1.
    #   step 1: m = 0.0225 + 0.02025 = 0.04275, v = 0.0000624375 + 0.000041006 = 0.0001034438;
    #           0.04275 / 0.19 = 0.225, 0.0001034438 / 0.001999 = 0.0517478, its root 0.2274815:
    #           0.9 * 0.9890918 = 0.8901826.
    settings = one_draw(
        steps=10, ramp=1.0, warmup=0, lr=0.0, lr_lambda=1.0, log_alpha_mean=HALF, log_alpha_std=0.0
    )
    subnetwork = trained(settings).subnetwork()
    assert list(subnetwork.history.columns) == COLUMNS
    assert len(subnetwork.history) == 10
    expected = [
        [0.00, 0.5, 0.00, 0.0, 0.0],
        [0.25, 0.5, 0.05, -1.0, 1.0],
        [0.50, 0.5, 0.10, -1.8962899, 1.8901826],
    ]
    for row, numbers in zip(subnetwork.history.to_numpy().tolist(), expected, strict=False):
        assert row == pytest.approx(numbers, abs=1e-6)
    assert subnetwork.history["wanted_sparsity"].tolist() == pytest.approx(
        [0.05 * step for step in range(10)]
    )
    assert torch.equal(subnetwork.scores, torch.full((2, 3), HALF))


def test_each_of_several_draws_has_its_own_sampled_sparsity() -> None:
    """As micro-batches have, whose losses are averaged: the mean of squares, not its square."""
    settings = PruneSettings(
        steps=2, warmup=0, draws=4, batch_size=4, sparsity="sampled", tolerance=1,
        log_alpha_mean=0.0, ramp=1.0, lr=0.0, lr_lambda=0.1,
    )  # fmt: skip
    training = MaskTraining(settings, SHAPE, 0.5, 3)
    gaps = training.draw().mean((1, 2)) - 1  # t - s, with t 0 at first
    training.update(0.0, torch.zeros(4, 2, 3))
    moments = [training.optimiser.state[training.multipliers]["exp_avg"].tolist()]
    # Ascent: Adam's first moment is a tenth of minus the gradient.
    expected = [-0.1 * float(gaps.mean()), -0.1 * float((gaps**2).mean())]
    assert moments == [pytest.approx(expected, abs=1e-6)]
    assert float(gaps.std()) > 0.05


def test_masks_of_one_seed_share_their_noise_whatever_their_target() -> None:
    first, same, other = (
        MaskTraining(one_draw(log_alpha_mean=0.0), SHAPE, target, seed).draw()
        for target, seed in ((0.3, 1), (0.7, 1), (0.3, 2))
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_weight_decay_shrinks_scores_and_multipliers_by_rate_times_decay() -> None:
    """AdamW, as torch defines it: x (1 - rate decay) before the step, here one without gradient."""
    settings = one_draw(
        steps=1, warmup=0, lr=0.5, lr_lambda=1.0, weight_decay=0.1, log_alpha_mean=60.0,
        log_alpha_std=0.0, tolerance=1, ramp=1.0,
    )  # fmt: skip
    training = MaskTraining(settings, SHAPE, 0.5, 9)
    with torch.no_grad():
        training.multipliers += 2.0
    training.draw()
    training.update(0.0, NOTHING)  # at 60, gates are open and gradients under rounding
    torch.testing.assert_close(training.log_alpha.detach(), torch.full((2, 3), 60 * 0.95))
    # The distance is 0 at the first step: t = s = 0.
    assert training.multipliers.tolist() == pytest.approx([2 * 0.9] * 2, abs=1e-3)


# -- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_training_that_is_not_finite_is_off_track(bad: float, where: str) -> None:
    training = MaskTraining(one_draw(steps=4, log_alpha_mean=0.0), SHAPE, 0.5, 7)
    training.draw()
    training.update(0.1, NOTHING)
    values = training.draw()
    gradient = NOTHING.clone()
    gradient.view(-1)[int((values - 0.5).abs().argmin())] = bad
    message = r"target 0\.5, seed 7 diverged: its loss or scores are not finite after step 1"
    with pytest.raises(OffTrackError, match=message):
        training.update(*((bad, NOTHING) if where == "loss" else (0.1, gradient)))


def ended(course: list[float]) -> MaskTraining:
    """A training whose sparsity took this course to 0.6, which is wanted from half of it on."""
    settings = one_draw(steps=len(course), ramp=0.5, warmup=0, lr=0.0, tolerance=0.2)
    state = trained(settings, 0.6).state()
    state["history"][:, COLUMNS.index("sparsity")] = torch.tensor(course)
    training = MaskTraining(settings, SHAPE, 0.6, 1)
    training.restore(state)
    return training


# The target is 0.6 * step / 4.5: 0.267 at step 2, then 0.533, then 0.6.
@pytest.mark.parametrize(
    ("course", "diagnosis"),
    [
        (
            [0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.3, 0.35],
            "ended at 0.350 (tolerance: 0.2), so its ranking means little. It "
            "was 0.00 at step 2 (wanted 0.27), 0.10 at step 4 (wanted 0.53), 0.20 at step 6 "
            "(wanted 0.60); use more steps (now 9: --prune-steps 18) or a larger lr_lambda "
            "(now 0.1: --prune-settings lr_lambda=0.2): the multipliers react too late",
        ),
        (
            [0.0, 0.2, 0.5, 0.7, 0.9, 0.9, 0.9, 0.9, 0.85],
            "use more steps (now 9: --prune-steps 18) or a smaller lr_lambda "
            "(now 0.1: --prune-settings lr_lambda=0.05): the multipliers overshoot",
        ),
    ],
)
def test_a_sparsity_off_its_target_is_diagnosed(course: list[float], diagnosis: str) -> None:
    with pytest.raises(OffTrackError, match=r"^the sparsity of target 0\.6, seed 1 ") as failure:
        ended(course).subnetwork()
    assert str(failure.value).endswith(diagnosis)


def test_no_stronger_reaction_is_advised_for_a_sparsity_that_swings() -> None:
    with pytest.raises(OffTrackError) as failure:
        ended([0.0, 0.2, 0.6, 0.9, 0.95, 0.9, 0.7, 0.5, 0.35]).subnetwork()
    assert "larger lr_lambda" not in str(failure.value)


def test_a_mask_that_no_threshold_keeps_anything_of_is_off_track() -> None:
    settings = one_draw(
        steps=2, warmup=0, lr=0.0, tolerance=1, log_alpha_mean=-20.0, discretisation="threshold"
    )
    with pytest.raises(OffTrackError, match=r"target 0\.6, seed 1 keeps no component"):
        trained(settings, 0.6).subnetwork()


def test_the_result_is_a_ranking_or_a_threshold() -> None:
    # All deterministic mask values are well above the highest threshold, but for none of them.
    high: dict[str, Any] = {"steps": 2, "lr": 0.0, "log_alpha_mean": 9.0, "tolerance": 1}
    ranked = trained(one_draw(**high)).subnetwork()
    assert ranked.mask == discretise(ranked.scores, 0.5, SHAPE)
    assert len(ranked.mask.kept) == 3
    by_threshold = trained(one_draw(**high, discretisation="threshold")).subnetwork()
    assert len(by_threshold.mask.kept) == 6
    assert torch.equal(by_threshold.scores, ranked.scores)
    assert (ranked.target_sparsity, ranked.seed, ranked.method) == (0.5, 1, "l0")
    # No ranking has a mask for a target that rounds to all six; the nearest threshold has one.
    high["log_alpha_std"] = 8.0
    extreme = trained(one_draw(**high, discretisation="threshold"), 0.95).subnetwork()
    wanted = hard_concrete.deterministic(extreme.scores) > 0.95
    assert torch.equal(extreme.mask.values, wanted.float())


# -- The hard concrete distribution against written-out values and sampled frequencies


noise = st.floats(0, 1, exclude_max=True, allow_nan=False, width=32)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_probability_of_zero_by_hand() -> None:
    # P(z = 0) = P(s < 1/12) = P(logit u < 2/3 log(1/11) - log_alpha)
    #          = 1 / (1 + exp(log_alpha) 11^(2/3)), and 11^(2/3) = 4.946087.
    expected = tensor(1 / 5.9460874, 1 / (1 + 2 * 4.9460874), 0.5)
    p = probability_of_zero(tensor(0.0, math.log(2), -math.log(4.9460874)))
    torch.testing.assert_close(p, expected, rtol=0, atol=1e-8)


def test_the_deterministic_mask_by_hand() -> None:
    # 1.2 sigmoid(log_alpha) - 0.1, without noise and without beta. The sigmoids are 1/2, 3/4, 1/4,
    # 9/10 and 1/10; from 11/12 on and up to 1/12 the mask is exactly 1 and 0.
    log_alpha = tensor(0.0, math.log(3), -math.log(3), math.log(9), -math.log(9))
    expected = tensor(0.5, 0.8, 0.2, 0.98, 0.02)
    torch.testing.assert_close(deterministic(log_alpha), expected, rtol=0, atol=1e-12)
    beyond = tensor(math.log(11) + 1e-6, 20.0, -math.log(11) - 1e-6, -20.0)
    assert deterministic(beyond).tolist() == [1, 1, 0, 0]
    short = tensor(math.log(11) - 1e-3, -math.log(11) + 1e-3)
    high, low = deterministic(short).tolist()
    assert 0 < low < 1e-3
    assert 1 - 1e-3 < high < 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_alpha", [-100.0, -10.0, 0.0, 10.0, 100.0])
def test_gradients_stay_finite_at_extreme_noise(dtype: torch.dtype, log_alpha: float) -> None:
    last = torch.nextafter(torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype)).item()
    uniform = torch.tensor([0.0, 1e-30, 0.5, last], dtype=dtype)
    leaf = torch.full((4,), log_alpha, dtype=dtype, requires_grad=True)
    values = sample(leaf, uniform)
    (values.sum() + probability_of_zero(leaf).sum()).backward()
    assert bool(values.isfinite().all())
    assert leaf.grad is not None
    assert bool(leaf.grad.isfinite().all())
