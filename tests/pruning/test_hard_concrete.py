"""The hard concrete distribution against written-out values and sampled frequencies."""

import math

import pytest
import torch
from hypothesis import strategies as st

from mechcore.pruning.hard_concrete import deterministic, probability_of_zero, sample

noise = st.floats(0, 1, exclude_max=True, allow_nan=False, width=32)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


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
