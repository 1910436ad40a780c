"""BERT and the encoders that differ from it in names, head and embeddings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mechcore.models.architectures.encoder import BERT_MODULES, Encoder
from mechcore.models.architectures.layers import encoder_stack
from mechcore.models.stack import Inputs, Stack

_DENSE_HEAD = {"classifier": "classifier.dense", "classifier_out": "classifier.out_proj"}


class Bert(Encoder):
    """BERT; ``between`` stands between the two matrices of the classification head."""

    head = {"pooler": "bert.pooler.dense", "classifier": "classifier"}
    prefix = "bert."
    body_options = {"add_pooling_layer": False}
    projections = ("encoder.layer.{}.attention.output.dense", "encoder.layer.{}.output.dense")
    between: ClassVar[Callable[[Tensor], Tensor]] = torch.tanh

    def places(self, inputs: Inputs) -> Tensor:
        """Rows of the position embeddings, [*batch, pos]."""
        ids = inputs["input_ids"]
        return torch.arange(ids.shape[1], device=ids.device)

    def stack(self, model: Any) -> Stack:
        """See `Architecture.stack`."""
        return encoder_stack(model, self.head.values(), type(self).between, self.places)


class Roberta(Bert):
    """RoBERTa, which counts positions over what is no padding, from its padding id on."""

    head = _DENSE_HEAD
    prefix = "roberta."
    reads_pad_id = True
    needs_padding = True

    @property
    def first_position(self) -> int:
        """See `Architecture.first_position`."""
        return int(self.config.pad_token_id) + 1

    def places(self, inputs: Inputs) -> Tensor:
        """See `Bert.places`."""
        pad = self.config.pad_token_id
        real = (inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, pad) != pad).long()
        return real.cumsum(1) * real + pad


class Electra(Bert):
    """ELECTRA, whose embeddings may be narrower than its layers."""

    head = _DENSE_HEAD
    prefix = "electra."
    body_options = {}
    modules = {**BERT_MODULES, "embed_project": "embeddings_project"}
    between = F.gelu


class DistilBert(Bert):
    """DistilBERT, which knows no token types."""

    head = {"pre_classifier": "pre_classifier", "classifier": "classifier"}
    prefix = "distilbert."
    body_options = {}
    projections = ("transformer.layer.{}.attention.out_lin", "transformer.layer.{}.ffn.lin2")
    modules = {
        "embed": "embeddings.word_embeddings",
        "pos_embed": "embeddings.position_embeddings",
        "embed_ln": "embeddings.LayerNorm",
        "blocks": "transformer.layer",
        "blocks.ln1": "sa_layer_norm",
        "blocks.ln2": "output_layer_norm",
        "blocks.attn": "attention",
        **{f"blocks.attn.{part[0]}": f"{part}_lin" for part in ("q", "k", "v", "out")},
        "blocks.mlp.in": "ffn.lin1",
        "blocks.mlp.out": "ffn.lin2",
    }
    between = torch.relu


class MPNet(Encoder):
    """MPNet: positions from the third row on, and a bias of scores by relative position."""

    head = _DENSE_HEAD
    prefix = "mpnet."
    body_options = {"add_pooling_layer": False}
    reads_pad_id = True
    projections = ("encoder.layer.{}.attention.attn.o", "encoder.layer.{}.output.dense")
    modules = {
        **BERT_MODULES,
        "rel_pos_bias": "encoder.relative_attention_bias",
        "blocks.ln1": "attention.LayerNorm",
        "blocks.attn": "attention.attn",
        **{f"blocks.attn.{part}": part for part in "qkvo"},
    }

    @property
    def first_position(self) -> int:
        """See `Architecture.first_position`."""
        return 2


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
