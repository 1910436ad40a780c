"""DeBERTa, whose attention also depends on how far apart tokens are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformer_lens.model_bridge.generalized_components import LinearBridge

from mechcore.errors import InputError
from mechcore.models.architectures.encoder import BERT_MODULES, Encoder, ReadAttention


class OfTokens(LinearBridge):
    """A projection that serves tokens and then relative positions, which pass its hooks unseen."""

    _of_tokens = True

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Project the states of tokens through the hook points, anything else past them."""
        if not self._of_tokens:
            matrix: Any = self.original_component
            projected: Tensor = matrix(input)
            return projected
        self._of_tokens = False
        return super().forward(input, *args, **kwargs)


class SharedProjections(ReadAttention):
    """Attention of DeBERTa-v2, where `OfTokens` may project relative positions, too."""

    projections = {"q": OfTokens, "k": OfTokens}

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """See `ReadAttention.forward`."""
        self.q._of_tokens = self.k._of_tokens = True
        return super().forward(hidden_states, *args, **kwargs)


class FusedProjections(ReadAttention):
    """Attention of the first DeBERTa, which adds biases to queries and values later on."""

    hook_aliases = {"hook_z": "o.hook_in"}


class DebertaV2(Encoder):
    """DeBERTa-v2 and v3; a convolution may follow the first layer, outside of its block."""

    head = {"pooler": "pooler.dense", "classifier": "classifier"}
    prefix = "deberta."
    projections = ("encoder.layer.{}.attention.output.dense", "encoder.layer.{}.output.dense")
    attention: type[ReadAttention] = SharedProjections
    inputs_of_attention: Mapping[str, str] = {
        "q": "self.query_proj",
        "k": "self.key_proj",
        "v": "self.value_proj",
    }

    @property
    def modules(self) -> Mapping[str, str]:
        """See `Encoder.modules`."""
        config = self.config
        left_out = {f"blocks.attn.{part}" for part in "qkv"}
        if not config.position_biased_input:
            left_out.add("pos_embed")
        if not config.type_vocab_size:
            left_out.add("token_type_embed")
        modules = {name: path for name, path in BERT_MODULES.items() if name not in left_out}
        if getattr(config, "embedding_size", config.hidden_size) != config.hidden_size:
            modules["embed_project"] = "embeddings.embed_proj"
        parts = self.inputs_of_attention.items()
        return {**modules, **{f"blocks.attn.{part}": path for part, path in parts}}


class Deberta(DebertaV2):
    """The first DeBERTa, whose queries, keys and values have no hook points."""

    attention = FusedProjections
    inputs_of_attention = {"qkv": "self.in_proj"}

    def prepare(self, hf_model: Any) -> int:
        """See `Encoder.prepare`.

        Raises:
            InputError: the model mixes the patterns of its heads.
        """
        if getattr(self.config, "talking_head", False):
            raise InputError(
                f"model: found a {type(hf_model).__name__} with talking_head=True, whose heads mix "
                "their patterns; expected talking_head=False"
            )
        return super().prepare(hf_model)
