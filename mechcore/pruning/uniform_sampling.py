"""Uniform gradient sampling: a ranking by mask probabilities trained on partial ablations.

Li and Janson 2024 (arXiv 2409.09951), in the version of their code for single components.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore import progress
from mechcore.components import ModelShape
from mechcore.masking.means import MeanActivations
from mechcore.models.protocol import frozen
from mechcore.pruning.teacher import example_order, ranking_teacher
from mechcore.session import plain_session

START = 1.0
"""Initial theta, as in the authors' code: p = 0.73."""


@plain_session()
def ugs_scores(
    model: Any,
    data: Any,
    means: MeanActivations,
    *,
    steps: int = 200,
    lr: float = 0.05,
    n_masks: int = 8,
    batch_size: int = 32,
    seed: int = 0,
) -> Float[Tensor, "layer component"]:
    """Theta of every component: the log-odds of keeping it.

    In every step masks are drawn: with probability w = p (1 - p), p = sigmoid(theta), a value is
    uniform in (0, 1), else 1 or 0. The derivative of the expected KL(full model || masked model) by
    p is estimated by the mean derivative where the value is uniform. Adam minimises that KL plus a
    penalty times the sum of all p.

    Differences from the paper: ablated outputs become means; the penalty is the KL of the fully
    ablated model divided by the number of components; and in a step without a uniform value for a
    component its theta has no gradient.

    Args:
        model: any TransformerLens model; not changed.
        data: examples of any form, see `mechcore.data.given`; their labels are not used.
        means: the model's mean activations.
        steps: steps of Adam.
        lr: learning rate of Adam.
        n_masks: masks drawn in every step, for the same examples.
        batch_size: examples per step.
        seed: seed of the draws and of the order of the examples.

    Raises:
        MismatchError: the means are another model's.
        InputError: there are no examples, or a language model's have no answers.
    """
    shape = ModelShape.of(model)
    teacher = ranking_teacher(model, data, batch_size)
    data = teacher.data
    theta = torch.full((shape.n_layers, shape.columns), START)
    nothing = torch.zeros(1, *theta.shape)
    with progress.bar("ugs: means", teacher.n_batches) as advance:
        penalty = float(teacher.mean_divergences(nothing, means, advance)) / theta.numel()
    generator = torch.Generator().manual_seed(seed)
    order = example_order([len(ids) for ids in data.input_ids], batch_size, seed)
    optimiser = torch.optim.Adam([theta], lr=lr)
    with frozen(model), progress.bar("ugs", steps) as advance:
        for _ in range(steps):
            p = theta.sigmoid()
            values = draw(p, torch.rand(n_masks, *p.shape, generator=generator))
            _, slopes = teacher.kl_gradients(values, means, next(order))
            partial = (values > 0) & (values < 1)
            n_drawn = partial.sum(0)
            slope = (slopes.to(values) * partial).sum(0) / n_drawn.clamp(min=1)
            theta.grad = torch.where(n_drawn > 0, (slope + penalty) * p * (1 - p), 0.0)
            optimiser.step()
            advance()
    return theta


def draw(
    p: Float[Tensor, "layer component"], noise: Float[Tensor, "masks layer component"]
) -> Float[Tensor, "masks layer component"]:
    """Mask values for noise that is uniform in [0, 1)."""
    return 1 - ((noise - p) / (p * (1 - p)) + 0.5).clamp(0, 1)
