"""MPNet, whose layers share a bias of attention scores by relative position."""

from __future__ import annotations

from mechcore.models.architectures.encoder import BERT_MODULES, Encoder


class MPNet(Encoder):
    """MPNet, which counts positions over what is no padding, from the third on."""

    head = {"classifier": "classifier.dense", "classifier_out": "classifier.out_proj"}
    prefix = "mpnet."
    body_options = {"add_pooling_layer": False}
    reads_pad_id = True
    projections = ("encoder.layer.{}.attention.attn.o", "encoder.layer.{}.output.dense")
    modules = {
        **{name: path for name, path in BERT_MODULES.items() if name != "token_type_embed"},
        "rel_pos_bias": "encoder.relative_attention_bias",
        "blocks.ln1": "attention.LayerNorm",
        "blocks.attn": "attention.attn",
        **{f"blocks.attn.{part}": part for part in "qkvo"},
    }

    @property
    def first_position(self) -> int:
        """See `Architecture.first_position`."""
        return 2
