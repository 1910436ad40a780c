"""Screening of paths: what cutting each costs, predicted with one backward pass for all.

C(S -> r) is the change when r puts out what it would if it did not see S. One forward finds that
for every r (`mechcore.masking.blinding.Blindness`), and a backward pass what a change of any output
does to the margin, to first order. So only the way from r to the answer is taken to be linear: the
answer's own paths need no prediction, and neither r's norms nor its softmax are linearised, unlike
in attribution patching of edges (arXiv 2310.10348).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore.ablation.engines.path_cuts import changed_with
from mechcore.ablation.interactions.predictors import batches_of
from mechcore.ablation.interactions.screening import left
from mechcore.components import Component, ModelShape
from mechcore.components.paths import PathSet, Receiver
from mechcore.data.encoding import EncodedExamples
from mechcore.evaluation.evaluate import margins
from mechcore.evaluation.readout import Readout
from mechcore.masking.blinding import Blindness
from mechcore.masking.fills import Kind
from mechcore.masking.interventions import FillName, intervening
from mechcore.masking.means import MeanActivations
from mechcore.models.protocol import frozen, hook_mlp_out, hook_z, logits_of, model_inputs


class Screening:
    """Predicts what sets of paths to one receiver each cost; its fill draws nothing at random."""

    def __init__(
        self,
        model: Any,
        data: EncodedExamples,
        means: MeanActivations | None,
        cuts: Sequence[PathSet],
        fill: FillName,
        class_names: Sequence[str] | None,
        state: str | Path | None = None,
    ) -> None:
        self.model, self.data, self.shape = model, data, ModelShape.of(model)
        self.means, self.fill, self.cuts, self.state = means, fill, cuts, state
        self.readout = Readout.of(model, data, class_names)
        self.correct = self.readout.correct_classes(data)
        self.groups: dict[tuple[frozenset[Component], str], dict[int, Receiver]] = {}
        for i, cut in enumerate(cuts):
            [(receiver, senders)] = cut.senders.items()
            self.groups.setdefault((senders, receiver.input), {})[i] = receiver
        self.fills = {key: Blindness(model, means, 0, *key, fill) for key in self.groups}

    def changes(self, n_examples: int, *, seed: int, batch_size: int) -> Float[Tensor, " cut"]:
        """Predicted changes in margin, nats, over at most ``n_examples``, drawn with ``seed``."""
        batches = batches_of(self.data, n_examples, seed, batch_size)
        own: dict[str, Any] = {"labels": self.correct, "batches": batches}
        own["cuts"] = [[str(path) for path in cut.paths] for cut in self.cuts]
        changes = torch.zeros(len(batches), len(self.cuts), dtype=torch.float64)
        with frozen(self.model), left("path-screening", self, changes, **own) as steps:
            for i in steps:
                changes[i] = self._of_batch(batches[i])
        return changes.sum(0) / sum(map(len, batches))

    def _of_batch(self, rows: Sequence[int]) -> Float[Tensor, " cut"]:
        inputs = model_inputs(self.model, self.readout.asked(self.data.rows(rows)))
        correct = self.correct[rows]
        changes = torch.zeros(len(self.cuts), dtype=torch.float64)
        full, outputs, gradients = self._gradients(inputs, rows)
        for key, receivers in self.groups.items():
            fill = self.fills[key]
            fill.read(inputs)
            changed = {
                place: ((fill.outputs[place] - x) * gradients[place]).flatten(0, 1).sum(0).cpu()
                for place, x in outputs.items()
            }
            for i, receiver in receivers.items():
                if receiver.component is None:
                    assert fill.answers is not None
                    blind = self.readout.read(fill.answers, inputs, rows).float().cpu()
                    changes[i] = (margins(blind, correct) - full).sum()
                    continue
                for component in changed_with(self.model, receiver):
                    of_layer = changed["z" if component.is_head else "mlp", component.layer]
                    changes[i] += of_layer[component.head].sum().item()
        return changes

    def _gradients(
        self, inputs: dict[str, Tensor], rows: Sequence[int]
    ) -> tuple[Tensor, dict[tuple[Kind, int], Tensor], dict[tuple[Kind, int], Tensor]]:
        """Margins, every layer's outputs, and the gradients of the margins' sum by these."""
        outputs: dict[tuple[Kind, int], Tensor] = {}
        changes: dict[tuple[Kind, int], Tensor] = {}

        def change(place: tuple[Kind, int], activation: Tensor, hook: Any) -> Tensor:
            outputs[place] = activation.detach()
            changes[place] = torch.zeros_like(activation, requires_grad=True)
            return activation + changes[place]

        hooks = []
        for layer in range(self.shape.n_layers):
            hooks.append((hook_z(layer), partial(change, ("z", layer))))
            if self.shape.has_mlps:
                hooks.append((hook_mlp_out(layer), partial(change, ("mlp", layer))))
        with intervening(self.model, hooks):
            answers = self.readout.read(logits_of(self.model, inputs), inputs, rows)
            of_margin = margins(answers, self.correct[rows].to(answers.device))
            gradients = torch.autograd.grad(of_margin.sum(), list(changes.values()))
        return of_margin.detach().float().cpu(), outputs, dict(zip(changes, gradients, strict=True))
