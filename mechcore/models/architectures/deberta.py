"""DeBERTa, whose attention also depends on how far apart tokens are."""

from __future__ import annotations

from typing import Any, ClassVar

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
    attention: ClassVar[type[ReadAttention]] = SharedProjections
    modules = {
        **BERT_MODULES,
        "embed_project": "embeddings.embed_proj",
        **{f"blocks.attn.{part[0]}": f"self.{part}_proj" for part in ("query", "key", "value")},
    }


class Deberta(DebertaV2):
    """The first DeBERTa, whose queries, keys and values have no hook points."""

    attention = FusedProjections
    modules = {
        **{k: path for k, path in DebertaV2.modules.items() if not k.startswith("blocks.attn.")},
        "blocks.attn.qkv": "self.in_proj",
        "blocks.attn.o": "output.dense",
    }

    def prepare(self, hf_model: Any) -> int:
        """See `Encoder.prepare`; raises `InputError` where heads mix their patterns."""
        if getattr(self.config, "talking_head", False):
            raise InputError(
                f"model: found a {type(hf_model).__name__} with talking_head=True, whose heads mix "
                "their patterns; expected talking_head=False"
            )
        return super().prepare(hf_model)
