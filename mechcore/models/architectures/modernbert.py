"""ModernBERT."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.generalized_components import LinearBridge

from mechcore.models.architectures.base import with_new_biases
from mechcore.models.architectures.encoder import Encoder, ReadAttention


class FusedProjection(LinearBridge):
    """One matrix for queries, keys and values, each with a hook point."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Queries, keys and values in a row."""
        q, k, v = super().forward(input, *args, **kwargs).chunk(3, -1)
        return torch.cat([self.hook_q(q), self.hook_k(k), self.hook_v(v)], -1)


class FusedAttention(ReadAttention):
    """Attention with a `FusedProjection`; hooks see queries and keys before their rotation."""

    projections = {"qkv": FusedProjection}
    hook_aliases = {
        **{f"hook_{part}": f"qkv.hook_{part}" for part in "qkv"},
        "hook_z": "o.hook_in",
    }

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """See `ReadAttention.forward`."""
        if hidden_states.dtype == torch.float64 and kwargs["attention_mask"] is not None:
            # The softmax is taken in float32, which has minus infinity for the least float64, and
            # padding with nothing but padding in its window would not be a number.
            least = torch.finfo(torch.float32).min
            kwargs["attention_mask"] = kwargs["attention_mask"].clamp(min=least)
        return super().forward(hidden_states, *args, **kwargs)

    def setup_hook_compatibility(self) -> None:
        """Give all of them the shape [batch, pos, head, d_head]."""
        super().setup_hook_compatibility()
        for point in (self.qkv.hook_q, self.qkv.hook_k, self.qkv.hook_v):
            point.hook_conversion = self.o.hook_in.hook_conversion


class ModernBert(Encoder):
    """ModernBERT, whose layers attend to a window or to the whole text."""

    head = {"pooler": "head.dense", "classifier": "classifier"}
    prefix = "model."
    post_norm = False
    projections = ("layers.{}.attn.Wo", "layers.{}.mlp.Wo")
    attention = FusedAttention
    modules = {
        "embed": "embeddings.tok_embeddings",
        "embed_ln": "embeddings.norm",
        "blocks": "layers",
        "blocks.ln1": "attn_norm",
        "blocks.ln2": "mlp_norm",
        "blocks.attn": "attn",
        "blocks.attn.qkv": "Wqkv",
        "blocks.attn.o": "Wo",
        "blocks.mlp.in": "mlp.Wi",
        "blocks.mlp.out": "mlp.Wo",
        "ln_final": "final_norm",
    }

    def reach(self, layer: int) -> int | None:
        """See `Architecture.reach`: the window is named by its half, without the query itself."""
        reach = super().reach(layer)
        return None if reach is None else reach + 1

    def with_biases(self, model: Any, *, attention: bool, mlp: bool) -> Any:
        """See `Architecture.with_biases`."""
        config = copy.deepcopy(self.config)
        config.attention_bias |= attention
        config.mlp_bias |= mlp
        return with_new_biases(model, type(model), config)
