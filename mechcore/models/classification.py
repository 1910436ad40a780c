"""Sequence-classification adapters for TransformerBridge.

TransformerLens bridges language models only. Each adapter here is the architecture's own
language-model adapter with the language-model head taken out and the classification head put in,
so logits are Hugging Face's. They are registered through the entry point group
``transformer_lens.architectures``.

The adapters also make padding harmless: whatever stands at masked positions never reaches the
logits, and left-padded batches give the logits of the unpadded texts (an encoder's classification
head reads position 0, which Hugging Face leaves on a padding token there).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformer_lens.factories import architecture_adapter_factory as factory
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import LinearBridge
from transformer_lens.model_bridge.supported_architectures import (
    BertArchitectureAdapter,
    GPT2ArchitectureAdapter,
    LlamaArchitectureAdapter,
    MistralArchitectureAdapter,
    Qwen2ArchitectureAdapter,
)

from mechcore.errors import InputError
from mechcore.models.padding import real_tokens_first

LANGUAGE_MODEL_HEAD = ("mlm_head", "unembed", "ln_final")


class EncoderClassification:
    """Mixin for encoders: the head reads the first position after the last layer."""

    causal = False
    head: Mapping[str, str] = {"classifier": "classifier"}

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)  # type: ignore[call-arg]
        _replace_head(self, LANGUAGE_MODEL_HEAD, self.head)

    def prepare_model(self, hf_model: Any) -> None:
        """Check the head, bridge the pooler where there is one, and shield against padding."""
        super().prepare_model(hf_model)  # type: ignore[misc]
        _shield(hf_model, self.causal)


class DecoderClassification(EncoderClassification):
    """Mixin for decoders: the head reads the last real position."""

    causal = True
    head = {"classifier": "score"}

    def __init__(self, cfg: Any) -> None:
        super(EncoderClassification, self).__init__(cfg)  # type: ignore[call-arg]
        _replace_head(self, ("unembed",), self.head)


class BertClassificationAdapter(EncoderClassification, BertArchitectureAdapter):
    """``BertForSequenceClassification``."""


class RobertaClassificationAdapter(EncoderClassification, BertArchitectureAdapter):
    """``RobertaForSequenceClassification``: BERT's layout under another prefix."""

    head = {"classifier": "classifier.dense", "classifier_out": "classifier.out_proj"}

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        for component in (self.component_mapping or {}).values():
            if component.name is not None:
                component.name = component.name.replace("bert.", "roberta.", 1)


class GPT2ClassificationAdapter(DecoderClassification, GPT2ArchitectureAdapter):
    """``GPT2ForSequenceClassification``."""


class LlamaClassificationAdapter(DecoderClassification, LlamaArchitectureAdapter):
    """``LlamaForSequenceClassification``."""


class MistralClassificationAdapter(DecoderClassification, MistralArchitectureAdapter):
    """``MistralForSequenceClassification``."""


class Qwen2ClassificationAdapter(DecoderClassification, Qwen2ArchitectureAdapter):
    """``Qwen2ForSequenceClassification``."""


CLASSIFICATION_ADAPTERS: dict[str, type[ArchitectureAdapter]] = {
    "BertForSequenceClassification": BertClassificationAdapter,
    "RobertaForSequenceClassification": RobertaClassificationAdapter,
    "GPT2ForSequenceClassification": GPT2ClassificationAdapter,
    "LlamaForSequenceClassification": LlamaClassificationAdapter,
    "MistralForSequenceClassification": MistralClassificationAdapter,
    "Qwen2ForSequenceClassification": Qwen2ClassificationAdapter,
}


def register() -> None:
    """Make TransformerLens choose these adapters by architecture name.

    Its boot code consults a static table before it looks at entry points, and would otherwise
    read a BERT classifier as a masked language model with a random head.
    """
    factory.ArchitectureAdapterFactory.discover_entry_points()
    for name, adapter in CLASSIFICATION_ADAPTERS.items():
        factory.SUPPORTED_ARCHITECTURES.setdefault(name, adapter)
        if name not in factory.ArchitectureAdapterFactory._adapters:
            factory.ArchitectureAdapterFactory.register_adapter(name, adapter)


def _replace_head(adapter: Any, drop: tuple[str, ...], head: Mapping[str, str]) -> None:
    for name in drop:
        adapter.component_mapping.pop(name, None)
    for name, path in head.items():
        adapter.component_mapping[name] = LinearBridge(name=path)


def _shield(hf_model: Any, causal: bool) -> None:
    """Normalise padded batches on their way into ``hf_model``."""
    if not type(hf_model).__name__.endswith("ForSequenceClassification"):
        raise InputError(
            f"model: TransformerLens loaded this classifier as {type(hf_model).__name__}, without "
            "its classification head; use mechcore.load_model(path), or "
            "TransformerBridge.boot_transformers(path, "
            "model_class=transformers.AutoModelForSequenceClassification)"
        )
    pad_id = hf_model.config.pad_token_id

    def normalise(
        module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        mask = kwargs.get("attention_mask")
        ids = args[0] if args else kwargs.get("input_ids")
        if mask is None or ids is None or ids.is_floating_point() or bool((mask != 0).all()):
            return args, kwargs
        if pad_id is None:
            raise InputError(
                "model: a padded batch needs config.pad_token_id, which is not set; "
                "set it to the tokenizer's pad_token_id"
            )
        ids = ids.masked_fill(mask == 0, pad_id)
        if not causal:
            rows = {"input_ids": ids, "attention_mask": mask}
            if kwargs.get("token_type_ids") is not None:
                rows["token_type_ids"] = kwargs["token_type_ids"]
            rows, moved = real_tokens_first(rows, mask)
            ids = rows.pop("input_ids")
            kwargs = {**kwargs, **rows}
            if moved:
                kwargs["position_ids"] = None  # those of the padded layout no longer hold
        return ((ids, *args[1:]), kwargs) if args else (args, {**kwargs, "input_ids": ids})

    hf_model.register_forward_pre_hook(normalise, with_kwargs=True)
