"""ALBERT, all of whose layers have the same weights."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from mechcore.models.architectures.encoder import BERT_MODULES, Encoder


class Albert(Encoder):
    """ALBERT; in its bridge every layer is a module of its own, with weights that are shared."""

    head = {"pooler": "albert.pooler", "classifier": "classifier"}
    prefix = "albert."
    unfoldable = "its layers share weights, so that no head is in one layer's weights alone"
    body_options = {"add_pooling_layer": False}
    modules = {
        **BERT_MODULES,
        "embed_project": "encoder.embedding_hidden_mapping_in",
        "blocks": "encoder.albert_layer_groups",
        "blocks.ln1": "attention.LayerNorm",
        "blocks.ln2": "full_layer_layer_norm",
        **{f"blocks.attn.{part[0]}": part for part in ("query", "key", "value")},
        "blocks.attn.o": "dense",
        "blocks.mlp.in": "ffn",
        "blocks.mlp.out": "ffn_output",
    }

    def prepare(self, hf_model: Any) -> int:
        """See `Encoder.prepare`; put a copy of its module in the place of every layer."""
        encoder = hf_model.base_model.encoder
        n, groups = self.config.num_hidden_layers, encoder.albert_layer_groups
        layers = [
            copy.deepcopy(layer, {id(weight): weight for weight in layer.parameters()})
            for i in range(n)
            for layer in groups[i * len(groups) // n].albert_layers
        ]
        encoder.albert_layer_groups = nn.ModuleList(layers)
        encoder.config = copy.copy(self.config)
        encoder.config.num_hidden_layers = encoder.config.num_hidden_groups = len(layers)
        return len(layers)
