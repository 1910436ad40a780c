"""DistilBERT."""

from __future__ import annotations

from typing import Any

import torch

from mechcore.models.architectures.encoder import Encoder
from mechcore.models.architectures.layers import encoder_stack
from mechcore.models.stack import Stack


class DistilBert(Encoder):
    """DistilBERT, which knows no token types."""

    head = {"pre_classifier": "pre_classifier", "classifier": "classifier"}
    prefix = "distilbert."
    projections = ("transformer.layer.{}.attention.out_lin", "transformer.layer.{}.ffn.lin2")
    modules = {
        "embed": "embeddings.word_embeddings",
        "pos_embed": "embeddings.position_embeddings",
        "embed_ln": "embeddings.LayerNorm",
        "blocks": "transformer.layer",
        "blocks.ln1": "sa_layer_norm",
        "blocks.ln2": "output_layer_norm",
        "blocks.attn": "attention",
        "blocks.attn.q": "q_lin",
        "blocks.attn.k": "k_lin",
        "blocks.attn.v": "v_lin",
        "blocks.attn.o": "out_lin",
        "blocks.mlp.in": "ffn.lin1",
        "blocks.mlp.out": "ffn.lin2",
    }

    def stack(self, model: Any) -> Stack:
        """See `Architecture.stack`."""
        return encoder_stack(model, ("pre_classifier", "classifier"), torch.relu)
