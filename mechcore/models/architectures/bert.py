"""BERT, and RoBERTa, which has its layout under another prefix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mechcore.models.architectures.base import Architecture, unsupported
from mechcore.models.architectures.layers import activation, bridge_stack, linear, norm, weight
from mechcore.models.running import is_classifier, weights_of
from mechcore.models.stack import Inputs, Linear, Stack


class Bert(Architecture):
    """BERT."""

    encoder = True
    language_model = "BertForMaskedLM"
    head = {"classifier": "classifier"}
    prefix = "bert."
    body_options = {"add_pooling_layer": False}
    reads_pad_id = False
    projections = ("encoder.layer.{}.attention.output.dense", "encoder.layer.{}.output.dense")

    @classmethod
    def without_head(cls, parts: dict[str, Any], name: str) -> None:
        """See `Architecture.without_head`; also find the body where the class has it."""
        for dropped in ("mlm_head", "unembed", "ln_final"):
            parts.pop(dropped, None)
        prefix = cls.prefix if name.endswith("ForSequenceClassification") else ""
        for part in parts.values():
            if part.name is not None:
                part.name = part.name.replace("bert.", prefix, 1)

    def places(self, inputs: Inputs) -> Tensor:
        """Rows of the position embeddings, [batch, pos]."""
        ids = inputs["input_ids"]
        return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)

    def dense_and_out(self, model: Any) -> tuple[Linear, Linear]:
        """The two matrices of the classification head."""
        hf_model = weights_of(model)
        return linear(hf_model.get_submodule("bert.pooler.dense")), linear(model.classifier)

    def stack(self, model: Any) -> Stack:
        """See `Architecture.stack`."""
        if self.config.is_decoder:
            raise unsupported(f"a {self.config.model_type} with is_decoder=True")
        if not is_classifier(model):
            raise unsupported(f"a bridge of {type(model.original_model).__name__}")
        words, types = weight(model.embed), weight(model.token_type_embed)
        positions, after = weight(model.pos_embed), norm(model.embed_ln)
        dense, out = self.dense_and_out(model)

        def embed(inputs: Inputs) -> Tensor:
            ids = inputs["input_ids"]
            segments = inputs.get("token_type_ids")
            segments = torch.zeros_like(ids) if segments is None else segments
            x = F.embedding(ids, words) + F.embedding(segments, types)
            return after(x + F.embedding(self.places(inputs), positions))

        return bridge_stack(
            model,
            embed=embed,
            head=lambda x: torch.tanh(dense(x)),
            out=out,
            activation=activation(self.config.hidden_act),
            post_norm=True,
        )


class Roberta(Bert):
    """RoBERTa, which counts positions over what is no padding, from its padding id on."""

    head = {"classifier": "classifier.dense", "classifier_out": "classifier.out_proj"}
    prefix = "roberta."
    reads_pad_id = True

    @property
    def first_position(self) -> int:
        """See `Architecture.first_position`."""
        return int(self.config.pad_token_id) + 1

    def places(self, inputs: Inputs) -> Tensor:
        """See `Bert.places`."""
        pad = self.config.pad_token_id
        real = (inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, pad) != pad).long()
        return real.cumsum(1) * real + pad

    def dense_and_out(self, model: Any) -> tuple[Linear, Linear]:
        """See `Bert.dense_and_out`."""
        return linear(model.classifier), linear(model.classifier_out)
