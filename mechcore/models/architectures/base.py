"""What mechcore needs to know about a model family, and the known families."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from mechcore.errors import InputError
from mechcore.registry import Registry

if TYPE_CHECKING:
    from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter

    from mechcore.models.stack import Stack


class Architecture:
    """A model family, made from a configuration; this class serves families without their own file.

    Decoders that TransformerLens bridges can be run and masked without one, with or without a
    classification head.

    Attributes:
        encoder: whether positions also attend to later ones, and the head reads the first.
        head: components of the classification head and their paths in Hugging Face's model.
        body_options: arguments that leave out what a model without its head lacks.
        reads_pad_id: whether positions, or the end of the text, are found by the padding token.
        needs_padding: whether positions start after the id of the padding token.
        projections: paths of W_O and the MLP's last matrix in the base model, with ``{}`` for the
            layer; None if masks cannot be folded into the weights.
        unfoldable: why they cannot.
    """

    encoder: ClassVar[bool] = False
    head: ClassVar[Mapping[str, str]] = {"classifier": "score"}
    body_options: ClassVar[Mapping[str, Any]] = {}
    reads_pad_id: ClassVar[bool] = True
    needs_padding: ClassVar[bool] = False
    projections: ClassVar[tuple[str, str] | None] = None
    unfoldable: ClassVar[str] = "mechcore does not know where its output projections are"

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    def causal(self) -> bool:
        """Whether positions attend only to earlier ones."""
        return not self.encoder or bool(getattr(self.config, "is_decoder", False))

    @property
    def first_position(self) -> int:
        """Row of the position embeddings of a text's first token."""
        return 0

    @property
    def longest_text(self) -> int:
        """Maximum tokens of a text; 2048 if the configuration has none, as with ALiBi."""
        config = self.config.get_text_config()
        names = ("max_position_embeddings", "max_seq_len", "seq_length")  # the others: MPT, Bloom
        limits = (getattr(config, name, None) for name in names)
        positions = int(next(filter(None, limits), 2048)) - self.first_position
        return positions if self.steady_length is None else min(positions, self.steady_length)

    @property
    def steady_length(self) -> int | None:
        """Maximum tokens for which an answer does not depend on the rest of the batch.

        Some rotations change for all texts of a batch if one is longer; None if they never do.
        """
        config = self.config.get_text_config()
        given = getattr(config, "rope_parameters", None) or {}
        ropes = [rope for rope in given.values() if isinstance(rope, Mapping)]
        ends = []
        for rope in ropes or [given]:  # one per kind of layer, or one for all
            kind = str(rope.get("rope_type"))
            if kind == "longrope":
                ends.append(int(rope["original_max_position_embeddings"]))
            elif "dynamic" in kind:
                ends.append(int(config.max_position_embeddings))
        return min(ends, default=None)

    @classmethod
    def adapter(cls, name: str, kind: str) -> type[ArchitectureAdapter] | None:
        """The TransformerLens adapter of a Hugging Face class ``name`` of the family.

        None if TransformerLens has its own, or there is none. ``kind`` is ``config.model_type``.
        """
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        )

        from mechcore.models.architectures.adapters import derived

        decoder = not cls.encoder and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
        bridged = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
        if not decoder or bridged is None or not name.endswith("ForSequenceClassification"):
            return None
        return derived(cls, bridged, name)

    def reach(self, layer: int) -> int | None:
        """Distance in tokens to the furthest key that a layer attends to; None if unlimited."""
        if getattr(self.config, "attention_layers", None):  # GPT-Neo
            local = self.config.attention_layers[layer] == "local"
            return int(self.config.window_size) - 1 if local else None
        types = getattr(self.config, "layer_types", None)
        window = getattr(self.config, "sliding_window", None)
        if not window or (types is not None and types[layer] != "sliding_attention"):
            return None
        return int(window) - 1

    def stack(self, model: Any) -> Stack:
        """A bridge's layers as functions of the weights; `InputError` if there are none."""
        raise unsupported(f"a bridge of {type(model.original_model).__name__}")

    def with_biases(self, model: Any, *, attention: bool, mlp: bool) -> Any:
        """The network with biases to hold means where needed; else `InputError`."""
        assert self.projections is not None
        for needed, path in zip((attention, mlp), self.projections, strict=True):
            if needed and model.base_model.get_submodule(path.format(0)).bias is None:
                raise InputError(
                    f"export: {type(model).__name__} has no biases to hold means; use fill='zero', "
                    "which needs no biases"
                )
        return model


def with_new_biases(model: Any, kind: Any, config: Any) -> Any:
    """The weights of ``model`` in class ``kind`` with ``config``; additional biases are zero."""
    with torch.device("meta"):
        new = kind(config)
    biases = {k: torch.zeros(t.shape) for k, t in new.state_dict().items() if "bias" in k}
    new.load_state_dict({**biases, **model.state_dict()}, assign=True)
    return new


OWN = {
    "bert": "mechcore.models.architectures.bert:Bert",
    "roberta": "mechcore.models.architectures.bert:Roberta",
    "xlm-roberta": "mechcore.models.architectures.bert:Roberta",
    "camembert": "mechcore.models.architectures.bert:Roberta",
    "electra": "mechcore.models.architectures.bert:Electra",
    "distilbert": "mechcore.models.architectures.bert:DistilBert",
    "albert": "mechcore.models.architectures.bert:Albert",
    "mpnet": "mechcore.models.architectures.bert:MPNet",
    "deberta": "mechcore.models.architectures.bert:Deberta",
    "deberta-v2": "mechcore.models.architectures.bert:DebertaV2",
    "modernbert": "mechcore.models.architectures.bert:ModernBert",
    "gpt2": "mechcore.models.architectures.decoders:GPT2",
    "llama": "mechcore.models.architectures.decoders:Llama",
    "mistral": "mechcore.models.architectures.decoders:Mistral",
    "qwen2": "mechcore.models.architectures.decoders:Qwen2",
}
"""Modules of mechcore's own families."""

ARCHITECTURES: Registry[type[Architecture]] = Registry(
    "architecture", "mechcore.architectures", OWN
)
"""Families by ``config.model_type``."""


def architecture_of(config: Any) -> Architecture:
    """The family of a Hugging Face configuration."""
    kind = getattr(config, "model_type", "")
    if kind not in ARCHITECTURES:
        return Architecture(config)
    # TransformerLens receives all families on import, so none of them may import it first.
    import_module("transformer_lens")
    return ARCHITECTURES[kind](config)


def unsupported(model: str) -> InputError:
    """The error for a model that the prefix-sharing engine cannot run."""
    known = [name for name in ARCHITECTURES if ARCHITECTURES[name].stack is not Architecture.stack]
    return InputError(
        f"prefix-sharing engine: found {model}; expected a TransformerBridge of "
        f"{', '.join(known)} with its usual settings, on one device; engine='restart' runs any "
        "model whose layers can be called again"
    )
