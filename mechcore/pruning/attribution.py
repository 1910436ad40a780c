"""Rankings of components without training: gradient times distance to the mean.

The derivative of a quantity by a mask value is its gradient at the component's output times the
output's distance to the mean, summed over positions, because ``out = mean + m (x - mean)``. So both
rankings are derivatives by mask values:

- ``attribution``: mean over examples of ``|dM / dm|`` at the full model, where M is the log-odds of
  the class that the full model chooses (Michel et al. 2019, arXiv 1905.10650, with the mean in the
  place of zero). KL itself cannot be used there: at the full model its gradient vanishes.
- ``integrated``: minus the derivative of KL(full model || masked model), averaged along the
  straight path on which all mask values rise from 0 to 1 (integrated gradients, arXiv 1703.01365).
  The scores add up to the KL of the model with everything at its mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore import progress
from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError
from mechcore.evaluation.readout import Readout
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import as_encoded
from mechcore.models.model_identity import ModelIdentity
from mechcore.models.running import frozen, model_inputs
from mechcore.pruning.discretise import discretise
from mechcore.pruning.settings import PruneSettings, as_runs, check_keeps_some
from mechcore.pruning.subnetwork import Subnetwork
from mechcore.pruning.teacher import Teacher, check_examples

BATCH_SIZE = 32


def attribution_scores(
    model: Any,
    data: Any,
    means: MeanActivations,
    *,
    batch_size: int = BATCH_SIZE,
) -> Float[Tensor, "layer component"]:
    """Mean over examples of the size of the log-odds' derivative by each mask value, nats.

    Args:
        model: any TransformerLens model; it stays as it is.
        data: examples of any form, see `mechcore.data.given`; their labels are not used.
        means: the model's mean activations.
        batch_size: examples per forward.

    Raises:
        MismatchError: the means are another model's.
        InputError: there are no examples, or a language model's have no answers.
    """
    if batch_size < 1:
        raise InputError(f"attribution: batch_size is {batch_size}; expected at least 1")
    shape = ModelShape.of(model)
    data = as_encoded(model, data, role="train", labelled=False)
    check_examples(data)
    readout = Readout.of(model, data, labelled=False)
    total = torch.zeros(shape.n_layers, shape.columns, dtype=torch.float64)
    with frozen(model), progress.bar("attribution", -(-len(data) // batch_size)) as advance:
        for batch in map(readout.asked, data.batches(batch_size)):
            inputs = model_inputs(model, batch)
            # One mask per example, so that one backward gives every example's own derivative.
            n_examples = len(batch["index"])
            ones = torch.ones(n_examples, shape.n_layers, shape.columns)
            leaf = ones.requires_grad_()
            rows = leaf.repeat(len(inputs["input_ids"]) // n_examples, 1, 1)
            with masked(model, Mask(rows, has_mlps=shape.has_mlps), means) as run:
                logits = readout.read(run.rows(batch), inputs, batch["index"]).float()
            log_odds = _chosen_log_odds(logits)
            (gradient,) = torch.autograd.grad(log_odds.sum(), leaf)
            total += gradient.abs().double().sum(0)
            advance()
    return (total / len(data)).float()


def integrated_scores(
    model: Any,
    data: Any,
    means: MeanActivations,
    *,
    batch_size: int = BATCH_SIZE,
    n_points: int = 8,
) -> Float[Tensor, "layer component"]:
    """Share of each component in the KL of the model with everything at its mean, nats.

    Args:
        model: any TransformerLens model; it stays as it is.
        data: examples of any form, see `mechcore.data.given`; their labels are not used.
        means: the model's mean activations.
        batch_size: examples per forward.
        n_points: midpoints of the path, equally spaced.

    Raises:
        MismatchError: the means are another model's.
        InputError: there are no examples, a language model's have no answers, or there is no
            point.
    """
    if n_points < 1:
        raise InputError(f"integrated attribution: n_points is {n_points}; expected at least 1")
    shape = ModelShape.of(model)
    data = as_encoded(model, data, role="train", labelled=False)
    total = torch.zeros(shape.n_layers, shape.columns, dtype=torch.float64)
    path = (torch.arange(n_points) + 0.5) / n_points
    values = path[:, None, None].expand(-1, shape.n_layers, shape.columns)
    teacher = Teacher(model, data, PruneSettings(batch_size=batch_size))
    with frozen(model), progress.bar("integrated", -(-len(data) // batch_size)) as advance:
        for batch in data.batches(batch_size):
            examples = batch["index"].tolist()
            _, gradients = teacher.kl_gradients(values, means, examples)
            total -= gradients.double().mean(0) * len(examples)
            advance()
    return (total / len(data)).float()


def attribute(
    model: Any,
    data: Any,
    means: MeanActivations,
    *,
    sparsity: float | Sequence[float],
    method: Literal["attribution", "integrated"] = "integrated",
    seed: int = 0,
) -> list[Subnetwork]:
    """Subnetworks of the highest attribution scores, one for each target sparsity.

    Args:
        model: any TransformerLens model; it stays as it is.
        data: examples of any form, see `mechcore.data.given`; their labels are not used.
        means: the model's mean activations.
        sparsity: shares of components to prune, in [0, 1).
        method: see the module.
        seed: of the draw of ``data``, to name the result by; nothing here is random.

    Raises:
        InputError: a sparsity is outside [0, 1), keeps no component or repeats, or the method is
            unknown.
    """
    targets, (seed,) = as_runs(sparsity, seed)
    if method not in _SCORES:
        raise InputError(f"attribution: method is {method!r}; expected {' or '.join(_SCORES)}")
    shape, identity = ModelShape.of(model), ModelIdentity.of(model)
    check_keeps_some(targets, shape)
    scores = _SCORES[method](model, data, means)
    masks = [discretise(scores, target, shape).with_identity(identity) for target in targets]
    return [
        Subnetwork(mask, target, seed, scores, method)
        for mask, target in zip(masks, targets, strict=True)
    ]


_SCORES: dict[str, Any] = {"attribution": attribution_scores, "integrated": integrated_scores}


def _chosen_log_odds(logits: Float[Tensor, "row cls"]) -> Float[Tensor, " row"]:
    """Log-odds of the class with the largest logit against all others, nats."""
    chosen = logits.argmax(1, keepdim=True)
    others = logits.scatter(1, chosen, -torch.inf).logsumexp(1)
    return logits.gather(1, chosen).squeeze(1) - others
