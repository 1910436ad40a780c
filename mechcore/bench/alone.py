"""Rankings by what the model loses without each component alone, as KL to the full model.

``singles`` puts its mean in its place, ``optimal`` the constant that does least harm there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore import progress
from mechcore.components import ModelShape
from mechcore.masking.means import MeanActivations
from mechcore.models.protocol import frozen
from mechcore.pruning.teacher import Teacher, example_order, ranking_teacher
from mechcore.session import plain_session

BATCH_SIZE = 32


@plain_session()
def singles_scores(
    model: Any, data: Any, means: MeanActivations, *, batch_size: int = BATCH_SIZE
) -> Float[Tensor, "layer component"]:
    """KL(full model || model without one component), mean over examples, nats."""
    teacher, shape = ranking_teacher(model, data, batch_size), ModelShape.of(model)
    return _losses(teacher, shape, means, "singles").float()


def optimal_scores(
    model: Any, data: Any, means: MeanActivations, **options: Any
) -> Float[Tensor, "layer component"]:
    """KL without each component alone, with its best constant, nats; see `optimal_constants`."""
    return optimal_constants(model, data, means, **options)[1]


@plain_session()
def optimal_constants(
    model: Any,
    data: Any,
    means: MeanActivations,
    *,
    steps: int = 50,
    lr: float = 0.1,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
) -> tuple[MeanActivations, Float[Tensor, "layer component"]]:
    """The constants that do least harm in place of each component alone, and the mean KL, nats.

    Optimal ablation (Li and Janson 2024, arXiv 2409.09951). The constants start from the means and
    are trained all at once by Adam, whose rate, in units of the root mean square of the means,
    falls linearly to 0. A component keeps its mean where that is the better on all examples.

    Raises:
        MismatchError: the means are another model's.
    """
    teacher, shape = ranking_teacher(model, data, batch_size), ModelShape.of(model)
    before = _losses(teacher, shape, means, "optimal: means")
    trained = replace(
        means, z=means.z.clone().requires_grad_(), mlp=means.mlp.clone().requires_grad_()
    )
    constants = [part for part in (trained.z, trained.mlp) if part.numel()]
    sizes = [float(part.detach().square().mean().sqrt()) or 1.0 for part in constants]
    optimiser = torch.optim.Adam(
        [{"params": [c], "lr": lr * size} for c, size in zip(constants, sizes, strict=True)]
    )
    falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
    order = example_order([len(ids) for ids in teacher.data.input_ids], batch_size, seed)
    with frozen(model), progress.bar("optimal", steps) as advance:
        for _ in range(steps):
            examples = next(order)
            for part in _alone(shape).split(teacher.settings.masks_per_pass):
                teacher.divergences(part, trained, examples).mean(-1).sum().backward()
            optimiser.step()
            falling.step()
            optimiser.zero_grad()
            advance()
    trained = replace(trained, z=trained.z.detach(), mlp=trained.mlp.detach())
    after = _losses(teacher, shape, trained, "optimal: constants")
    better = after < before
    heads = better[:, : shape.n_heads, None]
    best = replace(means, z=torch.where(heads, trained.z, means.z))
    if shape.has_mlps:
        best = replace(best, mlp=torch.where(better[:, -1:], trained.mlp, means.mlp))
    return best, torch.minimum(before, after).float()


def _alone(shape: ModelShape) -> Float[Tensor, "masks layer component"]:
    """For every component the mask that ablates it alone."""
    n = shape.n_layers * shape.columns
    return (1 - torch.eye(n)).view(n, shape.n_layers, shape.columns)


def _losses(
    teacher: Teacher, shape: ModelShape, means: MeanActivations, title: str
) -> Float[Tensor, "layer component"]:
    with progress.bar(title, teacher.n_batches) as advance:
        losses = teacher.mean_divergences(_alone(shape), means, advance)
    return losses.view(shape.n_layers, shape.columns)
