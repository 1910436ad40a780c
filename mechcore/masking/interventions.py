"""The one intervention: ``x -> fill + m * (x - fill)`` at every component's output.

This is the only code that writes to ``blocks.{l}.attn.hook_z`` and ``blocks.{l}.hook_mlp_out``.
The fill is the component's mean activation (arXiv 2403.03942, section 3), zero, or the activation
of another token.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechcore.components import Mask
from mechcore.errors import InputError, MechcoreError
from mechcore.masking.means import MeanActivations, real_positions
from mechcore.models.measuring import evaluating, hooked
from mechcore.models.running import (
    Batch,
    check_hooks,
    check_masks,
    forward,
    hook_mlp_out,
    hook_z,
    model_inputs,
)

Mode: TypeAlias = Literal["mean", "zero", "resample"]
Kind: TypeAlias = Literal["z", "mlp"]

_masked_models: weakref.WeakSet[Any] = weakref.WeakSet()


class MaskedModel:
    """Runs batches through a model while it is masked; made by `masked`."""

    def __init__(self, model: Any, n_masks: int | None) -> None:
        self.model = model
        self.n_masks = n_masks
        self.positions: Tensor | None = None

    def __call__(self, batch: Batch) -> Float[Tensor, "*masks batch *pos out"]:
        """Logits of ``batch``, with a leading axis of masks if the mask has one."""
        inputs = model_inputs(self.model, batch)
        positions = real_positions(inputs["attention_mask"])
        if self.n_masks is None:
            return self._run(inputs, positions)
        repeated = {name: tensor.repeat(self.n_masks, 1) for name, tensor in inputs.items()}
        return self._run(repeated, positions).unflatten(0, (self.n_masks, -1))

    def rows(self, batch: Batch) -> Float[Tensor, "batch *pos out"]:
        """Logits of ``batch`` with the first mask on its first row, and so on.

        Raises:
            InputError: there are not as many masks as rows.
        """
        inputs = model_inputs(self.model, batch)
        n_rows = len(inputs["input_ids"])
        if n_rows != self.n_masks:
            raise InputError(
                f"masked: {n_rows} rows and {self.n_masks or 1} masks; expected one for each row"
            )
        return self._run(inputs, real_positions(inputs["attention_mask"])[:, None])

    def _run(self, inputs: Batch, positions: Tensor) -> Tensor:
        self.positions = positions
        try:
            return forward(self.model, inputs)
        finally:
            self.positions = None


_ELSEWHERE = (
    "masked: another thread has masked this model; run it in the thread that entered the block, or "
    "run a copy (copy.deepcopy), which is not masked"
)


@contextmanager
def masked(
    model: Any,
    mask: Mask,
    means: MeanActivations | None = None,
    mode: Mode = "mean",
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
            exactly 1 keeps its output bit for bit.
        means: the model's mean activations; not needed for ``mode="zero"``.
        mode: what replaces an ablated output: its mean, zero, or the output at a random token of
            the data that ``means`` was computed on.
        seed: of the draws for ``mode="resample"``.

    Raises:
        MismatchError: mask or means belong to another model.
        InputError: means are missing, or unknown mode.
        MechcoreError: the model is masked already, or inside the block another thread runs it.

    >>> with masked(model, Mask.full(model).without("L0.H1"), means) as run:  # doctest: +SKIP
    ...     logits = run(batch)
    """
    check_masks([mask], model)
    fills = Fills(model, means, mode, seed)
    if model in _masked_models:
        raise MechcoreError(
            "masked: this model is masked already; leave the outer block first, or combine the "
            "masks with & before masking"
        )
    runner = MaskedModel(model, len(mask) if mask.is_batched else None)
    hooks: list[tuple[str, Any]] = []
    for layer in range(mask.shape.n_layers):
        places: list[tuple[Kind, str, Tensor]] = [
            ("z", hook_z(layer), mask.heads[..., layer, :, None]),
            ("mlp", hook_mlp_out(layer), mask.mlps[..., layer, None]),
        ]
        for kind, name, values in places:
            if values.requires_grad or bool((values != 1).any()):
                hooks.append((name, _hook(values, kind, layer, fills, runner)))
    check_hooks(model, [name for name, _ in hooks])
    _masked_models.add(model)
    try:
        with evaluating(model), hooked(model, hooks, _ELSEWHERE):
            yield runner
    finally:
        _masked_models.discard(model)


def _hook(
    values: Tensor, kind: Kind, layer: int, fills: Fills, runner: MaskedModel
) -> Callable[[Tensor, Any], Tensor]:
    """Hook for an activation [rows, pos, *rest] and mask values [*masks, *rest]."""
    n_masks = runner.n_masks

    def apply(activation: Tensor, hook: Any) -> Tensor:
        m = values.to(activation)
        rows = activation
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
        draws = fills.draws(kind, layer, one_mask.shape)
        fill = fills.values(kind, layer, runner.positions, draws)
        # lerp is exact where m is 0 or 1, and differentiable in m.
        out = torch.lerp(fill.to(rows).expand_as(rows), rows, m)
        return out if n_masks is None else out.flatten(0, 1)

    return apply


class Fills:
    """What stands in for ablated outputs.

    Args:
        model: the model that is masked.
        means: its mean activations; not needed for ``mode="zero"``.
        mode: see `masked`.
        seed: of the draws of ``mode="resample"``.

    Raises:
        MismatchError: the means belong to another model.
        InputError: means are missing, or unknown mode.
    """

    def __init__(self, model: Any, means: MeanActivations | None, mode: Mode, seed: int) -> None:
        _check_means(model, means, mode)
        self._means = None if mode == "zero" else means
        self._resample, self._seed = mode == "resample", seed
        self._generators: dict[tuple[Kind, int], torch.Generator] = {}
        cfg = model.cfg
        self._zeros = {
            "z": torch.zeros(cfg.n_heads, cfg.d_head),
            "mlp": torch.zeros(cfg.d_model),
        }

    def draws(
        self, kind: Kind, layer: int, shape: Sequence[int]
    ) -> Int[Tensor, "batch pos"] | None:
        """Which sampled tokens stand in for outputs [batch, pos, ...]; None but for resampling.

        Every layer's heads and MLP draw on their own, one batch after another.
        """
        if not self._resample:
            return None
        key = (kind, layer)
        if key not in self._generators:
            seed = 2 * (self._seed * 10_007 + layer) + (kind == "mlp")
            self._generators[key] = torch.Generator().manual_seed(seed)
        n_samples = len(getattr(self._means, f"samples_{kind}"))
        return torch.randint(n_samples, tuple(shape[:2]), generator=self._generators[key])

    def values(
        self, kind: Kind, layer: int, positions: Tensor | None, draws: Tensor | None
    ) -> Float[Tensor, "*tokens rest"]:
        """One layer's fill: [*rest] for all tokens, or [batch, pos, *rest].

        Args:
            kind: ``"z"`` for heads, where rest is head and d_head, or ``"mlp"``, d_model.
            layer: number of the layer.
            positions: of every token from its row's first real one, [batch, pos].
            draws: what `draws` returned for the batch.

        Raises:
            InputError: the means are per position, and positions are unknown or too many.
        """
        if self._means is None:
            return self._zeros[kind]
        if draws is not None:
            return getattr(self._means, f"samples_{kind}")[draws, layer]
        mean = getattr(self._means, kind)
        if not self._means.per_position:
            return mean[layer]
        if positions is None:
            raise InputError(
                "masked: means per position need the attention mask; call the value of the with "
                "statement instead of the model"
            )
        positions = positions.to(mean.device)
        if int(positions.max()) >= len(mean):
            raise InputError(
                f"masked: input has {int(positions.max()) + 1} positions, the means per position "
                f"only {len(mean)}; compute them on longer texts, or pool positions"
            )
        return mean[positions, layer]


def _check_means(model: Any, means: MeanActivations | None, mode: Mode) -> None:
    if mode not in ("mean", "zero", "resample"):
        raise InputError(f"masked: mode is {mode!r}; expected 'mean', 'zero' or 'resample'")
    if mode == "zero":
        return
    if means is None:
        raise InputError(
            f"masked: mode {mode!r} needs means; pass MeanActivations.compute(model, batches), "
            "or use mode='zero'"
        )
    if mode == "resample" and len(means.samples_z) == 0:
        raise InputError(
            "masked: these means hold no sampled activations, which mode 'resample' needs; "
            "compute them with n_samples > 0"
        )
    means.check(model)
