"""The hard concrete distribution over mask values (Louizos et al. 2018, arXiv 1712.01312).

With u uniform: s = sigmoid((log u - log(1 - u) + log_alpha) / beta), stretched and clamped. The
appendix of arXiv 2403.03942 prints u / (1 - u) without the logarithm; its code has it.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

BETA = 2 / 3
LEFT = -0.1
RIGHT = 1.1
EPS = 1e-6


def sample(
    log_alpha: Float[Tensor, "*shape"], uniform: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Mask values in [0, 1] from uniform noise in [0, 1), differentiable in ``log_alpha``."""
    u = EPS + (1 - 2 * EPS) * uniform
    s = torch.sigmoid((u.log() - (-u).log1p() + log_alpha) / BETA)
    return (LEFT + (RIGHT - LEFT) * s).clamp(0, 1)


def probability_of_zero(log_alpha: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """P(z = 0), in closed form."""
    return torch.sigmoid(BETA * math.log(-LEFT / RIGHT) - log_alpha)


def deterministic(log_alpha: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The mask without noise, as Louizos et al. use it after training; in [0, 1]."""
    return (LEFT + (RIGHT - LEFT) * torch.sigmoid(log_alpha)).clamp(0, 1)
