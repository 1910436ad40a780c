"""The hard concrete distribution against written-out values and sampled frequencies."""

import math

import pytest
import torch
from hypothesis import strategies as st

from mechcore.pruning.hard_concrete import deterministic, probability_of_zero, sample

logits = st.floats(-12, 12, allow_nan=False)
noise = st.floats(0, 1, exclude_max=True, allow_nan=False, width=32)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_samples_by_hand() -> None:
    # u = 1/2 adds no noise: s = sigmoid(1.5 log_alpha), stretched to 1.2 s - 0.1.
    # log_alpha = 0: s = 1/2. log_alpha = 2/3: s = 1 / (1 + 1/e) = 0.731059.
    # u = 0.8: log(u / (1 - u)) = log 4 = 1.386294, s = 4^1.5 / (1 + 4^1.5) = 8/9.
    # u = 0.2 mirrors it: s = 1/9, and 1.2/9 - 0.1 = 1/30.
    # log_alpha = -log 4 takes the noise of u = 0.8 away again.
    log_alpha = tensor(0.0, 2 / 3, 0.0, 0.0, -math.log(4))
    uniform = tensor(0.5, 0.5, 0.8, 0.2, 0.8)
    expected = tensor(0.5, 1.2 * 0.7310585786 - 0.1, 1.2 * 8 / 9 - 0.1, 1 / 30, 0.5)
    # The noise is squeezed into [1e-6, 1 - 1e-6], hence the tolerance.
    torch.testing.assert_close(sample(log_alpha, uniform), expected, rtol=0, atol=2e-6)


def test_the_ends_are_clamped_to_exact_zeros_and_ones() -> None:
    # s < 1/12 gives 0 and s > 11/12 gives 1: at log_alpha = 0 these are u < 1 / (1 + 11^(2/3))
    # = 0.168173 and u > 0.831827.
    uniform = tensor(0.16816, 0.16819, 0.83181, 0.83184)
    low, above, under, high = sample(torch.zeros(4, dtype=torch.float64), uniform).tolist()
    assert (low, high) == (0.0, 1.0)
    assert 0 < above < 1e-4
    assert 1 - 1e-4 < under < 1


def test_the_probability_of_zero_by_hand() -> None:
    # P(z = 0) = P(s < 1/12) = P(logit u < 2/3 log(1/11) - log_alpha)
    #          = 1 / (1 + exp(log_alpha) 11^(2/3)), and 11^(2/3) = 4.946087.
    expected = tensor(1 / 5.9460874, 1 / (1 + 2 * 4.9460874), 0.5)
    found = probability_of_zero(tensor(0.0, math.log(2), -math.log(4.9460874)))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


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
