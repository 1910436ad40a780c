"""Attribution: gradient times distance to the mean that replaces a component's output.

After Michel et al. 2019 (arXiv 1905.10650), with the mean instead of zero. KL itself cannot be
used: at the full model its gradient vanishes.
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
from mechcore.pruning.teacher import check_examples
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
