"""Adapters for TransformerBridge, registered with TransformerLens on import.

Those of mechcore's own families are attributes named after the Hugging Face class, for the entry
point group ``transformer_lens.architectures``. All are shielded from padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformer_lens.factories import architecture_adapter_factory as factory
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import LinearBridge
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from mechcore.errors import InputError
from mechcore.models.architectures.base import ARCHITECTURES, OWN, Architecture
from mechcore.models.batches import is_arranged, real_tokens_first


def derived(
    family: type[Architecture], language_model: str, name: str
) -> type[ArchitectureAdapter] | None:
    """The adapter of a decoder's classifier, derived from that of its language model, if any."""
    base: Any = factory.SUPPORTED_ARCHITECTURES.get(language_model)
    if base is None:
        return None

    class Derived(base):
        def __init__(self, cfg: Any) -> None:
            super().__init__(cfg)
            parts: dict[str, Any] = self.component_mapping
            parts.pop("unembed", None)
            parts.update({key: LinearBridge(name=at) for key, at in family.head.items()})

        def prepare_model(self, hf_model: Any) -> None:
            """Shield a classifier from padding."""
            super().prepare_model(hf_model)
            shield(hf_model, causal=True)

    Derived.__name__ = Derived.__qualname__ = name
    return Derived


def shield(hf_model: Any, causal: bool) -> None:
    """Normalise padded batches on input; raises `InputError` if the model is not a classifier."""
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
        if mask is None or ids is None or ids.is_floating_point():
            return args, kwargs
        known = is_arranged.get() and pad_id is not None
        if not known and bool((mask != 0).all()):
            return args, kwargs
        if pad_id is None:
            raise InputError(
                "model: a padded batch needs config.pad_token_id, which is not set; "
                "set it to the tokenizer's pad_token_id"
            )
        ids = ids.masked_fill(mask == 0, pad_id)
        if not (causal or known):
            rows = {"input_ids": ids, "attention_mask": mask}
            if kwargs.get("token_type_ids") is not None:
                rows["token_type_ids"] = kwargs["token_type_ids"]
            rows, moved = real_tokens_first(rows, mask)
            ids = rows.pop("input_ids")
            kwargs = {**kwargs, **rows}
            if moved:
                kwargs["position_ids"] = None  # those of the padded layout no longer apply
        return ((ids, *args[1:]), kwargs) if args else (args, {**kwargs, "input_ids": ids})

    hf_model.register_forward_pre_hook(normalise, with_kwargs=True)


def register(adapters: Mapping[str, type[ArchitectureAdapter]]) -> None:
    """Make TransformerLens choose these adapters by architecture name.

    Its boot code consults a static table before entry points, and would otherwise load a BERT
    classifier as a masked language model with a random head.
    """
    factory.ArchitectureAdapterFactory.discover_entry_points()
    for name, adapter in adapters.items():
        factory.SUPPORTED_ARCHITECTURES.setdefault(name, adapter)
        if name not in factory.ArchitectureAdapterFactory._adapters:
            factory.ArchitectureAdapterFactory.register_adapter(name, adapter)


_OWN: dict[str, Any] = {
    name: ARCHITECTURES[kind].adapter(name, kind)
    for kind in OWN
    for name in [MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES[kind]]
}

globals().update(_OWN)
register(_OWN)
