"""Building blocks for families' files: the weights of a bridge as a `Stack`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.pytorch_utils import Conv1D

from mechcore.models.architectures.base import architecture_of, unsupported
from mechcore.models.batches import real_positions
from mechcore.models.protocol import (
    devices_of,
    is_causal,
    is_classifier,
    kind_of,
    n_kv_heads,
    weights_of,
)
from mechcore.models.stack import Activation, Inputs, Layer, Linear, Norm, Stack


def stack_of(model: Any) -> Stack:
    """A copy of the model's weights as a `Stack`; `InputError` for unsupported parts."""
    if kind_of(model) != "bridge":
        raise unsupported(f"a {type(model).__name__}")
    if len(devices := devices_of(model)) > 1:
        raise unsupported(f"a model on several devices ({', '.join(map(str, devices))})")
    return architecture_of(model.original_model.config).stack(model)


def bridge_stack(
    model: Any,
    *,
    embed: Callable[[Inputs], Tensor],
    activation: Activation,
    head: Callable[[Tensor], Tensor] | None = None,
    out: Linear | None = None,
    post_norm: bool = False,
    scale: Callable[[int], float] | None = None,
    rotary: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
) -> Stack:
    """A `Stack` of a bridge whose layers have the usual parts; see `Stack` for the arguments.

    The parts are ``ln1``, ``ln2``, attention with ``q``, ``k``, ``v`` and ``o``, and an MLP with
    ``in``, ``out`` and optionally ``gate``. Defaults are those of decoders.
    """
    n_heads, size = int(model.cfg.n_heads), int(model.cfg.d_head)
    if out is None:
        out = linear(model.classifier if is_classifier(model) else model.unembed)
    return Stack(
        layers=tuple(
            _layer(block, size**-0.5 if scale is None else scale(i))
            for i, block in enumerate(model.blocks)
        ),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads(model),
        d_head=size,
        post_norm=post_norm,
        causal=is_causal(model),
        activation=activation,
        embed=embed,
        head=norm(model.ln_final) if head is None else head,
        out=out,
        rotary=rotary,
    )


def encoder_stack(
    model: Any,
    dense_and_out: Iterable[str],
    between: Activation,
    places: Callable[[Inputs], Tensor],
) -> Stack:
    """A `Stack` of an encoder's classifier that is BERT except for names; else an `InputError`.

    ``dense_and_out`` are Hugging Face's paths of the two matrices of the head, ``between`` is
    applied between them, and ``places`` gives rows of the position embeddings, [*batch, pos].
    """
    hf_model = weights_of(model)
    config: Any = hf_model.config
    if getattr(config, "is_decoder", False):
        raise unsupported(f"a {config.model_type} with is_decoder=True")
    if not is_classifier(model):
        raise unsupported(f"a bridge of {type(hf_model).__name__}")
    words, positions, after = weight(model.embed), weight(model.pos_embed), norm(model.embed_ln)
    types = weight(model.token_type_embed) if hasattr(model, "token_type_embed") else None
    project = linear(model.embed_project) if hasattr(model, "embed_project") else None
    dense, out = (linear(hf_model.get_submodule(path)) for path in dense_and_out)

    def embed(inputs: Inputs) -> Tensor:
        ids = inputs["input_ids"]
        x = F.embedding(ids, words)
        if types is not None:
            segments = inputs.get("token_type_ids")
            x = x + F.embedding(torch.zeros_like(ids) if segments is None else segments, types)
        x = after(x + F.embedding(places(inputs), positions))
        return x if project is None else project(x)

    return bridge_stack(
        model,
        embed=embed,
        head=lambda x: between(dense(x)),
        out=out,
        activation=activation(getattr(config, "hidden_act", None) or config.activation),
        post_norm=True,
    )


def _layer(block: Any, scale: float) -> Layer:
    attn, mlp = block.attn, block.mlp
    return Layer(
        qkv=Linear.joined([linear(attn.q), linear(attn.k), linear(attn.v)]),
        o=linear(attn.o),
        up=linear(getattr(mlp, "in")),
        gate=linear(mlp.gate) if hasattr(mlp, "gate") else None,
        down=linear(mlp.out),
        norm_attn=norm(block.ln1),
        norm_mlp=norm(block.ln2),
        scale=scale,
    )


def inner(component: Any) -> Any:
    """The Hugging Face module inside a bridge's component."""
    return getattr(component, "original_component", component)


def weight(component: Any) -> Tensor:
    """The weight of a bridge's component."""
    return inner(component).weight.detach().clone()


def _bias(module: Any) -> Tensor | None:
    bias = getattr(module, "bias", None)
    return None if bias is None else bias.detach().clone()


def linear(component: Any) -> Linear:
    """A linear map of a bridge."""
    module = inner(component)
    matrix = weight(module)
    matrix = matrix.T.contiguous() if isinstance(module, Conv1D) else matrix
    return Linear(matrix, _bias(module))


def norm(component: Any) -> Norm:
    """A normalisation of a bridge, over d_model."""
    module = inner(component)
    rms = not isinstance(module, torch.nn.LayerNorm)
    eps = float(module.variance_epsilon if rms else module.eps)
    return Norm(weight(module), _bias(module), eps, rms)


def embedding(
    words: Tensor, positions: Tensor | None = None, first: int = 0
) -> Callable[[Inputs], Tensor]:
    """Embedding of tokens and, if present, of positions counted from ``first``."""

    def embed(inputs: Inputs) -> Tensor:
        x = F.embedding(inputs["input_ids"], words)
        if positions is None:
            return x
        return x + F.embedding(real_positions(inputs["attention_mask"]) + first, positions)

    return embed


def activation(name: str) -> Activation:
    """An activation by its Hugging Face name."""
    if name in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"):
        return lambda x: F.gelu(x, approximate="tanh")
    return F.gelu if name == "gelu" else ACT2FN[name]
