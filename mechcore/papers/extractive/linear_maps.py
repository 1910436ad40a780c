"""The matrices of a decoder's layers: where their weights are, and which hook gives their output.

Every layer has W_Q, W_K, W_V, W_O and, with an MLP, W_in, W_out and for gated ones W_gate. Their
weights lie in other layouts on HookedTransformer, ``Linear`` and ``Conv1D``; a `LinearMap` knows
its own and shows any tensor of that shape by heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mechcore.errors import InputError
from mechcore.models.running import is_causal, kind_of, named_weights

Part: TypeAlias = Literal["Q", "K", "V", "O", "in", "gate", "out"]
Layout: TypeAlias = Literal["heads", "in out", "out in"]

PARTS: tuple[Part, ...] = get_args(Part)
ATTENTION: tuple[Part, ...] = ("Q", "K", "V", "O")
MLP: tuple[Part, ...] = ("in", "gate", "out")


@dataclass(frozen=True)
class LinearMap:
    """One matrix of one layer, ``y = x M + b``.

    Attributes:
        layer: from 0.
        part: which matrix.
        weight: its name among `mechcore.models.running.named_weights`.
        bias: the name of its bias; None if it has none.
        hook: the hook point of y. W_O's is the sum over heads.
        bias_hook: the hook point of what the bias is added to: y, but in HookedTransformer's gated
            MLPs the product with the gate.
        n_heads: heads whose matrices it holds: key-value heads for K and V, 1 for those of MLPs.
        layout: of the weight: ``"heads"`` for [head, in, out], else the order of its axes.
    """

    layer: int
    part: Part
    weight: str
    bias: str | None
    hook: str
    bias_hook: str
    n_heads: int
    layout: Layout

    def by_head(self, tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "head d_in d_out"]:
        """A tensor of the weight's shape (the weight, a change of it, its gradient) by heads."""
        if self.layout == "heads":
            return tensor if tensor.ndim == 3 else tensor[None]
        tensor = tensor if self.layout == "in out" else tensor.T
        if self.part == "O":
            return tensor.unflatten(0, (self.n_heads, -1))
        return tensor.unflatten(1, (self.n_heads, -1)).transpose(0, 1)

    def bias_by_head(self, tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "head d_out"]:
        """A tensor of the bias's shape by heads; W_O's is of no head, and has one row."""
        return tensor.reshape(1 if self.part == "O" else self.n_heads, -1)


def linear_maps(model: Any) -> tuple[LinearMap, ...]:
    """The matrices of all layers, in the order of `PARTS` within a layer.

    Args:
        model: a HookedTransformer, or a TransformerBridge of a decoder whose layers have attention
            with ``q``, ``k``, ``v``, ``o`` and an MLP with ``in``, ``out`` and perhaps ``gate``.

    Raises:
        InputError: the model is of another kind, or lacks one of these.
    """
    if not is_causal(model):
        raise InputError(
            f"model: {type(model).__name__} is an encoder; expected a causal language model"
        )
    names = {id(parameter): name for name, parameter in named_weights(model).items()}
    hooked = kind_of(model) == "hooked-transformer"
    found = []
    for layer, block in enumerate(model.blocks):
        gated = _is_gated(block, hooked)
        for part in PARTS:
            owner = block.attn if part in ATTENTION else getattr(block, "mlp", None)
            if owner is None or (part == "gate" and not gated):
                continue
            stored = (_hooked if hooked else _bridged)(owner, part)
            hook = f"blocks.{layer}.{_hook(part, gated)}"
            late = hooked and gated and part == "in"
            found.append(
                LinearMap(
                    layer,
                    part,
                    names[id(stored.weight)],
                    None if stored.bias is None else names[id(stored.bias)],
                    hook,
                    f"blocks.{layer}.mlp.hook_post" if late else hook,
                    stored.n_heads,
                    stored.layout,
                )
            )
    return tuple(found)


class _Stored(NamedTuple):
    weight: nn.Parameter
    bias: nn.Parameter | None
    n_heads: int
    layout: Layout


def _is_gated(block: Any, hooked: bool) -> bool:
    mlp = getattr(block, "mlp", None)
    return bool(block.attn.cfg.gated_mlp) if hooked else hasattr(mlp, "gate")


def _hook(part: Part, gated: bool) -> str:
    if part in ("Q", "K", "V"):
        return f"attn.hook_{part.lower()}"
    names = {"O": "hook_attn_out", "gate": "mlp.hook_pre", "out": "hook_mlp_out"}
    return names.get(part, "mlp.hook_pre_linear" if gated else "mlp.hook_pre")


def _hooked(owner: Any, part: Part) -> _Stored:
    mark = "_" if hasattr(owner, f"_W_{part}") else ""  # of grouped queries
    weight, bias = (getattr(owner, f"{mark}{kind}_{part}", None) for kind in "Wb")
    if not isinstance(weight, nn.Parameter):
        raise _unknown(owner, f"W_{part}")
    return _Stored(weight, bias, len(weight) if part in ATTENTION else 1, "heads")


def _bridged(owner: Any, part: Part) -> _Stored:
    name = part.lower()
    module = getattr(getattr(owner, name, None), "original_component", None)
    if not isinstance(module, (nn.Linear, Conv1D)):
        raise _unknown(owner, name)
    layout: Layout = "in out" if isinstance(module, Conv1D) else "out in"
    n_heads = 1
    if part in ATTENTION:
        of_heads = int((layout == "in out") != (part == "O"))
        n_heads = module.weight.shape[of_heads] // int(owner.config.d_head)
    weight, bias = cast(nn.Parameter, module.weight), cast("nn.Parameter | None", module.bias)
    return _Stored(weight, bias, n_heads, layout)


def _unknown(owner: Any, name: str) -> InputError:
    return InputError(
        f"model: {type(owner).__name__} has no matrix {name}; expected layers with W_Q, W_K, W_V "
        "and W_O, and W_in, W_out and perhaps W_gate of an MLP, as those of GPT-2 and Llama"
    )
