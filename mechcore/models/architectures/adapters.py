"""Adapters of mechcore's own families, registered with TransformerLens on import.

TransformerLens bridges language models only. The adapters are attributes of this module by the
name of the Hugging Face class, for the entry point group ``transformer_lens.architectures``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformer_lens.factories import architecture_adapter_factory as factory
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from mechcore.models.architectures.base import ARCHITECTURES, OWN


def register(adapters: Mapping[str, type[ArchitectureAdapter]]) -> None:
    """Make TransformerLens choose these adapters by architecture name.

    Its boot code consults a static table before it looks at entry points, and would otherwise
    read a BERT classifier as a masked language model with a random head.
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
