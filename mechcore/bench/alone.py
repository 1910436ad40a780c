"""Rankings by what the model loses without each component alone, as KL to the full model.

- ``singles``: with the mean in place of the component's output.
- ``optimal``: with the constant that does least harm there (optimal ablation, Li and Janson 2024,
  arXiv 2409.09951): that which minimises the expected KL. Constants start from the means and are
  trained all at once, each under the mask that ablates its component alone, so that none changes
  what another one's loss is. As there is no certainty of a minimum, a component keeps its mean
  where that is the better of the two on all examples: no score is above that of ``singles``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore import progress
from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.masking.means import MeanActivations
from mechcore.models.protocol import frozen
from mechcore.pruning.teacher import Teacher, example_order, ranking_teacher
from mechcore.session import plain_session

BATCH_SIZE = 32


@plain_session()
def singles_scores(
    model: Any, data: Any, means: MeanActivations, *, batch_size: int = BATCH_SIZE
) -> Float[Tensor, "layer component"]:
    """KL(full model || model without one component), mean over examples, nats.

    It takes one forward pass for every component. Arguments and errors are those of
    `mechcore.bench.gradients.integrated_scores`.
    """
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
    """The constants that do least harm, each in place of its component alone.

    Every step takes a forward and a backward pass for every component on a batch of examples;
    before and after, one forward pass for every component on all of them.

    Args:
        model: any TransformerLens model; it stays as it is.
        data: examples of any form, see `mechcore.data.given`; their labels are not used.
        means: from which the constants start; one for every position where they are by position.
        steps: steps of Adam.
        lr: its rate at the first step, for heads in units of the root mean square of heads' means,
            for MLPs of MLPs' means; it falls linearly to 0.
        batch_size: examples per step.
        seed: seed of the order of the examples.

    Returns:
        The constants in place of the means, to be used wherever means are; and the KL, nats, with
        each in place of its component alone, mean over examples.

    Raises:
        MismatchError: the means are another model's.
        InputError: see `singles_scores`; or there is no step, or no rate.
    """
    if steps < 1 or not lr > 0:
        raise InputError(
            f"optimal: {steps} steps at a rate of {lr}; expected at least one step and a rate "
            "above 0"
        )
    teacher, shape = ranking_teacher(model, data, batch_size), ModelShape.of(model)
    before = _losses(teacher, shape, means, "optimal: means")
    trained = replace(
        means, z=means.z.clone().requires_grad_(), mlp=means.mlp.clone().requires_grad_()
    )
    groups = [
        {
            "params": [constants],
            "lr": lr * (float(constants.detach().square().mean().sqrt()) or 1.0),
        }
        for constants in (trained.z, trained.mlp)
        if constants.numel()
    ]
    optimiser = torch.optim.Adam(groups)
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
