"""Rankings only in the benchmark: by derivatives, and by the loss without each component.

``singles`` replaces a component by its mean, ``optimal`` by the least harmful constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore import progress
from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.masking.counterfactual import Counterfactual, paired
from mechcore.masking.fills import FillMaker
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import as_encoded
from mechcore.models.hooks import hooked
from mechcore.models.protocol import frozen, hook_mlp_out, hook_z
from mechcore.pruning.attribution import BATCH_SIZE, attribution_scores
from mechcore.pruning.teacher import Teacher, example_order, ranking_teacher
from mechcore.session import plain_session


def gradient_drop_scores(
    model: Any, data: Any, means: MeanActivations, *, batch_size: int = BATCH_SIZE
) -> Float[Tensor, "layer component"]:
    """`attribution_scores` with the gradients through each layer dropped in turn, nats.

    GradDrop of AtP* (Kramar et al. 2024, arXiv 2403.00745), for effects through several layers
    that cancel: ``E[1 / (L - 1) sum_l |dM^l / dm|]``, without gradients through the outputs of
    layer l. The term of a component's own layer is 0, hence L - 1.
    """
    n_layers = ModelShape.of(model).n_layers
    if n_layers < 2:
        raise InputError(
            "gradient-drop: dropping the only layer leaves no gradient; expected at least two "
            "layers: use attribution"
        )
    options: Any = {"name": "gradient-drop", "watched": _dropped_in_turn}
    total = attribution_scores(model, data, means, batch_size=batch_size, **options)
    return total / (n_layers - 1)


@contextmanager
def _dropped_in_turn(model: Any) -> Iterator[Iterable[int]]:
    """Watch a forward inside the block; yields the layers, dropping each in turn."""
    shape, dropped = ModelShape.of(model), -1
    layers = range(shape.n_layers)

    def watch(layer: int, activation: Tensor, hook: Any) -> Tensor:
        def through(gradient: Tensor) -> Tensor | None:
            return torch.zeros_like(gradient) if layer == dropped else None

        activation.register_hook(through)
        return activation  # in a bridge possibly a view of what the model uses next

    def in_turn() -> Iterator[int]:
        nonlocal dropped
        for layer in layers:
            dropped = layer
            yield layer

    hooks = [(hook_z(i), partial(watch, i)) for i in layers]
    hooks += [(hook_mlp_out(i), partial(watch, i)) for i in layers if shape.has_mlps]
    with hooked(model, hooks):
        yield in_turn()


@plain_session()
def integrated_scores(
    model: Any,
    data: Any,
    means: MeanActivations,
    *,
    batch_size: int = BATCH_SIZE,
    n_points: int = 8,
    fill: FillMaker = "mean",
) -> Float[Tensor, "layer component"]:
    """Share of each component in the KL of the fully ablated model, nats.

    Integrated gradients (arXiv 1703.01365): minus the derivative of KL(full model || masked model),
    averaged over ``n_points`` midpoints of the path of all mask values from 0 to 1.
    """
    shape = ModelShape.of(model)
    total = torch.zeros(shape.n_layers, shape.columns, dtype=torch.float64)
    path = (torch.arange(n_points) + 0.5) / n_points
    values = path[:, None, None].expand(-1, shape.n_layers, shape.columns)
    teacher = ranking_teacher(model, data, batch_size)
    data = teacher.data
    with frozen(model), progress.bar("integrated", data.n_batches(batch_size)) as advance:
        for batch in data.batches(batch_size):
            examples = batch["index"].tolist()
            _, gradients = teacher.kl_gradients(values, means, examples, fill)
            total -= gradients.double().mean(0) * len(examples)
            advance()
    return (total / len(data)).float()


def eap_ig_scores(
    model: Any, data: Any, means: MeanActivations, *, seed: int = 0, **options: Any
) -> Float[Tensor, "layer component"]:
    """Share of each component in the KL of the model at counterfactual activations, nats.

    `integrated_scores` from a random example of another label for each (Hanna et al. 2024,
    arXiv 2403.17806, their variant on activations, for components instead of edges).
    """
    data = as_encoded(model, data, split="train")
    fill = Counterfactual.of(paired(data, seed))
    return integrated_scores(model, data, means, fill=fill, **options)


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
    """KL with each component alone at its best constant, nats; see `optimal_constants`."""
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
    """The least harmful constant for each component alone, and the mean KL, nats.

    Optimal ablation (Li and Janson 2024, arXiv 2409.09951). The constants start from the means and
    are trained jointly by Adam, whose rate, in units of the root mean square of the means, falls
    linearly to 0. A component keeps its mean where that is better over all examples.
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
    """For every component, the mask that ablates only it."""
    n = shape.n_layers * shape.columns
    return (1 - torch.eye(n)).view(n, shape.n_layers, shape.columns)


def _losses(
    teacher: Teacher, shape: ModelShape, means: MeanActivations, title: str
) -> Float[Tensor, "layer component"]:
    with progress.bar(title, teacher.n_batches) as advance:
        losses = teacher.mean_divergences(_alone(shape), means, advance)
    return losses.view(shape.n_layers, shape.columns)
