"""Many masks in one forward of a `Stack`: a faster version of `masked`, which is the reference."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float, Int
from torch import Tensor

from mechcore.masking.interventions import blended
from mechcore.models.devices import sent
from mechcore.models.stack import Stack


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
