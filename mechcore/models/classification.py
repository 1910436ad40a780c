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


class Classification:
    """Mixin that puts a classification head in the place of the language-model head.

    Attributes:
        causal: whether the head reads the last real position (decoders) or the first (encoders).
        dropped: components of the language-model head.
        head: components of the classification head and where Hugging Face has them.
    """

    causal = False
    dropped: tuple[str, ...] = ("mlm_head", "unembed", "ln_final")
    head: Mapping[str, str] = {"classifier": "classifier"}

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)  # type: ignore[call-arg]
        mapping: dict[str, Any] = self.component_mapping  # type: ignore[attr-defined]
        for name in self.dropped:
            mapping.pop(name, None)
        mapping.update({name: LinearBridge(name=path) for name, path in self.head.items()})

    def prepare_model(self, hf_model: Any) -> None:
        """Check that ``hf_model`` has its classification head, and shield it from padding.

        Raises:
            InputError: it was loaded as a language model.
        """
        super().prepare_model(hf_model)  # type: ignore[misc]
        _shield(hf_model, self.causal)


class DecoderClassification(Classification):
    """The same for decoders, whose final normalisation stays."""

    causal = True
    dropped = ("unembed",)
    head = {"classifier": "score"}


class BertClassificationAdapter(Classification, BertArchitectureAdapter):
    """``BertForSequenceClassification``."""


class RobertaClassificationAdapter(Classification, BertArchitectureAdapter):
    """``RobertaForSequenceClassification``: BERT's layout under another prefix."""

    head = {"classifier": "classifier.dense", "classifier_out": "classifier.out_proj"}

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        _rename_prefix(self, "roberta.")


class GPT2ClassificationAdapter(DecoderClassification, GPT2ArchitectureAdapter):
    """``GPT2ForSequenceClassification``."""


class LlamaClassificationAdapter(DecoderClassification, LlamaArchitectureAdapter):
    """``LlamaForSequenceClassification``."""


class MistralClassificationAdapter(DecoderClassification, MistralArchitectureAdapter):
    """``MistralForSequenceClassification``."""


class Qwen2ClassificationAdapter(DecoderClassification, Qwen2ArchitectureAdapter):
    """``Qwen2ForSequenceClassification``."""


class EncoderBodyAdapter(Classification, BertArchitectureAdapter):
    """``BertModel`` and ``RobertaModel``: hidden states, and no head at all."""

    head: Mapping[str, str] = {}

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        _rename_prefix(self, "")

    def prepare_model(self, hf_model: Any) -> None:
        """Nothing to check or to shield: there is no head that reads a position."""
        BertArchitectureAdapter.prepare_model(self, hf_model)


BODY_ADAPTERS: dict[str, type[ArchitectureAdapter]] = {
    "BertModel": EncoderBodyAdapter,
    "RobertaModel": EncoderBodyAdapter,
}
"""Encoders without a head, for what needs attention patterns alone."""

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
    for name, adapter in {**CLASSIFICATION_ADAPTERS, **BODY_ADAPTERS}.items():
        factory.SUPPORTED_ARCHITECTURES.setdefault(name, adapter)
        if name not in factory.ArchitectureAdapterFactory._adapters:
            factory.ArchitectureAdapterFactory.register_adapter(name, adapter)


def _rename_prefix(adapter: ArchitectureAdapter, prefix: str) -> None:
    """Let BERT's component mapping look under another prefix than ``bert.``."""
    for component in (adapter.component_mapping or {}).values():
        if component.name is not None:
            component.name = component.name.replace("bert.", prefix, 1)


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


register()
