"""GPT-2."""

from __future__ import annotations

from typing import Any

from mechcore.models.architectures.base import Architecture
from mechcore.models.architectures.layers import activation, bridge_stack, embedding, weight
from mechcore.models.stack import Stack


class GPT2(Architecture):
    """GPT-2."""

    projections = ("h.{}.attn.c_proj", "h.{}.mlp.c_proj")

    def stack(self, model: Any) -> Stack:
        """See `Architecture.stack`."""
        config = self.config
        scale = model.cfg.d_head**-0.5 if config.scale_attn_weights else 1.0
        by_layer = config.scale_attn_by_inverse_layer_idx
        return bridge_stack(
            model,
            embed=embedding(weight(model.embed), weight(model.pos_embed)),
            activation=activation(config.activation_function),
            scale=lambda layer: scale / (layer + 1) if by_layer else scale,
        )
