"""The full model's answers, the loss against them, and the order of the examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore import progress
from mechcore.components import Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError
from mechcore.evaluation.readout import Readout
from mechcore.masking.fills import FILLS, FillMaker
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import as_encoded
from mechcore.models.placing import chosen, sent
from mechcore.models.running import device_of, forward, model_inputs
from mechcore.pruning.settings import PruneSettings

WIDE = 256
"""Width of the residual stream from which on products in bfloat16 save time worth having."""

POOL = 16
"""Batches that are sorted by length together."""


class Teacher:
    """The full model's answers on all training examples, computed once, and the loss to them."""

    def __init__(self, model: Any, data: EncodedExamples, settings: PruneSettings) -> None:
        check_examples(data)
        self.model, self.data, self.settings = model, data, settings
        self.readout = Readout.of(model, data, labelled=False)
        self.has_mlps = ModelShape.of(model).has_mlps
        self.bfloat16 = settings.precision == "bfloat16" or (
            settings.precision == "auto"
            and model.cfg.d_model >= WIDE
            and is_fast_at_bfloat16(device_of(model))
        )
        rows: list[Tensor] = []
        index: list[Tensor] = []
        with torch.no_grad(), progress.bar("full model", self.n_batches) as advance:
            for batch in map(self.readout.asked, data.batches(settings.batch_size)):
                logits = forward(model, batch)
                index.append(batch["index"])
                inputs = model_inputs(model, batch)
                rows.append(self.readout.read(logits, inputs, batch["index"]).float())
                advance()
        self.logits = torch.cat(rows)[sent(torch.cat(index).argsort(), rows[0].device)]
        self._known: tuple[MeanActivations | None, MeanActivations | None] = (None, None)

    def kl_gradients(
        self,
        values: Float[Tensor, "masks *draw layer component"],
        means: MeanActivations,
        examples: Sequence[int],
        fill: FillMaker = "mean",
    ) -> tuple[Float[Tensor, " masks"], Float[Tensor, "masks *draw layer component"]]:
        """KL(full model || subnetwork) of every mask, nats, batch mean, and its gradient."""
        losses: list[Tensor] = []
        gradients: list[Tensor] = []
        for part in values.detach().split(self.settings.masks_per_pass):
            leaf = part.clone().requires_grad_()
            kl = self.divergences(leaf, means, examples, fill).mean(-1)
            gradients.append(*torch.autograd.grad(kl.sum(), leaf))
            losses.append(kl.detach())
        return torch.cat(losses).cpu(), torch.cat(gradients)

    def divergences(
        self,
        values: Float[Tensor, "masks *draw layer component"],
        means: MeanActivations,
        examples: Sequence[int],
        fill: FillMaker = "mean",
    ) -> Float[Tensor, "masks example"]:
        """KL(full model || masked model), nats, of all masks in one forward.

        Args:
            values: of the masks; gradients flow into them. Of several draws, the first is for the
                first examples, and so on, in shares as equal as they can be.
            means: the model's mean activations; gradients flow into them, too.
            examples: rows of the data.
            fill: what replaces outputs, see `mechcore.masked`.
        """
        batch = self.readout.asked(self.data.rows(examples))
        inputs = model_inputs(self.model, batch)
        wanted = self.logits[sent(examples, self.logits.device)].log_softmax(-1)
        n_masks, drawn = len(values), values.ndim == 4
        if drawn:  # a mask for every row
            n_rows, n_draws = len(inputs["input_ids"]), values.shape[1]
            draw = torch.arange(len(examples)) * n_draws // len(examples)
            values = chosen(values, 1, draw.repeat(n_rows // len(examples)).tolist()).flatten(0, 1)
        mask = Mask(values, has_mlps=self.has_mlps)
        device = wanted.device.type
        precision = torch.autocast(device, torch.bfloat16) if self.bfloat16 else nullcontext()
        maker = FILLS[fill] if isinstance(fill, str) else fill  # the means are checked by now
        with precision, masked(self.model, mask, self._there(means), maker) as run:
            if drawn:
                rows = {k: x.repeat(n_masks, *[1] * (x.ndim - 1)) for k, x in batch.items()}
                logits = run.rows(rows).unflatten(0, (n_masks, -1))
            else:
                logits = run(batch)
            logits = self.readout.read(logits, inputs, examples)
        got = logits.float().log_softmax(-1)
        return (wanted.exp() * (wanted - got)).sum(-1)

    def _there(self, means: MeanActivations) -> MeanActivations:
        """Means on the model's device, checked and moved once unless they are trained."""
        if means.z.requires_grad or means is not self._known[0]:
            means.check(self.model)
            self._known = (means, means.to(device_of(self.model)))
        found = self._known[1]
        assert found is not None
        return found

    @torch.no_grad()
    def mean_divergences(
        self,
        values: Float[Tensor, "masks layer component"],
        means: MeanActivations,
        advance: Callable[[], None],
    ) -> Float[Tensor, " masks"]:
        """KL(full model || masked model) of every mask, nats, float64 mean over all examples.

        ``advance`` is called after every batch.
        """
        total = torch.zeros(len(values), dtype=torch.float64)
        for batch in self.data.batches(self.settings.batch_size):
            examples = batch["index"].tolist()
            for part, sums in zip(
                values.split(self.settings.masks_per_pass),
                total.split(self.settings.masks_per_pass),
                strict=True,
            ):
                sums += self.divergences(part, means, examples).sum(-1).double().cpu()
            advance()
        return total / len(self.data)

    @property
    def n_batches(self) -> int:
        """Of all examples."""
        return self.data.n_batches(self.settings.batch_size)


def ranking_teacher(model: Any, data: Any, batch_size: int) -> Teacher:
    """The teacher of rankings, which tell small effects apart: in float32 on any hardware."""
    data = as_encoded(model, data, role="train", labelled=False)
    return Teacher(model, data, PruneSettings(batch_size=batch_size, precision="float32"))


def check_examples(data: EncodedExamples) -> None:
    """Make sure that there is something to learn from.

    Raises:
        InputError: there is no example.
    """
    if not len(data):
        raise InputError(f"examples {data.examples.name!r}: none; expected at least one")


def is_fast_at_bfloat16(device: torch.device) -> bool:
    """Whether the hardware has instructions for products of bfloat16 matrices."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()


def example_order(lengths: Sequence[int], batch_size: int, seed: int) -> Iterator[list[int]]:
    """Endless batches of example numbers, of similar length within a batch.

    Every pass over the data is shuffled, cut into pools of `POOL` batches, sorted by length
    within each pool, and the pool's batches are shuffled again: little padding, random order.
    """
    generator = torch.Generator().manual_seed(seed)
    waiting: list[int] = []
    while True:
        while len(waiting) < POOL * batch_size:
            waiting += torch.randperm(len(lengths), generator=generator).tolist()
        pool, waiting = waiting[: POOL * batch_size], waiting[POOL * batch_size :]
        pool.sort(key=lambda i: lengths[i])
        for k in torch.randperm(POOL, generator=generator).tolist():
            yield pool[k * batch_size : (k + 1) * batch_size]
