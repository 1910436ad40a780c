"""Rankings by derivatives by mask values, beside `mechcore.pruning.attribution`.

- ``gradient-drop``: attribution where effects of a component by several layers cancel out (GradDrop
  of AtP*, Kramar et al. 2024, arXiv 2403.00745). For every layer l in turn, no gradient passes
  through what the heads and MLP of l put out, as if they were constants; the score is
  ``E[1 / (L - 1) sum_l |dM^l / dm|]``. A component's own layer gives 0 of these L terms, hence
  L - 1. AtP*'s other change concerns queries and keys, which are no components here.
- ``integrated``: minus the derivative of KL(full model || masked model), averaged along the
  straight path on which all mask values rise from 0 to 1 (integrated gradients, arXiv 1703.01365).
  The scores add up to the KL of the model with everything at its mean.
- ``eap-ig``: ``integrated`` from the components' outputs on a paired example instead of their means
  (Hanna et al. 2024, arXiv 2403.17806). Of their variants it is the one on activations, all
  interpolated together, for components in place of edges, and with KL as the metric; the one on
  inputs interpolates embeddings, which are no components here: they stay the example's own. The
  scores add up to the KL of the model with everything at its counterfactual.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore import progress
from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError
from mechcore.masking.counterfactual import Counterfactual, paired
from mechcore.masking.fills import FillMaker
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import as_encoded
from mechcore.models.hooks import hooked
from mechcore.models.protocol import frozen, hook_mlp_out, hook_z
from mechcore.pruning.attribution import BATCH_SIZE, attribution_scores
from mechcore.pruning.teacher import ranking_teacher
from mechcore.session import plain_session


def gradient_drop_scores(
    model: Any, data: Any, means: MeanActivations, *, batch_size: int = BATCH_SIZE
) -> Float[Tensor, "layer component"]:
    """`attribution_scores` with the gradients through each layer dropped in turn, nats.

    It takes one forward pass, and one backward pass for every layer. Arguments and errors are those
    of `integrated_scores`; an `InputError` says, too, that the model has one layer.
    """
    n_layers = ModelShape.of(model).n_layers
    if n_layers < 2:
        raise InputError(
            "gradient-drop: the model has one layer, without which there is no gradient; expected "
            "at least two: use attribution"
        )
    options: Any = {"name": "gradient-drop", "watched": _dropped_in_turn}
    total = attribution_scores(model, data, means, batch_size=batch_size, **options)
    return total / (n_layers - 1)


@contextmanager
def _dropped_in_turn(model: Any) -> Iterator[Iterable[int]]:
    """Watch a forward inside the block; gives the layers, each dropped while one is at it."""
    shape, dropped = ModelShape.of(model), -1
    layers = range(shape.n_layers)

    def watch(layer: int, activation: Tensor, hook: Any) -> Tensor:
        def through(gradient: Tensor) -> Tensor | None:
            return torch.zeros_like(gradient) if layer == dropped else None

        activation.register_hook(through)
        return activation  # of a bridge it may be a view of what the model goes on with

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
    """Share of each component in the KL of the model with everything at its fill, nats.

    Args:
        model: any TransformerLens model; it stays as it is.
        data: examples of any form, see `mechcore.data.given`; their labels are not used.
        means: the model's mean activations.
        batch_size: examples per forward.
        n_points: midpoints of the path, equally spaced.
        fill: where the path begins, see `mechcore.masked`.

    Raises:
        MismatchError: the means are another model's.
        InputError: there are no examples, a language model's have no answers, or there is no
            point.
    """
    if n_points < 1:
        raise InputError(f"integrated attribution: n_points is {n_points}; expected at least 1")
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
    model: Any,
    data: Any,
    means: MeanActivations,
    *,
    pairs: EncodedExamples | None = None,
    seed: int = 0,
    **options: Any,
) -> Float[Tensor, "layer component"]:
    """Share of each component in the KL of the model with everything at its counterfactual, nats.

    Arguments and errors are those of `integrated_scores`, and ``pairs``, the paired example of
    every example, row by row; by default, `paired` draws one of another label for each by ``seed``,
    the only use of labels. An `InputError` says, too, that there are none to make pairs of.
    """
    data = as_encoded(model, data, split="train", labelled=pairs is None)
    fill = Counterfactual.of(paired(data, seed) if pairs is None else pairs)
    return integrated_scores(model, data, means, fill=fill, **options)
