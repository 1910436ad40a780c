"""Rankings by derivatives: gradient times distance to what stands in for a component.

The derivative of a quantity by a mask value is its gradient at the component's output times the
output's distance to the fill, summed over positions, because ``out = fill + m (x - fill)``. So all
of these are derivatives by mask values; the fill is the mean but for ``eap-ig``.

- ``attribution``: mean over examples of ``|dM / dm|`` at the full model, where M is the log-odds of
  the class that the full model chooses (Michel et al. 2019, arXiv 1905.10650, with the mean in the
  place of zero). KL itself cannot be used there: at the full model its gradient vanishes.
- ``gradient-drop``: the same where effects of a component by several layers cancel out (GradDrop of
  AtP*, Kramar et al. 2024, arXiv 2403.00745). For every layer l in turn, no gradient passes through
  what the heads and MLP of l put out, as if they were constants; the score is
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

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore import progress
from mechcore.components import Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import margins
from mechcore.evaluation.readout import Readout
from mechcore.masking.counterfactual import Counterfactual, paired
from mechcore.masking.fills import FillMaker
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import as_encoded
from mechcore.models.measuring import hooked
from mechcore.models.running import frozen, hook_mlp_out, hook_z, model_inputs
from mechcore.pruning.teacher import check_examples, ranking_teacher
from mechcore.session import plain_session

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
    return _mean_slopes(model, data, means, batch_size, "attribution")


def gradient_drop_scores(
    model: Any,
    data: Any,
    means: MeanActivations,
    *,
    batch_size: int = BATCH_SIZE,
) -> Float[Tensor, "layer component"]:
    """`attribution_scores` with the gradients through each layer dropped in turn, nats.

    It takes one forward pass, and one backward pass for every layer.

    Args:
        model: any TransformerLens model of two layers or more; it stays as it is.
        data: see `attribution_scores`.
        means: the model's mean activations.
        batch_size: examples per forward.

    Raises:
        MismatchError: the means are another model's.
        InputError: see `attribution_scores`; or the model has one layer.
    """
    n_layers = ModelShape.of(model).n_layers
    if n_layers < 2:
        raise InputError(
            "gradient-drop: the model has one layer, without which there is no gradient; expected "
            "at least two: use attribution"
        )
    total = _mean_slopes(model, data, means, batch_size, "gradient-drop", range(n_layers))
    return total / (n_layers - 1)


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

    With other means the derivative is another, by the first-order effect on the margin of the
    difference of the means: ``margin_slopes(b) - margin_slopes(a)`` is that of adding a - b to the
    component's output.

    Args:
        model: any TransformerLens model; it stays as it is.
        data: labelled examples.
        means: the model's mean activations.
        class_names: names of a classifier's classes, in place of its ``id2label``.
        batch_size: examples per forward.

    Raises:
        MismatchError: the means are another model's.
        InputError: labels and classes cannot be matched.
    """
    shape, readout = ModelShape.of(model), Readout.of(model, data, class_names)
    correct = readout.correct_classes(data)
    slopes = torch.zeros(len(data), shape.n_layers, shape.columns)

    def margin(logits: Tensor, rows: Tensor) -> Tensor:
        return margins(logits, correct[rows].to(logits.device))

    for rows, slope in _slopes(model, data, means, batch_size, "slopes", readout, margin):
        slopes[rows] = slope
    return slopes


@plain_session()
def _mean_slopes(
    model: Any,
    data: Any,
    means: MeanActivations,
    batch_size: int,
    name: str,
    dropped: Sequence[int] = (),
) -> Float[Tensor, "layer component"]:
    """Mean size of the log-odds' derivatives; summed over layers whose gradients are dropped."""
    if batch_size < 1:
        raise InputError(f"{name}: batch_size is {batch_size}; expected at least 1")
    shape = ModelShape.of(model)
    data = as_encoded(model, data, role="train", labelled=False)
    check_examples(data)
    readout = Readout.of(model, data, labelled=False)
    total = torch.zeros(shape.n_layers, shape.columns, dtype=torch.float64)
    quantity = _chosen_log_odds
    for _, slope in _slopes(model, data, means, batch_size, name, readout, quantity, dropped):
        total += slope.abs().double().sum(0)
    return (total / len(data)).float()


def _slopes(
    model: Any,
    data: EncodedExamples,
    means: MeanActivations,
    batch_size: int,
    name: str,
    readout: Readout,
    quantity: Callable[[Tensor, Tensor], Tensor],
    dropped: Sequence[int] = (),
) -> Iterator[tuple[Tensor, Float[Tensor, "row layer component"]]]:
    """Rows of each batch, and the derivatives by mask values of a quantity of their logits."""
    shape = ModelShape.of(model)
    layers: Sequence[int | None] = dropped or [None]
    with frozen(model), progress.bar(name, data.n_batches(batch_size)) as advance:
        for batch in map(readout.asked, data.batches(batch_size)):
            inputs = model_inputs(model, batch)
            # One mask per example, so that one backward gives every example's own derivative.
            n_examples = len(batch["index"])
            ones = torch.ones(n_examples, shape.n_layers, shape.columns)
            leaf = ones.requires_grad_()
            rows = leaf.repeat(len(inputs["input_ids"]) // n_examples, 1, 1)
            gate = _Gate()
            with masked(model, Mask(rows, has_mlps=shape.has_mlps), means) as run:
                with gate.at(model, shape) if dropped else nullcontext():
                    answers = run.rows(batch)
                logits = readout.read(answers, inputs, batch["index"])
            total = quantity(logits, batch["index"]).sum()
            for gate.layer in layers:
                (gradient,) = torch.autograd.grad(total, leaf, retain_graph=bool(dropped))
                yield batch["index"], gradient
            advance()


class _Gate:
    """Keeps gradients from what one layer puts out; which one may change between backwards."""

    def __init__(self) -> None:
        self.layer: int | None = None

    @contextmanager
    def at(self, model: Any, shape: ModelShape) -> Iterator[None]:
        """Watch the forward inside the block."""
        layers = range(shape.n_layers)
        hooks = [(hook_z(i), partial(self._watch, i)) for i in layers]
        hooks += [(hook_mlp_out(i), partial(self._watch, i)) for i in layers if shape.has_mlps]
        with hooked(model, hooks):
            yield

    def _watch(self, layer: int, activation: Tensor, hook: Any) -> Tensor:
        def through(gradient: Tensor) -> Tensor | None:
            return torch.zeros_like(gradient) if layer == self.layer else None

        activation.register_hook(through)
        return activation  # of a bridge it may be a view of what the model goes on with


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

    Args:
        model: any TransformerLens model; it stays as it is.
        data: examples of any form, see `mechcore.data.given`.
        means: the model's mean activations, for positions that pairs lack.
        pairs: the paired example of every example, row by row; by default, `paired` draws one of
            another label for each, the only use of labels.
        seed: of that draw.
        options: ``batch_size`` and ``n_points`` of `integrated_scores`.

    Raises:
        MismatchError: the means are another model's.
        InputError: see `integrated_scores`; or pairs are missing, or the examples to make them of.
    """
    data = as_encoded(model, data, role="train", labelled=pairs is None)
    fill = Counterfactual.of(paired(data, seed) if pairs is None else pairs)
    return integrated_scores(model, data, means, fill=fill, **options)


def _chosen_log_odds(logits: Float[Tensor, "row cls"], rows: Tensor) -> Float[Tensor, " row"]:
    """Log-odds of the class with the largest logit against all others, nats."""
    del rows
    logits = logits.float()
    chosen = logits.argmax(1, keepdim=True)
    others = logits.scatter(1, chosen, -torch.inf).logsumexp(1)
    return logits.gather(1, chosen).squeeze(1) - others
