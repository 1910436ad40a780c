"""BERT, the encoders that differ from it in names, DeBERTa and ModernBERT."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.generalized_components import LinearBridge

from mechcore.errors import InputError
from mechcore.models.architectures.base import with_new_biases
from mechcore.models.architectures.encoder import BERT_MODULES, Encoder, ReadAttention
from mechcore.models.architectures.layers import encoder_stack
from mechcore.models.stack import Inputs, Stack

_DENSE_HEAD = {"classifier": "classifier.dense", "classifier_out": "classifier.out_proj"}


class Bert(Encoder):
    """BERT; ``between`` is applied between the two matrices of the classification head."""

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
    """RoBERTa, which counts positions of non-padding tokens, starting after its padding id."""

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
    """DistilBERT, which has no token types."""

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
    """MPNet: positions start at the third row; scores have a bias by relative position."""

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
    """ALBERT; in its bridge each layer is a separate module with shared weights."""

    head = {"pooler": "albert.pooler", "classifier": "classifier"}
    prefix = "albert."
    unfoldable = "its layers share weights, so a head cannot be changed in one layer alone"
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
        """See `Encoder.prepare`; replace every layer by a copy of its module."""
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


class OfTokens(LinearBridge):
    """A projection of tokens, then of relative positions, which bypass its hooks."""

    _of_tokens = True

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Project token states through the hook points, and anything else past them."""
        if not self._of_tokens:
            matrix: Any = self.original_component
            projected: Tensor = matrix(input)
            return projected
        self._of_tokens = False
        return super().forward(input, *args, **kwargs)


class SharedProjections(ReadAttention):
    """Attention of DeBERTa-v2, where `OfTokens` may also project relative positions."""

    projections = {"q": OfTokens, "k": OfTokens}

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """See `ReadAttention.forward`."""
        self.q._of_tokens = self.k._of_tokens = True
        return super().forward(hidden_states, *args, **kwargs)


class FusedProjections(ReadAttention):
    """Attention of the first DeBERTa, which adds the biases of queries and values later."""

    hook_aliases = {"hook_z": "o.hook_in"}


class DebertaV2(Encoder):
    """DeBERTa-v2 and v3; a convolution may follow the first layer, outside its block."""

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


class FusedProjection(LinearBridge):
    """One matrix for queries, keys and values, each with a hook point."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Queries, keys and values, concatenated."""
        q, k, v = super().forward(input, *args, **kwargs).chunk(3, -1)
        return torch.cat([self.hook_q(q), self.hook_k(k), self.hook_v(v)], -1)


class FusedAttention(ReadAttention):
    """Attention with a `FusedProjection`; hooks see queries and keys before their rotation."""

    projections = {"qkv": FusedProjection}
    hook_aliases = {
        **{f"hook_{part}": f"qkv.hook_{part}" for part in "qkv"},
        "hook_z": "o.hook_in",
    }

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """See `ReadAttention.forward`."""
        if hidden_states.dtype == torch.float64 and kwargs["attention_mask"] is not None:
            # The softmax is in float32, where the least float64 becomes minus infinity, so padding
            # with only padding in its window would become NaN.
            least = torch.finfo(torch.float32).min
            kwargs["attention_mask"] = kwargs["attention_mask"].clamp(min=least)
        return super().forward(hidden_states, *args, **kwargs)

    def setup_hook_compatibility(self) -> None:
        """Reshape all of them to [batch, pos, head, d_head]."""
        super().setup_hook_compatibility()
        for point in (self.qkv.hook_q, self.qkv.hook_k, self.qkv.hook_v):
            point.hook_conversion = self.o.hook_in.hook_conversion


class ModernBert(Encoder):
    """ModernBERT, whose layers attend to a window or to the whole text."""

    head = {"pooler": "head.dense", "classifier": "classifier"}
    prefix = "model."
    post_norm = False
    projections = ("layers.{}.attn.Wo", "layers.{}.mlp.Wo")
    attention = FusedAttention
    modules = {
        "embed": "embeddings.tok_embeddings",
        "embed_ln": "embeddings.norm",
        "blocks": "layers",
        "blocks.ln1": "attn_norm",
        "blocks.ln2": "mlp_norm",
        "blocks.attn": "attn",
        "blocks.attn.qkv": "Wqkv",
        "blocks.attn.o": "Wo",
        "blocks.mlp.in": "mlp.Wi",
        "blocks.mlp.out": "mlp.Wo",
        "ln_final": "final_norm",
    }

    def reach(self, layer: int) -> int | None:
        """See `Architecture.reach`; the configured window is one side, without the query itself."""
        reach = super().reach(layer)
        return None if reach is None else reach + 1

    def with_biases(self, model: Any, *, attention: bool, mlp: bool) -> Any:
        """See `Architecture.with_biases`."""
        config = copy.deepcopy(self.config)
        config.attention_bias |= attention
        config.mlp_bias |= mlp
        return with_new_biases(model, type(model), config)
