"""Rankings of components: attribution by gradients, and uniform gradient sampling.

Attribution is after Michel et al. 2019 (arXiv 1905.10650), with the mean instead of zero. KL itself
cannot be used: at the full model its gradient vanishes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore import progress
from mechcore.components import Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.evaluation.evaluate import margins
from mechcore.evaluation.readout import Readout
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import as_encoded
from mechcore.models.protocol import frozen, model_inputs
from mechcore.pruning.teacher import check_examples, example_order, ranking_teacher
from mechcore.session import plain_session

BATCH_SIZE = 32


@plain_session()
def attribution_scores(
    model: Any,
    data: Any,
    means: MeanActivations,
    *,
    batch_size: int = BATCH_SIZE,
    name: str = "attribution",
    watched: Callable[[Any], AbstractContextManager[Iterable[object]]] | None = None,
) -> Float[Tensor, "layer component"]:
    """Mean over examples of the absolute derivative of the log-odds by each mask value, nats.

    The log-odds are those of the class that the full model chooses; labels are not used.
    ``watched`` makes a context for a forward of the model that yields an iterable with one backward
    pass per item; derivatives are summed over these.

    Raises:
        MismatchError: the means are another model's.
        InputError: there are no examples, or a language model's have no answers.
    """
    shape = ModelShape.of(model)
    data = as_encoded(model, data, split="train", labelled=False)
    check_examples(data)
    readout = Readout.of(model, data, labelled=False)
    total = torch.zeros(shape.n_layers, shape.columns, dtype=torch.float64)
    quantity = _chosen_log_odds
    for _, slope in _slopes(model, data, means, batch_size, name, readout, quantity, watched):
        total += slope.abs().double().sum(0)
    return (total / len(data)).float()


@plain_session()
def margin_slopes(
    model: Any,
    data: EncodedExamples,
    means: MeanActivations,
    *,
    class_names: Sequence[str] | None = None,
    batch_size: int = BATCH_SIZE,
) -> Float[Tensor, "example layer component"]:
    """Derivative of every example's margin by each mask value at the full model, nats.

    With other means it differs by the first-order effect of their difference on the margin.
    """
    shape, readout = ModelShape.of(model), Readout.of(model, data, class_names)
    correct = readout.correct_classes(data)
    slopes = torch.zeros(len(data), shape.n_layers, shape.columns)

    def margin(logits: Tensor, rows: Tensor) -> Tensor:
        return margins(logits, correct[rows].to(logits.device))

    for rows, slope in _slopes(model, data, means, batch_size, "slopes", readout, margin):
        slopes[rows] = slope
    return slopes


def _slopes(
    model: Any,
    data: EncodedExamples,
    means: MeanActivations,
    batch_size: int,
    name: str,
    readout: Readout,
    quantity: Callable[[Tensor, Tensor], Tensor],
    watched: Callable[[Any], AbstractContextManager[Iterable[object]]] | None = None,
) -> Iterator[tuple[Tensor, Float[Tensor, "row layer component"]]]:
    """Rows of each batch, and the derivatives by mask values of a quantity of their logits."""
    shape = ModelShape.of(model)
    with frozen(model), progress.bar(name, data.n_batches(batch_size)) as advance:
        for batch in map(readout.asked, data.batches(batch_size)):
            inputs = model_inputs(model, batch)
            # One mask per example, so that one backward gives every example's own derivative.
            n_examples = len(batch["index"])
            ones = torch.ones(n_examples, shape.n_layers, shape.columns)
            leaf = ones.requires_grad_()
            rows = leaf.repeat(len(inputs["input_ids"]) // n_examples, 1, 1)
            with masked(model, Mask(rows, has_mlps=shape.has_mlps), means) as run:
                with watched(model) if watched else nullcontext([None]) as backwards:
                    answers = run.rows(batch)
                logits = readout.read(answers, inputs, batch["index"])
            total = quantity(logits, batch["index"]).sum()
            for _ in backwards:
                (gradient,) = torch.autograd.grad(total, leaf, retain_graph=bool(watched))
                yield batch["index"], gradient
            advance()


def _chosen_log_odds(logits: Float[Tensor, "row cls"], rows: Tensor) -> Float[Tensor, " row"]:
    """Log-odds of the class with the largest logit against all others, nats."""
    del rows
    logits = logits.float()
    chosen = logits.argmax(1, keepdim=True)
    others = logits.scatter(1, chosen, -torch.inf).logsumexp(1)
    return logits.gather(1, chosen).squeeze(1) - others


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
    """Theta of every component, the log-odds of keeping it, by uniform gradient sampling.

    Li and Janson 2024 (arXiv 2409.09951), in the version of their code for single components.
    In every step masks are drawn: with probability w = p (1 - p), p = sigmoid(theta), a value is
    uniform in (0, 1), else 1 or 0. The derivative of the expected KL(full model || masked model) by
    p is estimated by the mean derivative where the value is uniform. Adam minimises that KL plus a
    penalty times the sum of all p. Labels are not used.

    Differences from the paper: ablated outputs become means; the penalty is the KL of the fully
    ablated model divided by the number of components; and in a step without a uniform value for a
    component its theta has no gradient.

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
