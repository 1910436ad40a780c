"""Screening of pairs: interactions predicted from gradients with respect to mask values.

D({a, b}) - D({a}) - D({b}) is how much more the model loses with b when a is gone. With a ablated,
b's loss is to first order the gradient of the metric with respect to b's mask value; so the
difference of that gradient without a and in the full model predicts the interaction, and one
backward pass per component does for all pairs. Both orders of a pair are averaged.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechcore import progress
from mechcore.ablation.effects import ComponentSet
from mechcore.ablation.engines import SECONDS_BETWEEN_SAVES
from mechcore.components import Component, Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.evaluation.evaluate import margins
from mechcore.evaluation.readout import Readout
from mechcore.masking.interventions import FillName, masked
from mechcore.masking.means import MeanActivations
from mechcore.models.running import frozen, model_inputs
from mechcore.state import StateFile


class Screen:
    """Gradients of the mean margin with respect to mask values.

    Args:
        model: any TransformerLens model.
        data: labelled examples.
        means: the model's mean activations.
        fill: what replaces ablated outputs.
        class_labels: names of a classifier's classes, in place of its ``id2label``.
        batch_size: examples per batch.
        store: keeps the gradients so far.

    Raises:
        InputError: labels and classes cannot be matched.
    """

    def __init__(
        self,
        model: Any,
        data: EncodedExamples,
        means: MeanActivations | None,
        *,
        fill: FillName,
        class_labels: Sequence[str] | None,
        batch_size: int,
        store: StateFile,
    ) -> None:
        self.model, self.data, self.means, self.fill = model, data, means, fill
        self.batch_size, self.store = batch_size, store
        self.readout = Readout.of(model, data, class_labels)
        self.correct = self.readout.correct_classes(data)

    def interactions(
        self, components: Sequence[Component], n_examples: int, seed: int
    ) -> dict[ComponentSet, float]:
        """Predicted interaction of every pair, in nats of margin.

        Args:
            components: those to pair.
            n_examples: examples that gradients are averaged over.
            seed: of the draw of these.

        Raises:
            StateError: the gradients so far are those of another run, or damaged.
        """
        rng = np.random.default_rng(seed)
        rows = rng.permutation(len(self.data))[:n_examples].tolist()
        gradients = self._gradients(components, rows)
        changes = gradients[1:] - gradients[0]
        predicted = (changes + changes.T) / 2
        return {
            ComponentSet.of([components[i], components[j]]): float(predicted[i, j])
            for i, j in itertools.combinations(range(len(components)), 2)
        }

    def _gradients(
        self, components: Sequence[Component], rows: list[int]
    ) -> Float[Tensor, "mask component"]:
        """Of the full model, then without each component; those done before are not done again."""
        shape = ModelShape.of(self.model)
        places = tuple(torch.tensor([shape.index(c) for c in components]).T)
        full = Mask.full(shape)
        masks = [full, *(full.without(c) for c in components)]
        found, start = self._restored(len(components))
        done, saved_at = start, time.monotonic()
        try:
            with frozen(self.model), progress.bar("screening", len(masks) - start) as advance:
                for mask in masks[start:]:
                    found[done] = self._gradient(mask, rows)[places]
                    done += 1
                    advance()
                    if time.monotonic() - saved_at > SECONDS_BETWEEN_SAVES:
                        self._save(found, done)
                        saved_at = time.monotonic()
        finally:
            if done > start:
                self._save(found, done)
        return found

    def _restored(self, n_components: int) -> tuple[Float[Tensor, "mask component"], int]:
        """Gradients as far as they are known, and how many masks they are of."""
        found = torch.zeros(1 + n_components, n_components)
        stored = self.store.restore()
        if stored is None:
            return found, 0
        tensors, notes = stored
        try:
            return found.copy_(tensors["gradients"]), int(notes["done"])
        except (KeyError, RuntimeError) as error:
            raise self.store.unreadable(error) from error

    def _save(self, found: Tensor, done: int) -> None:
        self.store.save({"gradients": found}, {"done": done})

    def _gradient(self, mask: Mask, rows: list[int]) -> Float[Tensor, "layer component"]:
        values = mask.values.clone().requires_grad_()
        total = torch.zeros_like(mask.values)
        rows = sorted(rows, key=lambda row: -len(self.data.input_ids[row]))
        for start in range(0, len(rows), self.batch_size):
            chosen = rows[start : start + self.batch_size]
            batch = self.data.rows(chosen)
            with torch.enable_grad():
                live = Mask(values, has_mlps=mask.shape.has_mlps)
                with masked(self.model, live, self.means, self.fill) as run:
                    answer = run(batch)
                logits = self.readout.read(answer, model_inputs(self.model, batch), chosen)
                loss = margins(logits, self.correct[chosen].to(logits.device)).sum()
                total += torch.autograd.grad(loss, values)[0].cpu()
        return total / len(rows)
