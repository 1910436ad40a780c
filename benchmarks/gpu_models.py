"""Classifiers of published shapes with random weights, for benchmarks/gpu.py."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers as hf
from large_models import SHAPES as DECODERS
from large_models import Shape
from shapes import CLASSES, examples

from mechcore.data.encoding import EncodedExamples
from mechcore.models import load_model
from mechcore.models.devices import DTYPES
from mechcore.models.loading import _bridge

NAMES = {
    "id2label": dict(enumerate(CLASSES)),
    "label2id": {name: i for i, name in enumerate(CLASSES)},
}


@dataclass(frozen=True)
class Case:
    """A classifier to sweep.

    Attributes:
        config: of the Hugging Face model.
        dtype: of its weights.
        examples: number of examples.
        sample: sets that the loops run.
        rounds: number of timed rounds.
        in_full: whether to include pairs, half precision and pruning.
    """

    config: Any
    dtype: str
    examples: int
    sample: int
    rounds: int
    in_full: bool = False

    def model(self, device: str, attention: str | None = None) -> Any:
        """The reproducible Hugging Face model; None: transformers' default attention."""
        torch.manual_seed(0)
        with torch.device(device):
            made = hf.AutoModelForSequenceClassification.from_config(
                self.config, dtype=DTYPES[self.dtype], attn_implementation=attention
            )
        return made.eval().requires_grad_(False)

    def bridge(self, device: str) -> Any:
        """What mechcore works on."""
        made = self.model(device, "eager")
        return load_model(_bridge("random", type(made).__name__, made, None))

    def data(self) -> EncodedExamples:
        encoded = examples(self.examples, vocabulary=self.config.vocab_size)
        types = encoded.token_type_ids if self.config.model_type == "bert" else None
        return replace(encoded, token_type_ids=types)


def bert(**changes: Any) -> Any:
    return hf.BertConfig(**NAMES, **changes)


def gpt2(**changes: Any) -> Any:
    return hf.GPT2Config(**NAMES, pad_token_id=0, **changes)


def llama(shape: Shape) -> Any:
    config = shape.config()
    config.update({**NAMES, "pad_token_id": 0})
    return config


LLAMA_8B = Shape(32, 4096, 14336, 32, 8, 128256, tied=False, d_head=128)
SMALL = Shape(2, 32, 64, 4, 2, 1100, d_head=8)


def cases(quick: bool) -> dict[str, Case]:
    """Models by name, most important first."""
    if quick:
        sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 1100}
        small: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 1100}
        return {
            "BERT base": Case(bert(**sizes), "float32", 4, 2, 1, in_full=True),
            "GPT-2": Case(gpt2(**small), "float32", 4, 2, 1),
            "Llama 3.2 1B": Case(llama(SMALL), "float32", 4, 2, 1),
            "Llama 3.1 8B": Case(llama(SMALL), "bfloat16", 4, 2, 1),
        }
    return {
        "BERT base": Case(bert(), "float32", 256, 6, 2, in_full=True),
        "Llama 3.1 8B": Case(llama(LLAMA_8B), "bfloat16", 8, 4, 1),
        "GPT-2": Case(gpt2(), "float32", 256, 6, 2),
        "Llama 3.2 1B": Case(llama(DECODERS["Llama-3.2-1B"]), "bfloat16", 32, 6, 1),
    }
