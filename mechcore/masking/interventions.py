"""The one intervention: ``x -> fill + m * (x - fill)`` at every component's output.

Only it, `mechcore.masking.blinding` and `mechcore.ablation.engines.restart` write to those hooks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechcore.components import Mask
from mechcore.errors import InputError, MechcoreError
from mechcore.masking.fills import Fill, FillMaker, Kind, fill_of
from mechcore.masking.means import MeanActivations
from mechcore.models.batches import real_positions
from mechcore.models.devices import sent
from mechcore.models.hooks import Hook, evaluating, hooked
from mechcore.models.model_identity import check_masks
from mechcore.models.protocol import (
    Batch,
    check_hooks,
    device_of,
    logits_of,
    model_inputs,
    output_hooks,
)
from mechcore.models.stack import Stack
from mechcore.session import plain_numbers

_masked_models: weakref.WeakSet[Any] = weakref.WeakSet()


class MaskedModel:
    """Runs batches through a model while it is masked; made by `masked`."""

    def __init__(self, model: Any, n_masks: int | None, fill: Fill) -> None:
        self.model, self.n_masks, self.fill = model, n_masks, fill
        self.positions: Tensor | None = None
        self.at_rest = False  # while the fill prepares, hooks leave the model as it is

    @plain_numbers()
    def __call__(self, batch: Batch) -> Float[Tensor, "*masks batch *pos out"]:
        """Logits of ``batch``, with a leading axis of masks if the mask has one."""
        inputs = model_inputs(self.model, batch)
        positions = real_positions(inputs["attention_mask"])
        self._prepare(batch)
        if self.n_masks is None:
            return self._run(inputs, positions)
        repeated = {name: tensor.repeat(self.n_masks, 1) for name, tensor in inputs.items()}
        return self._run(repeated, positions).unflatten(0, (self.n_masks, -1))

    @plain_numbers()
    def rows(self, batch: Batch) -> Float[Tensor, "batch *pos out"]:
        """Logits of ``batch`` with the first mask on its first row, and so on."""
        inputs = model_inputs(self.model, batch)
        n_rows = len(inputs["input_ids"])
        if n_rows != self.n_masks:
            raise InputError(
                f"masked: {n_rows} rows and {self.n_masks or 1} masks; expected one for each row"
            )
        self._prepare(batch)
        return self._run(inputs, real_positions(inputs["attention_mask"])[:, None])

    def _prepare(self, batch: Batch) -> None:
        self.at_rest = True
        try:
            self.fill.prepare(batch)
        finally:
            self.at_rest = False

    def _run(self, inputs: Batch, positions: Tensor) -> Tensor:
        self.positions = positions
        try:
            return logits_of(self.model, inputs)
        finally:
            self.positions = None


ELSEWHERE = (
    "masked: another thread has masked this model; run it in the thread that entered the block, or "
    "run a copy (copy.deepcopy), which is not masked"
)


@contextmanager
def masked(
    model: Any,
    mask: Mask,
    means: MeanActivations | None = None,
    fill: FillMaker = "mean",
    *,
    seed: int = 0,
) -> Iterator[MaskedModel]:
    """Mask the components of ``model`` for the duration of a with block.

    Inside the block ``model(...)`` itself is masked; the value of the with statement runs a batch
    and, for a batched mask, repeats its rows for every mask. Rows passed to ``model(...)``
    directly under a batched mask must be ordered mask by mask: [masks * batch, pos].
    The model is in evaluation mode inside the block and has its own again after it. Only the
    thread that entered the block can run the model there; deep copies of it are not masked.

    Args:
        model: any TransformerLens model.
        mask: one mask or several; gradients flow into its values. A component whose value is
            exactly 1 keeps its output bit for bit. Values changed inside the block take effect
            from the next run on.
        means: the model's mean activations; not needed for ``fill="zero"``.
        fill: what replaces an ablated output: its mean, zero, the output at a random token of the
            data that ``means`` was computed on, a registered fill by name, or a function that makes
            one, such as `Counterfactual.of` paired examples.
        seed: of the draws for ``fill="resample"``.

    Raises:
        MismatchError: mask or means belong to another model.
        InputError: ``mask``, ``means`` or ``fill`` has another type, means are missing, the fill
            is unknown, or the mask got invalid values inside the block.
        MechcoreError: the model is already masked, or another thread runs it inside the block.

    >>> with masked(model, Mask.full(model).without("L0.H1"), means) as run:  # doctest: +SKIP
    ...     logits = run(batch)
    """
    check_masks([mask], model)
    with plain_numbers():
        filling = fill_of(model, means, fill, seed)
        filling.check(mask.values)
    runner = MaskedModel(model, len(mask) if mask.is_batched else None, filling)
    hooks: list[tuple[str, Any]] = [*filling.hooks()]
    values = _Values(mask, model)
    for kind, layer, name in output_hooks(mask.shape):
        hooks.append((name, _hook(values, kind, layer, runner)))
    with intervening(model, hooks):
        yield runner


class _Values:
    """A mask's current values, on the model's device."""

    def __init__(self, mask: Mask, model: Any) -> None:
        self.mask, self.model, self.shape = mask, model, mask.values.shape

    def update(self) -> None:
        """Read the mask's values, before each run; raises `InputError` if they became invalid."""
        values = self.mask.values
        self.mask.check(self.model)
        if values.shape != self.shape:
            raise InputError(
                f"masked: the shape of the mask's values changed from {tuple(self.shape)} to "
                f"{tuple(values.shape)} inside the block; use another mask, in its own block"
            )
        flat = values.detach().reshape(-1, *values.shape[-2:])
        self.ones = (flat == 1).all(0).tolist()  # whether a value is 1 in all masks
        # A copy, as gradients are computed after the values may have changed in place.
        self.there = sent(values if values.requires_grad else values.clone(), device_of(self.model))

    def of(self, kind: Kind, layer: int) -> Tensor | None:
        """[*masks, head, 1] of a layer's heads, [*masks, 1] of its MLP; None where all are 1."""
        n_heads = self.mask.shape.n_heads
        columns = slice(n_heads) if kind == "z" else slice(n_heads, None)
        if not self.there.requires_grad and all(self.ones[layer][columns]):
            return None
        values = self.there[..., layer, columns]
        return values[..., None] if kind == "z" else values


@contextmanager
def intervening(model: Any, hooks: Sequence[tuple[str, Hook]]) -> Iterator[None]:
    """Change outputs of components in this thread, evaluating; `MechcoreError` if masked."""
    if model in _masked_models:
        raise MechcoreError(
            "masked: this model is already masked; leave the outer block first, or combine the "
            "masks with & before masking"
        )
    check_hooks(model, [name for name, _ in hooks])
    _masked_models.add(model)
    try:
        with evaluating(model), hooked(model, hooks, ELSEWHERE):
            yield
    finally:
        _masked_models.discard(model)


def blended(
    rows: Float[Tensor, "*masks batch pos *rest"], m: Tensor, fill: Tensor
) -> Float[Tensor, "*masks batch pos *rest"]:
    """``fill + m * (rows - fill)``; mask values and fill broadcast against the activation."""
    # lerp is exact where m is 0 or 1, and differentiable in m.
    return torch.lerp(fill.to(rows).expand_as(rows), rows, m.to(rows))


def _hook(
    values: _Values, kind: Kind, layer: int, runner: MaskedModel
) -> Callable[[Tensor, Any], Tensor]:
    """Hook for an activation [rows, pos, *rest] and mask values [*masks, *rest]."""
    n_masks, fill = runner.n_masks, runner.fill

    def apply(activation: Tensor, hook: Any) -> Tensor:
        if runner.at_rest:
            return activation
        if (kind, layer) == ("z", 0):  # the first of these hooks that a model runs
            values.update()
        m, rows = values.of(kind, layer), activation
        if m is None:
            return activation
        if n_masks is not None:
            if len(activation) % n_masks:
                raise InputError(
                    f"masked: {len(activation)} rows for {n_masks} masks; expected the batch "
                    "repeated once per mask: call the value of the with statement instead of the "
                    "model"
                )
            rows = activation.unflatten(0, (n_masks, -1))
            m = m.reshape(n_masks, 1, 1, *m.shape[1:])
        one_mask = rows if n_masks is None else rows[0]
        draws = fill.draws(kind, layer, one_mask.shape)
        out = blended(rows, m, fill.checked(kind, layer, runner.positions, draws))
        return out if n_masks is None else out.flatten(0, 1)

    return apply


def masked_stack(
    stack: Stack,
    inputs: Mapping[str, Tensor],
    read: Int[Tensor, " batch"],
    values: Float[Tensor, "mask *batch layer component"],
    z_fill: Float[Tensor, "layer head d_head"],
    mlp_fill: Float[Tensor, "layer d_model"],
) -> Float[Tensor, "mask batch out"]:
    """Logits at the position that is read, under every mask; gradients flow into masks and fills.

    ``inputs`` are those of `mechcore.models.protocol.model_inputs`. Values are those of the masks,
    or of every mask for every row.
    """
    n_masks, n_heads, every = len(values), stack.n_heads, list(range(stack.n_heads))
    context = stack.context(inputs, read)
    x = stack.embed(inputs)  # shared by all masks until the first layer's heads are masked
    rows = (-1, len(x))
    values = sent(values if values.ndim == 4 else values[:, None], x.device).to(x)[:, :, None]
    for layer in range(len(stack.layers)):
        z = stack.z(layer, x, context, every).unflatten(0, rows)
        z = blended(z, values[..., layer, :n_heads, None], z_fill[layer])
        kept = stack.kept_positions(layer, x, context).unflatten(0, rows)
        x = stack.after_attention(layer, kept + stack.project(layer, z, every, bias=True))
        out = blended(stack.mlp(layer, x), values[..., layer, n_heads:], mlp_fill[layer])
        x = stack.after_mlp(layer, x + out).flatten(0, 1)
    return stack.out(stack.head(x[:, 0])).unflatten(0, (n_masks, -1))
