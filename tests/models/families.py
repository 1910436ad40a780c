"""Tiny classifiers of every family that tests load, and the table of them for the documentation.

    python tests/models/families.py

writes ``docs/tables/models.csv``; `test_families` makes sure that it is up to date.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers as hf
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS,
)

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = REPOSITORY / "docs" / "tables" / "models.csv"
if __name__ == "__main__":
    sys.path[:0] = [str(REPOSITORY / "tests")]

import helpers  # noqa: E402

from mechcore.models import load_model  # noqa: E402
from mechcore.models.architectures.base import ARCHITECTURES, Architecture  # noqa: E402

REFUSED = {
    "StableLm": "TransformerLens bridges it with other logits",
    "OpenAIGPT": "TransformerLens bridges it with other logits",
    "HunYuanDenseV1": "TransformerLens 3.9 bridges it with other logits; with 4.3 it loads",
}
LLAMA = ("layers", "self_attn.o_proj", "mlp.down_proj")
BLOOM = ("h", "self_attention.dense", "mlp.dense_4h_to_h")


@dataclass(frozen=True)
class Family:
    """A tiny configuration, and where Hugging Face has the layers, and W_O and W_out in them.

    Attributes:
        own: settings of the configuration.
        places: of the layers in the base model, and of W_O and W_out in a layer.
        shared: whether layers share their weights.
        experts: whether MLPs are experts, which have no W_out of their own.
        projected: whether queries, keys and values have hook points.
        between: whether something stands between the first two layers.
        pre_norm: whether layers read what they normalise.
    """

    own: dict[str, Any] = field(default_factory=dict)
    places: tuple[str, str, str] = helpers.PLACES["bert"]
    shared: bool = False
    experts: bool = False
    projected: bool = True
    between: bool = False
    pre_norm: bool = False


WIDE = {"intermediate_size": 24}
DEBERTA_V3 = WIDE | {"relative_attention": True, "position_buckets": 4, "share_att_key": True}
DEBERTA_V3 |= {"norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p"}
DEBERTA_V3 |= {"position_biased_input": False, "type_vocab_size": 0}
MODERN = {**WIDE, "local_attention": 6, "cls_token_id": 2, "bos_token_id": 2, "eos_token_id": 3}
IN_MODERN = ("layers", "attn.Wo", "mlp.Wo")
ENCODERS = {
    "XLMRoberta": Family({**WIDE, "type_vocab_size": 1}),
    "Camembert": Family({**WIDE, "type_vocab_size": 1}),
    "Electra": Family({**WIDE, "embedding_size": 8}),
    "DistilBert": Family(
        {"hidden_dim": 24}, ("transformer.layer", "attention.out_lin", "ffn.lin2")
    ),
    "MPNet": Family(WIDE, ("encoder.layer", "attention.attn.o", "output.dense")),
    "Albert": Family(
        {**WIDE, "embedding_size": 8, "num_hidden_groups": 2},
        (
            "encoder.albert_layer_groups",
            "albert_layers.0.attention.dense",
            "albert_layers.0.ffn_output",
        ),
        shared=True,
    ),
    "DebertaV2": Family(DEBERTA_V3),
    "DebertaV2 with a convolution": Family(
        {**DEBERTA_V3, "conv_kernel_size": 3, "conv_act": "gelu"}, between=True
    ),
    "DebertaV2 with matrices of its own": Family(
        {**DEBERTA_V3, "share_att_key": False, "position_biased_input": True, "type_vocab_size": 2}
        | {"norm_rel_ebd": "none", "position_buckets": -1, "embedding_size": 8}
    ),
    "Deberta": Family(DEBERTA_V3, projected=False),
    "ModernBert": Family(MODERN, IN_MODERN, pre_norm=True),
    "ModernBert of means": Family(
        {**MODERN, "classifier_pooling": "mean", "mlp_bias": True, "norm_bias": True},
        IN_MODERN,
        pre_norm=True,
    ),
}
"""Encoders with a file of their own, beside those of `helpers.ENCODERS`."""

TWO = {**WIDE, "num_key_value_heads": 2}
SHARED = {**TWO, "head_dim": 4}
EXPERTS = {**SHARED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
DECODERS = {
    **{name: Family(SHARED, LLAMA) for name in ("Arcee", "Exaone4", "Gemma", "Glm", "Glm4")},
    **{name: Family(SHARED, LLAMA) for name in ("Nemotron", "Olmo3", "Qwen3", "SeedOss")},
    **{name: Family(TWO, LLAMA) for name in ("Olmo", "Olmo2", "Phi3", "SmolLM3")},
    "Bloom": Family({}, BLOOM),
    "Falcon": Family({}, BLOOM),
    "GPTBigCode": Family({"n_inner": 24}, ("h", "attn.c_proj", "mlp.c_proj")),
    "GPTJ": Family({"rotary_dim": 2, "n_inner": 24}, ("h", "attn.out_proj", "mlp.fc_out")),
    "GPTNeo": Family(
        {"attention_types": [[["global", "local"], 1]], **WIDE},
        ("h", "attn.attention.out_proj", "mlp.c_proj"),
    ),
    "GPTNeoX": Family(WIDE, ("layers", "attention.dense", "mlp.dense_4h_to_h")),
    "Gemma2": Family({**SHARED, "sliding_window": 48}, LLAMA),
    "Gemma3Text": Family({**SHARED, "sliding_window": 48}, LLAMA),
    "Mixtral": Family(
        {**SHARED, "num_local_experts": 4, "num_experts_per_tok": 2}, LLAMA, experts=True
    ),
    "Mpt": Family({}, ("blocks", "attn.out_proj", "ffn.down_proj")),
    "OPT": Family(
        {"ffn_dim": 24, "word_embed_proj_dim": 16},
        ("decoder.layers", "self_attn.out_proj", "fc2"),
    ),
    "Phi": Family(WIDE, ("layers", "self_attn.dense", "mlp.fc2")),
    "Qwen2Moe": Family({**EXPERTS, "shared_expert_intermediate_size": 24}, LLAMA, experts=True),
    "Qwen3Moe": Family(EXPERTS, LLAMA, experts=True),
    "Starcoder2": Family(TWO, ("layers", "self_attn.o_proj", "mlp.c_proj")),
}
"""Decoders without a file of their own."""

FAMILIES = ENCODERS | DECODERS


def class_of(name: str, ending: str) -> Any:
    """A class of Hugging Face's for a family."""
    return getattr(hf, name.split()[0] + ending)


def kind_of(name: str) -> str:
    """The ``model_type`` of a family."""
    return str(class_of(name, "Config").model_type)


for _name, _family in FAMILIES.items():
    helpers.PLACES[kind_of(_name)] = _family.places


def config_of(name: str, **changes: Any) -> Any:
    """A tiny configuration with three classes and a padding id that is not 0."""
    labels = dict(enumerate(helpers.CLASSES))
    settings = {"hidden_size": helpers.D_MODEL, "num_attention_heads": helpers.N_HEADS}
    settings |= {"id2label": labels, "label2id": {label: i for i, label in labels.items()}}
    settings |= {"vocab_size": helpers.VOCABULARY, "pad_token_id": helpers.PAD}
    settings |= {"num_hidden_layers": 3, "max_position_embeddings": 48}
    if name not in ENCODERS:
        settings |= {"num_hidden_layers": helpers.N_LAYERS}
        settings |= {"bos_token_id": None, "eos_token_id": None}
    own = FAMILIES[name].own if name in FAMILIES else {}
    return class_of(name, "Config")(**{**settings, **own, **changes})


def save(model: Any, path: Path) -> Path:
    """Randomise a Hugging Face model, and save it with a tokenizer."""
    helpers.randomise(model)
    model.save_pretrained(path)
    segments = model.config.model_type in ("electra", "albert")
    helpers.word_tokenizer(segments=segments).save_pretrained(path)
    return path


def classifier(name: str, path: Path, **changes: Any) -> Any:
    """A tiny classifier, saved and loaded."""
    return load_model(
        save(class_of(name, "ForSequenceClassification")(config_of(name, **changes)), path)
    )


def plain(path: Path, kind: Any = hf.AutoModelForSequenceClassification, **options: Any) -> Any:
    """A checkpoint as Hugging Face reads it."""
    return kind.from_pretrained(path, attn_implementation="eager", **options).eval()


class Families(helpers.Cases):
    """Loads the classifier of every family once, also those of `helpers.ARCHITECTURES`."""

    def path(self, architecture: str) -> Path:
        """A checkpoint directory."""
        path = self.folder / architecture
        if architecture in FAMILIES and not path.exists():
            save(class_of(architecture, "ForSequenceClassification")(config_of(architecture)), path)
        return path if architecture in FAMILIES else super().path(architecture)


@torch.no_grad()
def attentions(reference: Any, row: torch.Tensor) -> torch.Tensor:
    """Hugging Face's attention of one unpadded text, [layer, head, query, key]."""
    return torch.cat(reference(row[None], output_attentions=True).attentions)


def table() -> pd.DataFrame:
    """One row per family: what it loads as, its sweeps, exports."""
    rows = []
    for kind in dict.fromkeys([*helpers.ARCHITECTURES, *map(kind_of, FAMILIES)]):
        family = ARCHITECTURES[kind] if kind in ARCHITECTURES else Architecture  # noqa: SIM401
        rows.append(
            {
                "family": CLASSIFIERS[kind].removesuffix("ForSequenceClassification"),
                "kind": "encoder" if family.encoder else "decoder",
                "loads_as": "classifier, "
                + ("without a head" if family.encoder else "language model"),
                "sweeps": "restart" if family.stack is Architecture.stack else "tree",
                "export": "no" if family.projections is None else "yes",
                "training": "yes",
            }
        )
    return pd.DataFrame(rows).sort_values(["kind", "family"], key=lambda c: c.str.lower())


if __name__ == "__main__":
    table().to_csv(TABLE, index=False)
