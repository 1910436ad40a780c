"""A model's layers as plain functions of its weights, to run from any layer.

``row`` is an example under one mask; ``pos`` is 1 if only the read position is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from mechcore.models.batches import real_positions
from mechcore.models.devices import chosen

Activation: TypeAlias = Callable[[Tensor], Tensor]
Inputs: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Norm:
    """Layer normalisation or, with ``rms``, root-mean-square normalisation, over d_model."""

    weight: Tensor
    bias: Tensor | None
    eps: float
    rms: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise the last axis, in the precision of ``x``."""
        size = (x.shape[-1],)
        if self.rms:
            return F.rms_norm(x, size, self.weight, self.eps)
        return F.layer_norm(x, size, self.weight, self.bias, self.eps)


@dataclass(frozen=True, eq=False)
class Linear:
    """``x @ weight.T + bias``."""

    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"] | None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the map to the last axis."""
        return F.linear(x, self.weight, self.bias)

    @classmethod
    def joined(cls, parts: Sequence[Linear]) -> Linear:
        """One map with the concatenated outputs of ``parts``."""
        biases = None
        if any(part.bias is not None for part in parts):
            biases = torch.cat(
                [p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias for p in parts]
            )
        return cls(torch.cat([part.weight for part in parts]), biases)

    def to(self, dtype: torch.dtype) -> Linear:
        """The same in another precision."""
        return Linear(self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))


@dataclass(frozen=True, eq=False)
class Layer:
    """Weights of one layer.

    Attributes:
        qkv: to the queries of all heads, then the keys and values of all key-value heads.
        o: W_O, from z flattened over heads.
        norm_attn, norm_mlp: before attention and MLP or, with ``post_norm``, after them.
        scale: of the attention scores.
    """

    qkv: Linear
    o: Linear
    up: Linear
    gate: Linear | None
    down: Linear
    norm_attn: Norm
    norm_mlp: Norm
    scale: float

    def to(self, dtype: torch.dtype) -> Layer:
        """Matrices in another precision; normalisations stay as they are."""
        names = ("qkv", "o", "up", "gate", "down")
        parts: dict[str, Any] = {name: getattr(self, name) for name in names}
        changed: dict[str, Any] = {n: p and p.to(dtype) for n, p in parts.items()}
        return replace(self, **changed)


@dataclass(frozen=True, eq=False)
class Context:
    """What the layers need to know about one batch.

    Attributes:
        real: which positions hold tokens, or None if all do.
        rotary: cosines and sines of the rotary embedding, each [batch, 1, pos, rotated].
        read: position of the output read, [batch]; None for all.
        padded_right: whether all padding is on the right.
    """

    real: Bool[Tensor, "batch pos"] | None
    rotary: tuple[Tensor, Tensor] | None
    read: Int[Tensor, " batch"] | None
    padded_right: bool


@dataclass(frozen=True, eq=False)
class Stack:
    """A model as functions of its weights.

    Attributes:
        layers: the layers.
        n_heads, n_kv_heads, d_head: sizes of attention.
        post_norm: whether normalisation follows the residual add (BERT) or precedes the block.
        causal: whether positions attend only to earlier ones.
        activation: of the MLPs.
        embed: residual stream before the first layer, [batch, pos, d_model], of model inputs.
        head: from the residual stream after the last layer, [row, d_model], to the input of the
            last matrix, [row, d_model].
        out: the last matrix, to the logits.
        rotary: cosines and sines [batch, pos, rotated] of positions [batch, pos], or None.
    """

    layers: tuple[Layer, ...]
    n_heads: int
    n_kv_heads: int
    d_head: int
    post_norm: bool
    causal: bool
    activation: Activation
    embed: Callable[[Inputs], Tensor]
    head: Callable[[Tensor], Tensor]
    out: Linear
    rotary: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None

    def to(self, dtype: torch.dtype) -> Stack:
        """The same with the layers' matrix products in another precision.

        The residual stream, normalisations, softmax sums, embedding and head keep the model's own.
        """
        return replace(self, layers=tuple(layer.to(dtype) for layer in self.layers))

    def context(self, inputs: Inputs, read: Int[Tensor, " batch"] | None) -> Context:
        """The context of what `model_inputs` returned; ``read`` is the read position."""
        mask = inputs["attention_mask"] != 0
        rotary = None
        if self.rotary is not None:
            cos, sin = self.rotary(real_positions(mask))
            rotary = cos[:, None], sin[:, None]
        whole, right = torch.stack([mask.all(), (mask[:, 1:] <= mask[:, :-1]).all()]).tolist()
        return Context(None if whole else mask, rotary, read, right)

    # -- attention ------------------------------------------------------------------------------

    def z(
        self, layer: int, x: Float[Tensor, "row pos d_model"], context: Context, heads: list[int]
    ) -> Float[Tensor, "row pos head d_head"]:
        """Outputs of ``heads`` before W_O; in the last layer, only at the read position, if any."""
        weights = self.layers[layer]
        if not self.post_norm:
            x = weights.norm_attn(x)
        x = x.to(weights.qkv.weight.dtype)
        if layer == len(self.layers) - 1 and context.read is not None:
            return self._z_at(weights, x, context, heads)
        return self._z_everywhere(weights, x, context, heads)

    def _z_everywhere(
        self, weights: Layer, x: Tensor, context: Context, heads: list[int]
    ) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2)
            for part in self._projections(weights, heads)
        )
        if context.rotary is not None:
            q, k = self._rotated(q, context), self._rotated(k, context)
        masked = self._mask(context, len(x), x.shape[1])
        if q.requires_grad and q.device.type == "cpu":
            return self._with_gradients(q, k, v, masked, weights.scale)
        causal, grouped = self.causal and masked is None, k.shape[1] != q.shape[1]
        with attention_kernels(q.device):
            z = F.scaled_dot_product_attention(
                q, k, v, masked, is_causal=causal, scale=weights.scale, enable_gqa=grouped
            )
        return z.transpose(1, 2)

    def _with_gradients(
        self, q: Tensor, k: Tensor, v: Tensor, masked: Tensor | None, scale: float
    ) -> Tensor:
        """Attention step by step: the kernel's backward pass takes six times as long on a CPU."""
        if k.shape[1] != q.shape[1]:
            k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
        scores = (q * scale) @ k.mT
        if masked is None and self.causal:
            masked = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        if masked is not None:
            scores = scores.masked_fill(~masked, -torch.inf)
        return (scores.softmax(-1, dtype=torch.float32).to(v) @ v).transpose(1, 2)

    def _z_at(self, weights: Layer, x: Tensor, context: Context, heads: list[int]) -> Tensor:
        """Z at the read position.

        Scores and sums are over the residual stream itself: q . (W_K x) = (W_K^T q) . x, and
        sum_j p_j W_V x_j = W_V sum_j p_j x_j. A rotary embedding rotates keys by position, so
        there keys are computed.
        """
        assert context.read is not None
        rows = torch.arange(len(x), device=x.device)
        read = self._for_rows(context.read, len(x))
        query, key, value = self._projections(weights, heads)
        q = query(x[rows, read]).unflatten(-1, (-1, self.d_head))  # [row, head, d_head]
        groups = [i for i, _ in enumerate(heads)]
        if key.weight.shape[0] != query.weight.shape[0]:
            groups = [i * key.weight.shape[0] // query.weight.shape[0] for i in groups]
        if context.rotary is None:
            by_head = chosen(key.weight.unflatten(0, (-1, self.d_head)), 0, groups)
            scores = torch.einsum("rhd,hdm->rhm", q, by_head) @ x.mT
        else:
            k = self._rotated(key(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2), context)
            q = self._rotated(q[:, :, None], context, read)
            scores = (q @ chosen(k, 1, groups).mT).squeeze(2)
        scores = scores.float() * weights.scale
        allowed = self._readable(context, len(x), x.shape[1], read)
        if allowed is not None:
            scores = scores.masked_fill(~allowed[:, None], -torch.inf)
        seen = scores.softmax(-1).to(x) @ x  # [row, head, d_model]
        by_head = chosen(value.weight.unflatten(0, (-1, self.d_head)), 0, groups)
        z = torch.einsum("rhm,hdm->rhd", seen, by_head)
        if value.bias is not None:
            z = z + chosen(value.bias.unflatten(0, (-1, self.d_head)), 0, groups)
        return z[:, None]

    def _projections(self, weights: Layer, heads: list[int]) -> tuple[Linear, Linear, Linear]:
        """Maps to the queries, keys and values of ``heads``; grouped heads share keys."""
        n, kv, size = self.n_heads, self.n_kv_heads, self.d_head
        parts = weights.qkv.weight.split([n * size, kv * size, kv * size])
        biases: Sequence[Tensor | None] = (None, None, None)
        if weights.qkv.bias is not None:
            biases = weights.qkv.bias.split([n * size, kv * size, kv * size])
        q, k, v = (Linear(w, b) for w, b in zip(parts, biases, strict=True))
        if len(heads) == n:
            return q, k, v
        groups = [head * kv // n for head in heads]
        return self._chosen(q, heads), self._chosen(k, groups), self._chosen(v, groups)

    def _chosen(self, part: Linear, heads: list[int]) -> Linear:
        weight, bias = (
            None if x is None else chosen(x.unflatten(0, (-1, self.d_head)), 0, heads).flatten(0, 1)
            for x in (part.weight, part.bias)
        )
        assert weight is not None
        return Linear(weight, bias)

    def _rotated(self, x: Tensor, context: Context, at: Tensor | None = None) -> Tensor:
        """Rotary embedding of [row, head, pos, d_head], or of one position per row."""
        assert context.rotary is not None
        cos, sin = (self._for_rows(part, len(x)).to(x) for part in context.rotary)
        if at is not None:
            rows = torch.arange(len(x), device=x.device)
            cos, sin = cos[rows, :, at][:, :, None], sin[rows, :, at][:, :, None]
        turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
        first, second = turned.chunk(2, -1)
        turned = turned * cos + torch.cat((-second, first), -1) * sin
        return torch.cat((turned, rest), -1) if rest.shape[-1] else turned

    def _mask(self, context: Context, n_rows: int, n_pos: int) -> Tensor | None:
        """Which keys each query sees, [row, 1, pos or 1, pos]; None where `is_causal` suffices."""
        if context.real is None:
            return None
        real = self._for_rows(context.real, n_rows)[:, None, None]
        if not self.causal:
            return real
        if context.padded_right:
            return None  # real tokens come first and never see padding
        ones = torch.ones(n_pos, n_pos, dtype=torch.bool, device=real.device)
        return (real & ones.tril()) | torch.eye(n_pos, dtype=torch.bool, device=real.device)

    def _readable(
        self, context: Context, n_rows: int, n_pos: int, read: Tensor
    ) -> Bool[Tensor, "row pos"] | None:
        """Positions that the read position sees; None for all."""
        allowed = None if context.real is None else self._for_rows(context.real, n_rows)
        if not self.causal:
            return allowed
        earlier = torch.arange(n_pos, device=read.device) <= read[:, None]
        return earlier if allowed is None else allowed & earlier

    @staticmethod
    def _for_rows(values: Tensor, n_rows: int) -> Tensor:
        """Values of a batch repeated for every mask."""
        repeats = n_rows // len(values)
        return values if repeats == 1 else values.repeat(repeats, *[1] * (values.ndim - 1))

    # -- the rest of a layer --------------------------------------------------------------------

    def kept_positions(
        self, layer: int, x: Float[Tensor, "row pos d_model"], context: Context
    ) -> Float[Tensor, "row pos d_model"]:
        """The residual stream at the positions that attention in ``layer`` computes."""
        if layer < len(self.layers) - 1 or context.read is None:
            return x
        rows = torch.arange(len(x), device=x.device)
        return x[rows, self._for_rows(context.read, len(x))][:, None]

    def project(
        self, layer: int, z: Float[Tensor, "*rest head d_head"], heads: list[int], bias: bool
    ) -> Float[Tensor, "*rest d_model"]:
        """W_O applied to z of ``heads``, in the layer's precision."""
        o = self.layers[layer].o
        weight = o.weight
        if len(heads) < self.n_heads:
            weight = chosen(weight.unflatten(1, (self.n_heads, self.d_head)), 1, heads).flatten(1)
        return F.linear(z.flatten(-2).to(weight.dtype), weight, o.bias if bias else None)

    def project_each(
        self,
        layer: int,
        z: Float[Tensor, "row head batch pos d_head"],
        heads: Int[Tensor, "row head"],
    ) -> Float[Tensor, "row batch pos d_model"]:
        """W_O applied to z of different heads in every row, without its bias."""
        weight = self.layers[layer].o.weight.unflatten(1, (self.n_heads, self.d_head))
        weight = chosen(weight, 1, heads.flatten().tolist()).unflatten(1, heads.shape)
        return torch.einsum("rhbpd,mrhd->rbpm", z.to(weight.dtype), weight)

    def after_attention(self, layer: int, x: Tensor) -> Tensor:
        """The residual stream after adding attention."""
        return self.layers[layer].norm_attn(x) if self.post_norm else x

    def mlp(self, layer: int, x: Float[Tensor, "*rest d_model"]) -> Float[Tensor, "*rest d_model"]:
        """MLP output before the residual add."""
        weights = self.layers[layer]
        if not self.post_norm:
            x = weights.norm_mlp(x)
        x = x.to(weights.up.weight.dtype)
        inner = weights.up(x)
        if weights.gate is None:
            inner = self.activation(inner)
        else:
            inner = self.activation(weights.gate(x)) * inner
        return weights.down(inner)

    def after_mlp(self, layer: int, x: Tensor) -> Tensor:
        """The residual stream after adding the MLP."""
        return self.layers[layer].norm_mlp(x) if self.post_norm else x


def attention_kernels(device: torch.device) -> AbstractContextManager[None]:
    """A block without cuDNN's attention, which on a GPU plans for a second per new shape."""
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(kernels) if device.type == "cuda" else nullcontext()


def disagreement(got: Tensor, expected: Tensor, own: float = 0.0) -> str | None:
    """How logits differ from the model's, which rounding moves by ``own``; None if they agree."""
    difference = apart(got, expected)
    allowed = min(max(5e-2, 4 * own), 0.2) if expected.element_size() == 2 else 1e-3
    if difference <= allowed:
        return None
    return f"its logits differ from the model's by {difference:.2g} of their size"


def apart(got: Tensor, expected: Tensor) -> float:
    """The largest difference of logits, relative to the largest of them or 1 if that is more."""
    exact = expected.float()
    said = exact.isfinite()  # words never predicted have minus infinity in both
    scale = max(1.0, float(exact[said].abs().max()))
    return float((got - exact)[said | got.isfinite()].abs().max()) / scale
