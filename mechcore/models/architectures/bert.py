"""BERT, and RoBERTa and ELECTRA, which have its layout under other prefixes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mechcore.models.architectures.encoder import BERT_MODULES, Encoder
from mechcore.models.architectures.layers import encoder_stack
from mechcore.models.stack import Inputs, Stack


class Bert(Encoder):
    """BERT."""

    head = {"pooler": "bert.pooler.dense", "classifier": "classifier"}
    prefix = "bert."
    body_options = {"add_pooling_layer": False}
    projections = ("encoder.layer.{}.attention.output.dense", "encoder.layer.{}.output.dense")

    def stack(self, model: Any) -> Stack:
        """See `Architecture.stack`."""
        return encoder_stack(model, ("bert.pooler.dense", "classifier"), torch.tanh)


class Roberta(Bert):
    """RoBERTa, which counts positions over what is no padding, from its padding id on."""

    head = {"classifier": "classifier.dense", "classifier_out": "classifier.out_proj"}
    prefix = "roberta."
    reads_pad_id = True
    needs_padding = True

    @property
    def first_position(self) -> int:
        """See `Architecture.first_position`."""
        return int(self.config.pad_token_id) + 1

    def places(self, inputs: Inputs) -> Tensor:
        """Rows of the position embeddings, [batch, pos]."""
        pad = self.config.pad_token_id
        real = (inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, pad) != pad).long()
        return real.cumsum(1) * real + pad

    def stack(self, model: Any) -> Stack:
        """See `Architecture.stack`."""
        return encoder_stack(
            model, ("classifier.dense", "classifier.out_proj"), torch.tanh, self.places
        )


class Electra(Bert):
    """ELECTRA, whose embeddings may be narrower than its layers."""

    head = {"classifier": "classifier.dense", "classifier_out": "classifier.out_proj"}
    prefix = "electra."
    body_options = {}

    @property
    def modules(self) -> Mapping[str, str]:
        """See `Encoder.modules`."""
        if self.config.embedding_size == self.config.hidden_size:
            return BERT_MODULES
        return {**BERT_MODULES, "embed_project": "embeddings_project"}

    def stack(self, model: Any) -> Stack:
        """See `Architecture.stack`."""
        return encoder_stack(model, ("classifier.dense", "classifier.out_proj"), F.gelu)
