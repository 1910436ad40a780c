"""Transformers that run a circuit by construction, as ordinary Hugging Face checkpoints.

Every feature of the circuit is a residual-stream direction in a random orthogonal basis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedModel,
)

from mechcore.bench.circuit import ANSWER, SHARP, Circuit, Relay
from mechcore.models.checkpoint_files import without_bars
from mechcore.worlds.small_gpt2 import SPECIALS, word_tokenizer

Family: TypeAlias = Literal["encoder", "decoder"]

CLASSES = ("minus", "plus")
VALUES: Mapping[str, int] = {"[BOS]": 0, "no": -1, "yes": 1, "well": 0, "so": 0}
"""Values of the words: a slot is yes or no, a filler is well, and the last word is so."""
MOST_FILLERS = 2
"""Maximum number of words without a value between the slots and the last word."""
CONSTANT = 100.0
"""Value along the constant direction in models with norms."""
EPSILON = 1e8
"""Epsilon of norms without effect."""
_LEAST_UNITS = 16  # in an MLP
_POOLED = 1e-3
"""Scale of an encoder's answer in its pooler, where tanh is then linear."""


@dataclass(frozen=True)
class Form:
    """The transformer that runs a circuit.

    Attributes:
        family: ``"encoder"``, a BERT classifier that reads its first token, or ``"decoder"``, a
            GPT-2 classifier that reads its last.
        norms: whether its norms have an effect.
        noise: standard deviation of noise in the weights, relative to the copying weights.
        seed: seed of the basis and the noise.
    """

    family: Family = "encoder"
    norms: bool = True
    noise: float = 0.0
    n_layers: int = 3
    n_heads: int = 4
    d_model: int = 64
    seed: int = 0

    @property
    def d_head(self) -> int:
        """Width of a head."""
        return self.d_model // self.n_heads


@dataclass(frozen=True)
class _Weights:
    """Weights of all layers, as matrices that rows are multiplied by."""

    q: Float[Tensor, "layer head d_model d_head"]
    k: Float[Tensor, "layer head d_model d_head"]
    v: Float[Tensor, "layer head d_model d_head"]
    o: Float[Tensor, "layer head d_head d_model"]
    w_in: Float[Tensor, "layer d_model d_mlp"]
    b_in: Float[Tensor, "layer d_mlp"]
    w_out: Float[Tensor, "layer d_mlp d_model"]
    b_out: Float[Tensor, "layer d_model"]


def plant(circuit: Circuit, folder: str | Path, form: Form | None = None) -> None:
    """Write a classifier that runs a circuit, and its tokenizer, as a checkpoint."""
    model = planted_model(circuit, form or Form())
    with without_bars():
        model.save_pretrained(folder)
    tokenizer_of().save_pretrained(folder)


def tokenizer_of() -> Any:
    """The tokenizer of all planted transformers."""
    return word_tokenizer([word for word in VALUES if word not in SPECIALS], begins=True)


def planted_model(circuit: Circuit, form: Form) -> PreTrainedModel:
    """The classifier, see `plant`."""
    generator = torch.Generator().manual_seed(form.seed)
    n_positions = circuit.n_slots + 2 + MOST_FILLERS
    names = ["value", "constant", *(f"place {i}" for i in range(n_positions)), *circuit.features]
    basis = dict(zip(names, _basis(form.d_model, generator), strict=False))
    weights = _weights(circuit, form, basis, n_positions)
    if form.noise:
        _add_noise(weights, basis["constant"], form.noise, generator)
    tokens = torch.zeros(len(tokenizer_of()), form.d_model)
    for word, value in VALUES.items():
        tokens[tokenizer_of().convert_tokens_to_ids(word)] = value * basis["value"]
    constant = (CONSTANT if form.norms else 1.0) * basis["constant"]
    places = torch.stack([basis[f"place {i}"] for i in range(n_positions)]) + constant
    build = _encoder if form.family == "encoder" else _decoder
    model = build(form, weights, tokens, places, basis[ANSWER])
    scale = CONSTANT / form.d_model**0.5 if form.norms else EPSILON**0.5
    for name, parameter in model.named_parameters():
        if "LayerNorm" in name or ".ln_" in name:
            torch.nn.init.constant_(parameter, scale if name.endswith("weight") else 0.0)
    return model


def _basis(d_model: int, generator: torch.Generator) -> Float[Tensor, "direction d_model"]:
    """Orthonormal directions, all orthogonal to the one that norms remove."""
    start = torch.randn(d_model, d_model, generator=generator, dtype=torch.float64)
    start[:, 0] = 1
    basis, _ = torch.linalg.qr(start)
    return basis.T[1:].float()


def _weights(
    circuit: Circuit, form: Form, basis: Mapping[str, Tensor], n_positions: int
) -> _Weights:
    per_head = (form.n_layers, form.n_heads, form.d_model, form.d_head)
    n_units = [0] * form.n_layers
    for gate in circuit.gates:
        n_units[gate.layer] += len(gate.units)
    d_mlp = max(_LEAST_UNITS, *n_units)
    q, k, v = (torch.zeros(per_head) for _ in range(3))
    o = torch.zeros(per_head).transpose(2, 3).contiguous()
    w_in = torch.zeros(form.n_layers, form.d_model, d_mlp)
    w_out = w_in.transpose(1, 2).contiguous()
    weights = _Weights(
        q, k, v, o, w_in, torch.zeros(form.n_layers, d_mlp), w_out,
        torch.zeros(form.n_layers, form.d_model),
    )  # fmt: skip
    ask = basis["constant"] / (CONSTANT if form.norms else 1.0)
    sharp = SHARP * form.d_head**0.5
    places = torch.stack([basis[f"place {i}"] for i in range(n_positions)], dim=1)
    for planted in (*circuit.heads, *circuit.distractors):
        assert planted.head.head is not None
        at = planted.head.layer, planted.head.head
        o[at][0] = sum(w * basis[name] for name, w in planted.into.items())
        if isinstance(planted, Relay):
            v[at][:, 0] = basis[planted.source]
            q[at][:, :n_positions] = sharp * places
            k[at][:, :n_positions] = places
            continue
        v[at][:, 0] = basis["value"]
        q[at][:, 0] = sharp * ask
        k[at][:, 0] = places[:, planted.slot + 1]
        if planted.unless is not None:
            q[at][:, 1] = 2 * sharp * basis[planted.unless]
            k[at][:, 1] = places[:, 0]
    used = [0] * form.n_layers
    for gate in circuit.gates:
        out = sum(w * basis[name] for name, w in gate.into.items())
        for sign, threshold, weight in gate.units:
            unit, used[gate.layer] = used[gate.layer], used[gate.layer] + 1
            w_in[gate.layer, :, unit] = sign * sum(basis[name] for name in gate.inputs)
            weights.b_in[gate.layer, unit] = -threshold
            w_out[gate.layer, unit] = weight * out
        weights.b_out[gate.layer] += gate.constant * out
    return weights


def _add_noise(
    weights: _Weights, constant: Tensor, size: float, generator: torch.Generator
) -> None:
    """Add noise to all weights; readers of the stream stay blind to the constant direction."""
    for name, matrix in vars(weights).items():
        noise = size * torch.randn(matrix.shape, generator=generator)
        if name in ("q", "k", "v", "w_in"):
            along = torch.einsum("...ij,i->...j", noise, constant)
            noise -= constant[:, None] * along[..., None, :]
        matrix += noise


def _encoder(
    form: Form, weights: _Weights, tokens: Tensor, places: Tensor, answer: Tensor
) -> PreTrainedModel:
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=form.d_model,
        num_hidden_layers=form.n_layers,
        num_attention_heads=form.n_heads,
        intermediate_size=weights.w_in.shape[-1],
        hidden_act="relu",
        max_position_embeddings=len(places),
        type_vocab_size=1,
        layer_norm_eps=1e-12 if form.norms else EPSILON,
        **_NAMES,
    )
    model = _without_weights(BertForSequenceClassification(config))
    with torch.no_grad():
        embeddings = model.bert.embeddings
        embeddings.word_embeddings.weight.copy_(tokens)
        embeddings.position_embeddings.weight.copy_(places)
        for i, layer in enumerate(model.bert.encoder.layer):
            attention = layer.attention
            for name, matrix in (("query", weights.q), ("key", weights.k), ("value", weights.v)):
                getattr(attention.self, name).weight.copy_(matrix[i].transpose(1, 2).flatten(0, 1))
            attention.output.dense.weight.copy_(weights.o[i].flatten(0, 1).T)
            layer.intermediate.dense.weight.copy_(weights.w_in[i].T)
            layer.intermediate.dense.bias.copy_(weights.b_in[i])
            layer.output.dense.weight.copy_(weights.w_out[i].T)
            layer.output.dense.bias.copy_(weights.b_out[i])
        model.bert.pooler.dense.weight[0] = _POOLED * answer
        model.classifier.weight[:, 0] = torch.tensor([-0.5, 0.5]) / _POOLED
    return model


def _decoder(
    form: Form, weights: _Weights, tokens: Tensor, places: Tensor, answer: Tensor
) -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=len(tokens),
        n_positions=len(places),
        n_embd=form.d_model,
        n_layer=form.n_layers,
        n_head=form.n_heads,
        n_inner=weights.w_in.shape[-1],
        activation_function="relu",
        layer_norm_epsilon=1e-12 if form.norms else EPSILON,
        bos_token_id=None,
        eos_token_id=None,
        **_NAMES,
    )
    model = _without_weights(GPT2ForSequenceClassification(config))
    with torch.no_grad():
        base = model.transformer
        base.wte.weight.copy_(tokens)
        base.wpe.weight.copy_(places)
        for i, layer in enumerate(base.h):
            parts = [
                matrix[i].transpose(0, 1).flatten(1) for matrix in (weights.q, weights.k, weights.v)
            ]
            layer.attn.c_attn.weight.copy_(torch.cat(parts, dim=1))
            layer.attn.c_proj.weight.copy_(weights.o[i].flatten(0, 1))
            layer.mlp.c_fc.weight.copy_(weights.w_in[i])
            layer.mlp.c_fc.bias.copy_(weights.b_in[i])
            layer.mlp.c_proj.weight.copy_(weights.w_out[i])
            layer.mlp.c_proj.bias.copy_(weights.b_out[i])
        model.score.weight.copy_(torch.stack([-answer, answer]) / 2)
    return model


_NAMES: dict[str, Any] = {
    "pad_token_id": 0,
    "id2label": dict(enumerate(CLASSES)),
    "label2id": {name: i for i, name in enumerate(CLASSES)},
}


def _without_weights(model: PreTrainedModel) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model.eval()


def token_values(words: list[list[str]]) -> Float[np.ndarray, "text pos"]:
    """Values of all tokens, 0 for padding; each row starts with the beginning token."""
    rows = [[0, *(VALUES[word] for word in text)] for text in words]
    width = max(map(len, rows))
    return np.array([row + [0] * (width - len(row)) for row in rows], dtype=float)
