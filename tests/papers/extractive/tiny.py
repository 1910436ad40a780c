"""Tiny random decoders with weights before and after a change, and facts that they can read."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import helpers
import torch
import transformers as hf
from torch import Tensor, nn

from mechcore.models import load_model
from mechcore.models.protocol import named_weights
from mechcore.papers.extractive.encoded import EncodedFacts, encode_facts
from mechcore.papers.extractive.facts import Facts
from mechcore.papers.extractive.weights import WeightDelta, trainable_names

KINDS = ("bridge", "llama", "hooked")
FACTS = Facts(
    "tiny facts",
    prompts=(
        "the cat saw a",
        "the dog often saw a",
        "the bird never saw a",
        "the dog and cat saw a",
        "the yes saw a",
    ),
    completions=("bird ran", "cat", "dog ran never", "yes", "bird ran"),
    subjects=("cat", "dog often", "bird never", "dog and cat", "yes"),
)
"""Five prompts of 5 to 7 tokens, two with the same answer."""


def facts(rows: tuple[int, ...] = (0, 1, 2, 3, 4)) -> EncodedFacts:
    parts = {
        name: tuple(getattr(FACTS, name)[row] for row in rows)
        for name in ("prompts", "completions", "subjects")
    }
    return encode_facts(replace(FACTS, **parts), helpers.word_tokenizer(segments=False))


def hf_matrices(plain: Any, layer: int) -> dict[str, Tensor]:
    """[in, out] of every matrix of a Hugging Face model's layer."""
    if plain.config.model_type == "gpt2":
        block = plain.transformer.h[layer]
        q, k, v = block.attn.c_attn.weight.split(helpers.D_MODEL, dim=1)
        others = {"O": block.attn.c_proj, "in": block.mlp.c_fc, "out": block.mlp.c_proj}
        return {"Q": q, "K": k, "V": v} | {part: module.weight for part, module in others.items()}
    block = plain.model.layers[layer]
    names = {part: f"self_attn.{part.lower()}_proj" for part in "QKVO"}
    names |= {"in": "mlp.up_proj", "gate": "mlp.gate_proj", "out": "mlp.down_proj"}
    return {part: block.get_submodule(name).weight.T for part, name in names.items()}


def llama_language_model(seed: int = 0, **changes: Any) -> Any:
    """A tiny Llama: 4 heads on 2 key-value heads, RMSNorm, no biases."""
    config = hf.LlamaConfig(
        **{"vocab_size": helpers.VOCABULARY, "pad_token_id": helpers.PAD, "bos_token_id": None}
        | {"eos_token_id": None, "attn_implementation": "eager", "hidden_size": 16}
        | {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        | {"head_dim": 8, "intermediate_size": 24, "max_position_embeddings": 48}
        | changes
    )
    model = hf.LlamaForCausalLM(config)
    helpers.randomise(model, seed)
    return model.eval()


def changed(model: nn.Module, scale: float, matrices_only: bool) -> Any:
    """A copy with random changes of its matrices alone, or of all weights."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            noise = scale * torch.randn(parameter.shape, generator=generator)
            layers = (".h." in name or ".layers." in name) and parameter.ndim == 2
            if layers or not matrices_only:
                # HookedTransformer is loaded through float32.
                parameter.copy_((parameter + noise).float())
    return other


def saved(model: Any, path: Path) -> Path:
    model.save_pretrained(path)
    helpers.word_tokenizer(segments=False).save_pretrained(path)
    return path


def loaded(path: Path, kind: str, dtype: torch.dtype = torch.float64) -> Any:
    return load_model(path, backend="hooked" if kind == "hooked" else "bridge", dtype=dtype)


def difference(model: Any, other: Any) -> WeightDelta:
    """Weights of another model of the same kind minus those of a model."""
    theirs = named_weights(other)
    return WeightDelta({n: theirs[n].detach() - w for n, w in named_weights(model).items()})


def noise_of(model: Any, scale: float, names: Iterable[str] | None = None) -> WeightDelta:
    """Random changes of some weights, by default of all."""
    generator, weights = torch.Generator().manual_seed(0), named_weights(model)
    names = weights if names is None else names
    return WeightDelta(
        {name: scale * torch.randn(weights[name].shape, generator=generator) for name in names}
    )


def scaled(factor: float, delta: WeightDelta) -> WeightDelta:
    return WeightDelta({name: factor * tensor for name, tensor in delta.items()})


def other_decoder(architecture: str, folder: Path, **sizes: Any) -> Any:
    """A tiny random bridge of another architecture, by its name in transformers."""
    config = getattr(hf, f"{architecture}Config")(
        **{"vocab_size": 40, "pad_token_id": 1, "bos_token_id": None, "eos_token_id": None}
        | {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 48}
        | {"attn_implementation": "eager"}
        | sizes
    )
    plain = getattr(hf, f"{architecture}ForCausalLM")(config)
    helpers.randomise(plain)
    return loaded(saved(plain, folder), "bridge", torch.float32)


def hooked_decoder(**changes: Any) -> Any:
    """A tiny random HookedTransformer (TransformerLens 3)."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    sizes = {"n_layers": 2, "n_heads": 4, "d_model": 16, "d_head": 4, "d_mlp": 24, "d_vocab": 40}
    others = {"n_ctx": 48, "act_fn": "gelu", "normalization_type": "LN", "device": "cpu"}
    model = HookedTransformer(HookedTransformerConfig(**sizes | others | changes))
    helpers.randomise(model)
    return model.eval()


@dataclass(frozen=True, eq=False)
class Decoder:
    """A model in float64, changes of its weights, and the Hugging Face models behind them.

    Changes are of the layers' matrices or of every weight. Llama computes norms and rotations in
    float32 whatever the weights are.
    """

    kind: str
    model: Any
    reference: Any
    references_after: Mapping[str, Any]
    of_matrices: WeightDelta
    of_all: WeightDelta
    exact: bool
    names: list[str] = field(default_factory=list)

    @property
    def tolerance(self) -> float:
        return 1e-8 if self.exact else 1e-4

    @property
    def step(self) -> float:
        """For finite differences."""
        return 1e-5 if self.exact else 1e-2


def decoder(kind: str, folder: Path) -> Decoder:
    """Load a checkpoint and two changed ones; deltas are differences of what was loaded."""
    plain = llama_language_model() if kind == "llama" else helpers.gpt2_language_model()
    plain = plain.double()
    after = {name: changed(plain, 0.05, name == "matrices") for name in ("matrices", "all")}
    model = loaded(saved(plain, folder / "before"), kind)
    deltas = {
        name: difference(model, loaded(saved(edited, folder / name), kind))
        for name, edited in after.items()
    }
    trainable = trainable_names(model)
    return Decoder(
        kind,
        model,
        plain,
        after,
        deltas["matrices"].only(trainable),
        deltas["all"],
        kind != "llama",
        trainable,
    )


def last_tokens(data: EncodedFacts) -> list[int]:
    return [len(ids) - 1 for ids in data.prompt_ids]


def padded(values: Tensor, length: int) -> Tensor:
    return nn.functional.pad(values, (0, length - values.shape[-1]))
