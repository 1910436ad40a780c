"""The full model's answers, the loss against them, and the order of the examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore import progress
from mechcore.components import Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError
from mechcore.evaluation.cost import count_passes
from mechcore.evaluation.metrics import Metric, Targets, directed
from mechcore.evaluation.readout import Readout
from mechcore.masking.fills import FILLS, FillMaker
from mechcore.masking.interventions import masked, masked_stack
from mechcore.masking.means import MeanActivations, check_means
from mechcore.models.architectures.layers import stack_of
from mechcore.models.devices import chosen, sent
from mechcore.models.encoded import as_encoded
from mechcore.models.hooks import evaluating
from mechcore.models.protocol import Batch, device_of, forward, model_inputs, read_position
from mechcore.models.stack import Stack, disagreement
from mechcore.pruning.settings import PruneSettings

WIDE = 256
"""Minimum width of the residual stream at which bfloat16 products save much time."""

POOL = 16
"""Number of batches that are sorted by length together."""

ORDER = 2
"""Version of the order of `example_order`; trainings with another version do not resume."""


class Teacher:
    """The full model's answers on all training examples, computed once, and the loss to them.

    With a ``metric``, it stands in place of KL: itself as the loss, or its negative if more of it
    is better. `InputError` if it says neither, or reads all positions.
    """

    def __init__(
        self,
        model: Any,
        data: EncodedExamples,
        settings: PruneSettings,
        metric: Metric | None = None,
    ) -> None:
        check_examples(data)
        self.model, self.data, self.settings = model, data, settings
        if metric is not None and directed(metric, "pruning").everywhere:
            raise InputError(
                f"pruning: metric {metric.name!r} reads all positions; expected one of the last"
            )
        self.targets = None if metric is None else Targets(metric, model, data, None)
        if self.targets is None:
            self.readout = Readout.of(model, data, labelled=False)
        else:
            self.readout = self.targets.readout
        self.has_mlps = ModelShape.of(model).has_mlps
        self.bfloat16 = settings.precision == "bfloat16" or (
            settings.precision == "auto"
            and model.cfg.d_model >= WIDE
            and is_fast_at_bfloat16(device_of(model))
        )
        rows: list[Tensor] = []
        index: list[Tensor] = []
        self.stack: Stack | None = None
        with torch.no_grad(), progress.bar("full model", self.n_batches) as advance:
            for batch in map(self.readout.asked, data.batches(settings.batch_size)):
                logits = forward(model, batch)
                index.append(batch["index"])
                inputs = model_inputs(model, batch)
                rows.append(self.readout.read(logits, inputs, batch["index"]))
                if len(rows) == 1:
                    self.stack = self._stack(inputs, rows[0])
                advance()
        self.logits = torch.cat(rows).float()[sent(torch.cat(index).argsort(), rows[0].device)]
        self._known: tuple[MeanActivations | None, MeanActivations | None] = (None, None)

    def _stack(self, inputs: Batch, expected: Tensor) -> Stack | None:
        """A copy of the model's layers as functions, if it gives the model's answers."""
        if sum(weight.nbytes for weight in self.model.parameters()) > 2**32:  # bytes
            return None
        try:
            stack = self.readout.of_stack(stack_of(self.model))
        except InputError:
            return None
        shape = ModelShape.of(self.model)
        full = torch.ones(1, shape.n_layers, shape.columns, device=expected.device)
        z, mlp = (torch.zeros(shape.n_layers, 1, device=expected.device) for _ in range(2))
        got = masked_stack(stack, inputs, read_position(self.model, inputs), full, z[:, None], mlp)
        if disagreement(self.readout.classes(got[0]).float(), expected):
            return None
        return stack.to(torch.bfloat16) if self.bfloat16 else stack

    def kl_gradients(
        self,
        values: Float[Tensor, "masks *draw layer component"],
        means: MeanActivations,
        examples: Sequence[int],
        fill: FillMaker = "mean",
        dropout_seeds: Sequence[int] = (),
    ) -> tuple[Float[Tensor, " masks"], Float[Tensor, "masks *draw layer component"]]:
        """KL(full model || subnetwork), or loss, of every mask, batch mean, and its gradient.

        With ``dropout_seeds``, one for each mask, masked models run in turn, with dropout.
        """
        losses: list[Tensor] = []
        gradients: list[Tensor] = []
        parts = values.detach().split(1 if dropout_seeds else self.settings.masks_per_pass)
        for i, part in enumerate(parts):
            leaf = part.clone().requires_grad_()
            seed = dropout_seeds[i] if dropout_seeds else None
            kl = self.divergences(leaf, means, examples, fill, seed).mean(-1)
            gradients.append(*torch.autograd.grad(kl.sum(), leaf))
            losses.append(kl.detach())
        return torch.cat(losses).cpu(), torch.cat(gradients)

    def divergences(
        self,
        values: Float[Tensor, "masks *draw layer component"],
        means: MeanActivations,
        examples: Sequence[int],
        fill: FillMaker = "mean",
        dropout_seed: int | None = None,
    ) -> Float[Tensor, "masks example"]:
        """KL(full model || masked model), nats, of all masks in one forward.

        Gradients flow into ``values`` and ``means``. Several draws are distributed over
        ``examples`` (rows of the data) in order, as evenly as possible. With ``dropout_seed`` the
        masked models run in training mode, with dropout drawn from it.
        """
        batch = self.readout.asked(self.data.rows(examples))
        inputs = model_inputs(self.model, batch)
        wanted = self.logits[sent(examples, self.logits.device)].log_softmax(-1)
        if values.ndim == 4:  # a mask for every row
            n_rows, n_draws = len(inputs["input_ids"]), values.shape[1]
            draw = torch.arange(len(examples)) * n_draws // len(examples)
            values = chosen(values, 1, draw.repeat(n_rows // len(examples)).tolist())
        means = self._means_on_device(means)
        stack = self.stack if dropout_seed is None else None  # it has no dropout
        if stack is not None and fill == "mean" and not means.per_position:
            read = read_position(self.model, inputs)
            logits = masked_stack(stack, inputs, read, values, means.z, means.mlp)
            count_passes(self.model, logits)
            logits = self.readout.classes(logits)
            self.readout.check(logits, examples)
        else:
            maker = FILLS[fill] if isinstance(fill, str) else fill  # the means are already checked
            logits = self._hooked(batch, values, means, maker, dropout_seed)
            logits = self.readout.read(logits, inputs, examples)
        if self.targets is not None:
            return self._losses(logits.float(), batch, examples)
        got = logits.float().log_softmax(-1)
        return (wanted.exp() * (wanted - got)).sum(-1)

    def _losses(self, logits: Tensor, batch: Batch, examples: Sequence[int]) -> Tensor:
        """The metric's losses [mask, example]."""
        assert self.targets is not None
        metric = self.targets.metric
        asked = self.targets.asked(batch, self.logits[sent(examples, self.logits.device)])
        values = torch.stack([metric(of_mask, asked) for of_mask in logits.cpu()])
        if logits.requires_grad and not values.requires_grad:
            raise InputError(
                f"pruning: metric {metric.name!r} has no gradient; expected one that varies with "
                "the logits without steps, such as margin or logit_difference"
            )
        return (metric.worse * values).to(self.logits)

    def _hooked(
        self,
        batch: Batch,
        values: Tensor,
        means: MeanActivations,
        fill: FillMaker,
        seed: int | None,
    ) -> Float[Tensor, "masks batch *pos out"]:
        """The logits of `masked`, the reference for any model and fill."""
        n_masks, by_row = len(values), values.ndim == 4
        mask = Mask(values.flatten(0, 1) if by_row else values, has_mlps=self.has_mlps)
        device = self.logits.device.type
        precision = torch.autocast(device, torch.bfloat16) if self.bfloat16 else nullcontext()
        dropout = nullcontext() if seed is None else self._dropout(seed)
        with precision, masked(self.model, mask, means, fill) as run, dropout:
            if not by_row:
                return run(batch)
            rows = {k: x.repeat(n_masks, *[1] * (x.ndim - 1)) for k, x in batch.items()}
            return run.rows(rows).unflatten(0, (n_masks, -1))

    @contextmanager
    def _dropout(self, seed: int) -> Iterator[None]:
        """Run the model with dropout, without changing the session's generators."""
        device = device_of(self.model)
        with (
            evaluating(self.model, training=True),
            torch.random.fork_rng([device] if device.type == "cuda" else []),
        ):
            torch.manual_seed(seed)
            yield

    def _means_on_device(self, means: MeanActivations) -> MeanActivations:
        """Means on the model's device, checked and moved once unless they are trained."""
        known = self._known[1] is not None and means is self._known[0]
        if not known or means.z.requires_grad:
            check_means(means, self.model)
            self._known = (means, means.to(device_of(self.model)))
        there = self._known[1]
        assert there is not None
        return there

    @torch.no_grad()
    def mean_divergences(
        self,
        values: Float[Tensor, "masks layer component"],
        means: MeanActivations,
        advance: Callable[[], None],
    ) -> Float[Tensor, " masks"]:
        """KL(full model || masked model) of every mask, nats, float64 mean over all examples."""
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
    """The teacher of rankings, which need precise effects: in float32 on any hardware."""
    data = as_encoded(model, data, split="train", labelled=False)
    return Teacher(model, data, PruneSettings(batch_size=batch_size, precision="float32"))


def check_examples(data: EncodedExamples) -> None:
    """Raise `InputError` if there are no examples."""
    if not len(data):
        raise InputError(f"examples {data.examples.name!r}: none; expected at least one")


def is_fast_at_bfloat16(device: torch.device) -> bool:
    """Whether the hardware has instructions for products of bfloat16 matrices."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()


def example_order(lengths: Sequence[int], batch_size: int, seed: int) -> Iterator[list[int]]:
    """Endless batches of example numbers, of similar length within a batch.

    Every pass over the data is shuffled, split into pools of up to `POOL` batches, sorted by length
    within each pool, and the pool's batches are shuffled again. No batch repeats an example, unless
    it is larger than the data.
    """
    generator = torch.Generator().manual_seed(seed)
    n_batches = min(POOL, max(1, len(lengths) // batch_size))
    size = n_batches * batch_size
    waiting: list[int] = []
    while True:
        begun = set(waiting)
        while len(waiting) < size:
            order = torch.randperm(len(lengths), generator=generator).tolist()
            first = [i for i in order if i not in begun][: size - len(waiting)]
            taken = set(first)
            waiting += [*first, *(i for i in order if i not in taken)]
        pool, waiting = waiting[:size], waiting[size:]
        pool.sort(key=lambda i: lengths[i])
        for k in torch.randperm(n_batches, generator=generator).tolist():
            yield pool[k * batch_size : (k + 1) * batch_size]
