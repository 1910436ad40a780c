"""GPT-2, Llama, and Mistral and Qwen2, which are Llamas except for windows and biases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from mechcore.errors import InputError
from mechcore.models.architectures.base import Architecture, unsupported, with_new_biases
from mechcore.models.architectures.layers import activation, bridge_stack, embedding, inner, weight
from mechcore.models.stack import Stack

_WINDOW_FIELDS = {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"}
_OWN_FIELDS = {*_WINDOW_FIELDS, "model_type", "architectures", "auto_map"}
"""Fields dropped when a configuration becomes a Llama's."""


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


class Llama(Architecture):
    """Llama."""

    projections = ("layers.{}.self_attn.o_proj", "layers.{}.mlp.down_proj")

    @property
    def window(self) -> int | None:
        """Number of last positions attended to; None if all."""
        return None

    def stack(self, model: Any) -> Stack:
        """See `Architecture.stack`."""
        if self.window is not None:
            raise unsupported(
                f"a {self.config.model_type} with a sliding window of {self.window} positions"
            )
        module = inner(model.original_model.base_model.rotary_emb)
        like = torch.empty(0, device=module.inv_freq.device)

        def rotary(positions: Tensor) -> tuple[Tensor, Tensor]:
            return module(like, positions)

        return bridge_stack(
            model,
            embed=embedding(weight(model.embed)),
            activation=activation(self.config.hidden_act),
            rotary=rotary,
        )

    def with_biases(self, model: Any, *, attention: bool, mlp: bool) -> Any:
        """See `Architecture.with_biases`; with a new bias the model becomes a Llama."""
        layer = model.base_model.layers[0]
        has_attention = layer.self_attn.o_proj.bias is not None
        has_mlp = layer.mlp.down_proj.bias is not None
        if has_attention >= attention and has_mlp >= mlp:
            return model
        if unlike := self._unlike_llama():
            raise InputError(
                f"export: {type(model).__name__} has no biases to hold means, and a Llama with "
                f"biases has no {unlike}; use fill='zero', which needs no biases"
            )
        fields = {k: value for k, value in self.config.to_dict().items() if k not in _OWN_FIELDS}
        fields["attention_bias"] = attention or layer.self_attn.q_proj.bias is not None
        fields["mlp_bias"] = mlp or has_mlp
        classifier = type(model).__name__.endswith("ForSequenceClassification")
        kind: Any = LlamaForSequenceClassification if classifier else LlamaForCausalLM
        llama = with_new_biases(model, kind, LlamaConfig(**fields))
        if not classifier:
            llama.generation_config = model.generation_config
        return llama

    def _unlike_llama(self) -> str | None:
        """A setting of the configuration that Llama does not support, if any."""
        config = self.config
        if self.window is not None:
            reach = config.max_position_embeddings
            return f"sliding window (found {self.window} for {reach} positions)"
        others = type(config)().to_dict().keys() - LlamaConfig().to_dict().keys() - _WINDOW_FIELDS
        if lacking := sorted(name for name in others if getattr(config, name, None)):
            return f"setting {' or '.join(lacking)}"
        if config.hidden_size % config.num_attention_heads:
            return f"{config.num_attention_heads} heads at hidden size {config.hidden_size}"
        return None


class Mistral(Llama):
    """Mistral, whose layers may all have an attention window."""

    @property
    def window(self) -> int | None:
        """See `Llama.window`."""
        window = self.config.sliding_window
        return None if window is None or window >= self.config.max_position_embeddings else window


class Qwen2(Mistral):
    """Qwen2, where some layers may have an attention window."""

    @property
    def window(self) -> int | None:
        """See `Llama.window`."""
        return super().window if "sliding_attention" in (self.config.layer_types or ()) else None
