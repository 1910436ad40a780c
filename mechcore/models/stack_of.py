"""Reading the weights of a model into a `Stack`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from mechcore.models.architectures.base import architecture_of, unsupported
from mechcore.models.architectures.layers import activation, copied, embedding
from mechcore.models.running import devices_of, kind_of
from mechcore.models.stack import Activation, Layer, Linear, Norm, Stack

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
        model: a HookedTransformer, or a TransformerBridge of a family that offers its layers as
            functions (`mechcore.models.architectures`).

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
    return architecture_of(model.original_model.config).stack(model)


def _hooked(model: Any) -> Stack:
    cfg = model.cfg
    for name, plain in _HOOKED_PLAIN.items():
        found = getattr(cfg, name, plain)
        if found != plain and found:
            raise unsupported(f"a HookedTransformer with {name}={found!r}")
    for name in ("attn_scores_soft_cap", "output_logits_soft_cap"):
        if getattr(cfg, name, -1.0) > 0:
            raise unsupported(f"a HookedTransformer with {name}={getattr(cfg, name)}")
    positional = cfg.positional_embedding_type
    if positional not in ("standard", "rotary") or cfg.normalization_type not in _HOOKED_NORMS:
        raise unsupported(
            f"a HookedTransformer with {positional} positions and {cfg.normalization_type} norms"
        )
    layers = tuple(_hooked_layer(block, cfg, i) for i, block in enumerate(model.blocks))
    norm, out = _hooked_norm(getattr(model, "ln_final", None), cfg), model.unembed
    words = model.embed.W_E.detach().clone()
    positions = model.pos_embed.W_pos.detach().clone() if positional == "standard" else None
    return Stack(
        layers=layers,
        n_heads=cfg.n_heads,
        n_kv_heads=cfg.n_heads,
        d_head=cfg.d_head,
        post_norm=False,
        causal=cfg.attention_dir == "causal",
        activation=_hooked_activation(model),
        embed=embedding(words, positions),
        head=(lambda x: x) if norm is None else norm,
        out=Linear(out.W_U.detach().T.contiguous(), out.b_U.detach().clone()),
        rotary=_hooked_rotary(model) if positional == "rotary" else None,
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
    weight, bias = (copied(getattr(module, name, None)) for name in "wb")
    return Norm(weight, bias, float(cfg.eps), _HOOKED_NORMS[cfg.normalization_type])


def _hooked_activation(model: Any) -> Activation:
    if model.cfg.attn_only:
        return F.gelu
    if model.cfg.act_fn in ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "silu"):
        return activation(model.cfg.act_fn)
    raise unsupported(f"a HookedTransformer with the activation {model.cfg.act_fn}")


def _hooked_rotary(model: Any) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    if model.cfg.rotary_adjacent_pairs:
        raise unsupported("a HookedTransformer with rotary_adjacent_pairs=True")
    attn = model.blocks[0].attn
    cos, sin = attn.rotary_cos.detach().clone(), attn.rotary_sin.detach().clone()
    return lambda positions: (cos[positions], sin[positions])
