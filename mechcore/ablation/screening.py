"""Screening of pairs: interactions predicted from gradients with respect to mask values.

D({a, b}) - D({a}) - D({b}) is how much more the model loses with b when a is gone. With a ablated,
b's loss is to first order the gradient of the metric with respect to b's mask value; so the
difference of that gradient without a and in the full model predicts the interaction, and one
backward pass per component does for all pairs. Both orders of a pair are averaged.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechcore import progress
from mechcore.ablation.effects import ComponentSet
from mechcore.ablation.kept import SECONDS_BETWEEN_SAVES
from mechcore.components import Component, Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.evaluation.evaluate import margins
from mechcore.evaluation.readout import Readout
from mechcore.masking.interventions import FillName, masked
from mechcore.masking.means import MeanActivations
from mechcore.models.running import frozen, model_inputs
from mechcore.state import StateFile


def predicted_interactions(
    model: Any,
    data: EncodedExamples,
    means: MeanActivations | None,
    components: Sequence[Component],
    *,
    n_examples: int,
    seed: int,
    fill: FillName,
    class_labels: Sequence[str] | None,
    batch_size: int,
    store: StateFile,
) -> dict[ComponentSet, float]:
    """Predicted interaction of every pair, in nats of margin.

    Arguments are those of `mechcore.find_superadditive`; gradients are averaged over
    ``n_examples`` drawn with ``seed``, and ``store`` keeps them, so that they are taken once.

    Raises:
        InputError: labels and classes cannot be matched.
        StateError: the gradients so far are those of another run, or damaged.
    """
    batches = batches_of(data, n_examples, seed, batch_size)
    shape, readout = ModelShape.of(model), Readout.of(model, data, class_labels)
    places = tuple(torch.tensor([shape.index(c) for c in components]).T)
    correct = readout.correct_classes(data)
    masks = [Mask.full(shape), *(Mask.full(shape).without(c) for c in components)]
    found = torch.zeros(len(masks), len(components))

    with frozen(model), resumed(store, found, len(masks)) as steps:
        for i in steps:
            mask = masks[i]
            gradient = _gradient(model, data, means, fill, readout, correct, mask, batches)
            found[i] = gradient[places]
    changes = found[1:] - found[0]
    predicted = (changes + changes.T) / 2
    return {
        ComponentSet.of([components[i], components[j]]): float(predicted[i, j])
        for i, j in itertools.combinations(range(len(components)), 2)
    }


def batches_of(
    data: EncodedExamples, n_examples: int, seed: int, batch_size: int
) -> list[list[int]]:
    """Rows of the examples that are screened with, drawn at random, the longest first."""
    drawn = np.random.default_rng(seed).permutation(len(data))[:n_examples].tolist()
    rows = sorted(drawn, key=lambda row: -len(data.input_ids[row]))
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]


@contextmanager
def resumed(store: StateFile, found: Tensor, n: int) -> Iterator[Iterator[int]]:
    """Number the steps of a screening that are left, keeping what they find.

    Args:
        store: keeps it, every now and then and when the block ends, however it does.
        found: what steps write to; takes what was kept.
        n: steps there are.

    Raises:
        StateError: what was kept is of another run, or damaged.
    """

    def take(tensors: dict[str, Tensor], notes: dict[str, Any]) -> int:
        found.copy_(tensors["gradients"])
        return int(notes["done"])

    done = start = store.restore_by(take) or 0

    def steps(advance: Callable[[], None]) -> Iterator[int]:
        nonlocal done
        saved_at = time.monotonic()
        for number in range(start, n):
            yield number
            done += 1
            advance()
            if time.monotonic() - saved_at > SECONDS_BETWEEN_SAVES:
                store.save({"gradients": found}, {"done": done})
                saved_at = time.monotonic()

    try:
        with progress.bar("screening", n - start) as advance:
            yield steps(advance)
    finally:
        if done > start:
            store.save({"gradients": found}, {"done": done})


def _gradient(
    model: Any,
    data: EncodedExamples,
    means: MeanActivations | None,
    fill: FillName,
    readout: Readout,
    correct: Bool[Tensor, "example class"],
    mask: Mask,
    batches: Sequence[Sequence[int]],
) -> Float[Tensor, "layer component"]:
    """Of the mean margin of the rows in ``batches``, by mask values."""
    values = mask.values.clone().requires_grad_()
    total = torch.zeros_like(mask.values)
    for rows in batches:
        batch = readout.asked(data.rows(rows))
        with torch.enable_grad():
            live = Mask(values, has_mlps=mask.shape.has_mlps)
            with masked(model, live, means, fill) as run:
                answer = run(batch)
            logits = readout.read(answer, model_inputs(model, batch), rows)
            loss = margins(logits, correct[rows].to(logits.device)).sum()
            total += torch.autograd.grad(loss, values)[0].cpu()
    return total / sum(map(len, batches))
