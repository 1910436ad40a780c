"""Encoders: a family lists the paths of its modules, and gets a bridge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import (
    AttentionBridge,
    BlockBridge,
    EmbeddingBridge,
    LinearBridge,
    MLPBridge,
    NormalizationBridge,
    PosEmbedBridge,
)

from mechcore.models.architectures.base import Architecture

BERT_MODULES: Mapping[str, str] = {
    "embed": "embeddings.word_embeddings",
    "token_type_embed": "embeddings.token_type_embeddings",
    "pos_embed": "embeddings.position_embeddings",
    "embed_ln": "embeddings.LayerNorm",
    "blocks": "encoder.layer",
    "blocks.ln1": "attention.output.LayerNorm",
    "blocks.ln2": "output.LayerNorm",
    "blocks.attn": "attention",
    "blocks.attn.q": "self.query",
    "blocks.attn.k": "self.key",
    "blocks.attn.v": "self.value",
    "blocks.attn.o": "output.dense",
    "blocks.mlp.in": "intermediate.dense",
    "blocks.mlp.out": "output.dense",
}
"""Paths of BERT's modules, see `Encoder`."""

_PERHAPS = ("embed_project", "token_type_embed", "pos_embed")
"""Modules that some configurations of a family lack."""


class ReadAttention(AttentionBridge):
    """Attention of any kind, whose scores and pattern pass through hook points.

    ``projections`` are bridges of its matrices by name, unless plain ones.
    """

    projections: ClassVar[Mapping[str, type[LinearBridge]]] = {}

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the family's own attention."""
        attention: Any = self.original_component
        hidden_states = self.hook_in(hidden_states)
        with _AtSoftmax(self.hook_attn_scores, self.hook_pattern):
            output = attention(hidden_states, *args, **kwargs)
        if isinstance(output, tuple):
            return (self.hook_out(output[0]), *output[1:])
        return self.hook_out(output)


class _AtSoftmax(TorchFunctionMode):
    """Passes input and output of the first softmax through functions."""

    def __init__(self, scores: Callable[..., Any], pattern: Callable[..., Any]) -> None:
        super().__init__()
        self.hooks: tuple[Callable[..., Any], Callable[..., Any]] | None = (scores, pattern)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.hooks is None or func not in (F.softmax, torch.softmax, Tensor.softmax):
            return func(*args, **kwargs)
        (scores, pattern), self.hooks = self.hooks, None
        return pattern(func(scores(args[0]), *args[1:], **kwargs))


class Encoder(Architecture):
    """An encoder, described by the paths of its modules.

    Attributes:
        prefix: of the base model's modules in a classifier, such as ``"electra."``.
        modules: paths of the base model's modules, by TransformerLens's names. ``blocks.x`` is
            relative to the layer, ``blocks.attn.x`` to its attention. ``blocks.attn`` is the
            module that computes the softmax.
        post_norm: whether normalisation follows the residual add (BERT) or precedes the block.
        attention: the bridge of its attention.
    """

    encoder = True
    reads_pad_id = False
    prefix: ClassVar[str]
    modules: ClassVar[Mapping[str, str]] = BERT_MODULES
    post_norm: ClassVar[bool] = True
    attention: ClassVar[type[ReadAttention]] = ReadAttention

    def prepare(self, hf_model: Any) -> int:
        """Prepare a Hugging Face model for bridging; return its number of layers."""
        return int(self.config.num_hidden_layers)

    @classmethod
    def adapter(cls, name: str, kind: str) -> type[ArchitectureAdapter] | None:
        """See `Architecture.adapter`."""
        from mechcore.models.architectures.adapters import shield

        classifier = name.endswith("ForSequenceClassification")
        if not (classifier or name.endswith("Model")):
            return None

        class Described(ArchitectureAdapter):
            supports_generation = False
            supports_causal_loss = False
            supports_fold_ln = False

            def prepare_model(self, hf_model: Any) -> None:
                """Find the modules, and shield a classifier from padding."""
                if classifier:
                    shield(hf_model, causal=False)
                family = cls(hf_model.config)
                self.cfg.n_layers = family.prepare(hf_model)
                self.cfg.attention_dir = "causal" if family.causal else "bidirectional"
                self.cfg.normalization_type = "LN"
                prefix = cls.prefix if classifier else ""
                parts = _bridged(hf_model, family, prefix, self.cfg)
                if classifier:
                    parts.update({key: LinearBridge(name=at) for key, at in cls.head.items()})
                self.component_mapping = parts

        Described.__name__ = Described.__qualname__ = name
        return Described


def _bridged(hf_model: Any, family: Encoder, prefix: str, cfg: Any) -> dict[str, Any]:
    """The components of a bridge, by name."""
    parts: dict[str, Any] = {}
    layer: dict[str, dict[str, str]] = {"": {}, "attn": {}, "mlp": {}}
    for name, path in family.modules.items():
        if not name.startswith("blocks"):
            with suppress(*[AttributeError] * (name in _PERHAPS)):
                module = hf_model.get_submodule(prefix + path)
                parts[name] = _component(name, prefix + path, module, cfg)
        elif name != "blocks":
            owner, _, part = name.removeprefix("blocks.").rpartition(".")
            layer[owner][part] = path
    first = hf_model.get_submodule(prefix + family.modules["blocks"])[0]
    attention = layer[""].pop("attn")
    submodules: dict[str, Any] = {  # norms first: attention may replace a module around them
        name: _component(name, path, first.get_submodule(path), cfg)
        for name, path in layer[""].items()
    }
    kinds = family.attention.projections
    submodules["attn"] = family.attention(
        name=attention,
        config=cfg,
        submodules={
            name: kinds.get(name, LinearBridge)(name=path) for name, path in layer["attn"].items()
        },
        is_causal=False,
    )
    submodules["mlp"] = MLPBridge(
        name=None,
        config=cfg,
        submodules={name: LinearBridge(name=path) for name, path in layer["mlp"].items()},
    )
    cfg.d_mlp = first.get_submodule(layer["mlp"]["out"]).in_features
    aliases = {
        "hook_attn_out": "attn.o.hook_out",
        "hook_mlp_in": "mlp.in.hook_in",
        "hook_mlp_out": "mlp.out.hook_out",
    }
    if family.post_norm:
        aliases["hook_resid_mid"] = "ln1.hook_out"
    parts["blocks"] = BlockBridge(
        name=prefix + family.modules["blocks"], submodules=submodules, hook_alias_overrides=aliases
    )
    return parts


def _component(name: str, path: str, module: nn.Module, cfg: Any) -> Any:
    if isinstance(module, nn.Embedding):
        return (PosEmbedBridge if name == "pos_embed" else EmbeddingBridge)(name=path)
    if isinstance(module, nn.Linear):
        return LinearBridge(name=path)
    return NormalizationBridge(name=path, config=cfg, use_native_layernorm_autograd=True)
