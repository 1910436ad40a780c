"""ELECTRA, whose embeddings may be narrower than its layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.nn import functional as F

from mechcore.models.architectures.encoder import BERT_MODULES, Encoder
from mechcore.models.architectures.layers import encoder_stack
from mechcore.models.stack import Stack


class Electra(Encoder):
    """ELECTRA."""

    head = {"classifier": "classifier.dense", "classifier_out": "classifier.out_proj"}
    prefix = "electra."
    projections = ("encoder.layer.{}.attention.output.dense", "encoder.layer.{}.output.dense")

    @property
    def modules(self) -> Mapping[str, str]:
        """See `Encoder.modules`."""
        if self.config.embedding_size == self.config.hidden_size:
            return BERT_MODULES
        return {**BERT_MODULES, "embed_project": "embeddings_project"}

    def stack(self, model: Any) -> Stack:
        """See `Architecture.stack`."""
        return encoder_stack(model, ("classifier.dense", "classifier.out_proj"), F.gelu)
