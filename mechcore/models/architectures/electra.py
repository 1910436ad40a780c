"""ELECTRA, whose embeddings may be narrower than its layers."""

from __future__ import annotations

from collections.abc import Mapping

from mechcore.models.architectures.encoder import BERT_MODULES, Encoder


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
