"""Reading the weights of a model into a `Stack`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.pytorch_utils import Conv1D

from mechcore.errors import InputError
from mechcore.models.running import devices_of, is_classifier, kind_of, weights_of
from mechcore.models.stack import Activation, Inputs, Layer, Linear, Norm, Stack

ENCODERS = ("bert", "roberta")
LLAMA_LIKE = ("llama", "mistral", "qwen2")
MODEL_TYPES = (*ENCODERS, "gpt2", *LLAMA_LIKE)

_TANH_GELUS = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
_HOOKED_NORMS = {"LN": False, "LNPre": False, "RMS": True, "RMSPre": True, None: False}
_HOOKED_PLAIN = {
    "attn_types": None,
    "clip_qkv": None,
    "final_rms": False,
    "load_in_4bit": False,
    "num_experts": None,
    "parallel_attn_mlp": False,
    "post_embedding_ln": False,
    "use_attention_sinks": False,
    "use_dynamic_ntk_rope": False,
    "use_local_attn": False,
    "use_logn_attn": False,
    "use_normalization_before_and_after": False,
    "use_qk_norm": False,
}
"""Settings of a HookedTransformer, and the values with which it is a plain one."""


def stack_of(model: Any) -> Stack:
    """The model's weights as a `Stack`; a copy, so later changes of the model do not reach it.

    Args:
        model: a TransformerBridge of a BERT, RoBERTa, GPT-2, Llama, Mistral or Qwen2 classifier
            or causal language model, or a HookedTransformer.

    Raises:
        InputError: the model is of another kind, or has a part that a `Stack` has not.
    """
    kind = kind_of(model)
    if len(devices := devices_of(model)) > 1:
        raise unsupported(f"a model on several devices ({', '.join(map(str, devices))})")
    if kind == "hooked-transformer":
        return _hooked(model)
    if kind != "bridge":
        raise unsupported(f"a {type(model).__name__}")
    config = model.original_model.config
    if config.model_type not in MODEL_TYPES:
        raise unsupported(f"a bridge of {type(model.original_model).__name__}")
    return _bridge(model, config)


def unsupported(found: str) -> InputError:
    """The error for a model that only the plain path can run."""
    return InputError(
        f"prefix-sharing engine: found {found}; expected a TransformerBridge of "
        f"{', '.join(MODEL_TYPES)} with its usual settings, or a HookedTransformer, on one device; "
        "engine='reference' runs any model"
    )


# -- bridges --------------------------------------------------------------------------------------


def _bridge(model: Any, config: Any) -> Stack:
    encoder = config.model_type in ENCODERS
    n_heads, size = int(model.cfg.n_heads), int(model.cfg.d_head)
    _check_attention(config)
    rotary = None
    head, out = _bridge_head(model, encoder)
    if config.model_type in LLAMA_LIKE:
        rotary = _rotary(model.original_model.base_model.rotary_emb)
    name = config.activation_function if config.model_type == "gpt2" else config.hidden_act
    return Stack(
        layers=tuple(
            _bridge_layer(block, size, _scale(config, size, i))
            for i, block in enumerate(model.blocks)
        ),
        n_heads=n_heads,
        n_kv_heads=int(getattr(config, "num_key_value_heads", None) or n_heads),
        d_head=size,
        post_norm=encoder,
        causal=not encoder,
        activation=_activation(name),
        embed=_bridge_embedding(model, config),
        head=head,
        out=out,
        rotary=rotary,
    )


def _check_attention(config: Any) -> None:
    if config.model_type in ENCODERS and config.is_decoder:
        raise unsupported(f"a {config.model_type} with is_decoder=True")
    window = getattr(config, "sliding_window", None)
    slides = config.model_type == "mistral" or "sliding_attention" in (
        getattr(config, "layer_types", None) or ()
    )
    if slides and window is not None and window < config.max_position_embeddings:
        raise unsupported(f"a {config.model_type} with a sliding window of {window} positions")


def _scale(config: Any, size: int, layer: int) -> float:
    scale = size**-0.5
    if config.model_type == "gpt2":
        if not config.scale_attn_weights:
            scale = 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scale /= layer + 1
    return scale


def _bridge_layer(block: Any, size: int, scale: float) -> Layer:
    attn, mlp = block.attn, block.mlp
    return Layer(
        qkv=Linear.joined([_linear(attn.q), _linear(attn.k), _linear(attn.v)]),
        o=_linear(attn.o),
        up=_linear(getattr(mlp, "in")),
        gate=_linear(mlp.gate) if hasattr(mlp, "gate") else None,
        down=_linear(mlp.out),
        norm_attn=_norm(block.ln1),
        norm_mlp=_norm(block.ln2),
        scale=scale,
    )


def _linear(component: Any) -> Linear:
    inner = _inner(component)
    weight, bias = inner.weight.detach(), inner.bias
    weight = weight.T.contiguous() if isinstance(inner, Conv1D) else weight.clone()
    return Linear(weight, None if bias is None else bias.detach().clone())


def _norm(component: Any) -> Norm:
    inner = _inner(component)
    bias = getattr(inner, "bias", None)
    rms = not isinstance(inner, torch.nn.LayerNorm)
    eps = inner.variance_epsilon if rms else inner.eps
    weight = inner.weight.detach().clone()
    return Norm(weight, None if bias is None else bias.detach().clone(), float(eps), rms)


def _inner(component: Any) -> Any:
    """The Hugging Face module inside a bridge's component."""
    return getattr(component, "original_component", component)


def _bridge_embedding(model: Any, config: Any) -> Callable[[Inputs], Tensor]:
    words = _inner(model.embed).weight.detach().clone()
    if config.model_type in LLAMA_LIKE:
        return lambda inputs: F.embedding(inputs["input_ids"], words)
    positions = _inner(model.pos_embed).weight.detach().clone()
    if config.model_type == "gpt2":

        def embed_gpt2(inputs: Inputs) -> Tensor:
            place = (inputs["attention_mask"].long().cumsum(1) - 1).clamp(min=0)
            return F.embedding(inputs["input_ids"], words) + F.embedding(place, positions)

        return embed_gpt2
    types = _inner(model.token_type_embed).weight.detach().clone()
    norm = _norm(model.embed_ln)
    pad = config.pad_token_id if config.model_type == "roberta" else None

    def embed_encoder(inputs: Inputs) -> Tensor:
        ids = inputs["input_ids"]
        if pad is None:
            place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        else:  # RoBERTa counts positions over what is no padding, from its padding id on
            real = (ids.masked_fill(inputs["attention_mask"] == 0, pad) != pad).long()
            place = real.cumsum(1) * real + pad
        segments = inputs.get("token_type_ids")
        segments = torch.zeros_like(ids) if segments is None else segments
        x = F.embedding(ids, words) + F.embedding(segments, types) + F.embedding(place, positions)
        return norm(x)

    return embed_encoder


def _bridge_head(model: Any, encoder: bool) -> tuple[Callable[[Tensor], Tensor], Linear]:
    if not encoder:
        last = model.classifier if is_classifier(model) else model.unembed
        return _norm(model.ln_final), _linear(last)
    if not is_classifier(model):
        raise unsupported(f"a bridge of {type(model.original_model).__name__}")
    hf_model: Any = weights_of(model)
    if hf_model.config.model_type == "bert":
        dense = _linear(hf_model.get_submodule("bert.pooler.dense"))
        out = _linear(model.classifier)
    else:
        dense, out = _linear(model.classifier), _linear(model.classifier_out)
    return lambda x: torch.tanh(dense(x)), out


def _rotary(module: Any) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    module = _inner(module)
    like = torch.empty(0, device=module.inv_freq.device)
    return lambda positions: module(like, positions)


def _activation(name: str) -> Activation:
    if name in _TANH_GELUS:
        return lambda x: F.gelu(x, approximate="tanh")
    return F.gelu if name == "gelu" else ACT2FN[name]


# -- HookedTransformer ----------------------------------------------------------------------------


def _hooked(model: Any) -> Stack:
    cfg = model.cfg
    for name, plain in _HOOKED_PLAIN.items():
        found = getattr(cfg, name, plain)
        if found != plain and found:
            raise unsupported(f"a HookedTransformer with {name}={found!r}")
    for name in ("attn_scores_soft_cap", "output_logits_soft_cap"):
        if getattr(cfg, name, -1.0) > 0:
            raise unsupported(f"a HookedTransformer with {name}={getattr(cfg, name)}")
    embedding = cfg.positional_embedding_type
    if embedding not in ("standard", "rotary") or cfg.normalization_type not in _HOOKED_NORMS:
        raise unsupported(
            f"a HookedTransformer with {embedding} positions and {cfg.normalization_type} norms"
        )
    layers = tuple(_hooked_layer(block, cfg, i) for i, block in enumerate(model.blocks))
    norm, out = _hooked_norm(getattr(model, "ln_final", None), cfg), model.unembed
    return Stack(
        layers=layers,
        n_heads=cfg.n_heads,
        n_kv_heads=cfg.n_heads,
        d_head=cfg.d_head,
        post_norm=False,
        causal=cfg.attention_dir == "causal",
        activation=_hooked_activation(model),
        embed=_hooked_embedding(model),
        head=(lambda x: x) if norm is None else norm,
        out=Linear(out.W_U.detach().T.contiguous(), out.b_U.detach().clone()),
        rotary=_hooked_rotary(model) if embedding == "rotary" else None,
    )


def _hooked_layer(block: Any, cfg: Any, layer: int) -> Layer:
    attn = block.attn
    projections = [
        Linear(w.detach().transpose(1, 2).flatten(0, 1), b.detach().flatten())
        for w, b in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K), (attn.W_V, attn.b_V))
    ]
    up = gate = down = None
    if not cfg.attn_only:
        up = Linear(block.mlp.W_in.detach().T.contiguous(), block.mlp.b_in.detach().clone())
        down = Linear(block.mlp.W_out.detach().T.contiguous(), block.mlp.b_out.detach().clone())
        if cfg.gated_mlp:
            gate = Linear(block.mlp.W_gate.detach().T.contiguous(), None)
            # TransformerLens adds b_in after the product with the gate, not before.
            if bool(up.bias is not None and (up.bias != 0).any()):
                raise unsupported("a HookedTransformer with a gated MLP and biases")
    scale = 1 / float(cfg.attn_scale) if cfg.use_attn_scale else 1.0
    if cfg.scale_attn_by_inverse_layer_idx:
        scale /= layer + 1
    return Layer(
        qkv=Linear.joined(projections),
        o=Linear(attn.W_O.detach().flatten(0, 1).T.contiguous(), attn.b_O.detach().clone()),
        up=up,
        gate=gate,
        down=down,
        norm_attn=_hooked_norm(block.ln1, cfg),
        norm_mlp=None if cfg.attn_only else _hooked_norm(block.ln2, cfg),
        scale=scale,
    )


def _hooked_norm(module: Any, cfg: Any) -> Norm | None:
    if cfg.normalization_type is None:
        return None
    weight, bias = (getattr(module, name, None) for name in "wb")
    return Norm(
        None if weight is None else weight.detach().clone(),
        None if bias is None else bias.detach().clone(),
        float(cfg.eps),
        _HOOKED_NORMS[cfg.normalization_type],
    )


def _hooked_activation(model: Any) -> Activation:
    name = model.cfg.act_fn
    if model.cfg.attn_only or name == "gelu":
        return F.gelu
    if name in _TANH_GELUS:
        return lambda x: F.gelu(x, approximate="tanh")
    if name in ("relu", "silu"):
        return getattr(F, name)
    raise unsupported(f"a HookedTransformer with the activation {name}")


def _hooked_embedding(model: Any) -> Callable[[Inputs], Tensor]:
    words = model.embed.W_E.detach().clone()
    if model.cfg.positional_embedding_type == "rotary":
        return lambda inputs: F.embedding(inputs["input_ids"], words)
    positions = model.pos_embed.W_pos.detach().clone()

    def embed(inputs: Inputs) -> Tensor:
        place = (inputs["attention_mask"].long().cumsum(1) - 1).clamp(min=0)
        return F.embedding(inputs["input_ids"], words) + F.embedding(place, positions)

    return embed


def _hooked_rotary(model: Any) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    if model.cfg.rotary_adjacent_pairs:
        raise unsupported("a HookedTransformer with rotary_adjacent_pairs=True")
    attn = model.blocks[0].attn
    cos, sin = attn.rotary_cos.detach().clone(), attn.rotary_sin.detach().clone()
    return lambda positions: (cos[positions], sin[positions])
