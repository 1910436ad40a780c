from __future__ import annotations

from pathlib import Path

import helpers
import pytest
import torch
import transformers as hf
from helpers import ARCHITECTURES, Cases
from papers.extractive.tiny import loaded, saved

from mechcore.models.running import n_parameters, named_weights
from mechcore.papers.extractive.deltas import restored


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gpt2-lm"])
def test_weights_are_counted_as_the_checkpoint_has_them(cases: Cases, architecture: str) -> None:
    case = cases.get(architecture)
    assert n_parameters(case.model) == sum(p.numel() for p in case.reference.parameters())


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gpt2-lm"])
def test_weights_share_no_memory(cases: Cases, architecture: str) -> None:
    model = cases.get(architecture).model
    weights = named_weights(model)
    assert not any("_original_component" in name for name in weights)
    with restored(model), torch.no_grad():
        for i, weight in enumerate(weights.values()):
            weight.fill_(i)
        assert all(bool((weight == i).all()) for i, weight in enumerate(weights.values()))


def test_the_parts_of_a_fused_matrix_are_named_and_not_the_whole(cases: Cases) -> None:
    weights = named_weights(cases.get("gpt2-lm").model)
    fused = cases.get("gpt2-lm").reference.transformer.h[1].attn.c_attn
    for i, part in enumerate("qkv"):
        for kind, size in (("weight", (16, 16)), ("bias", (16,))):
            found = weights[f"transformer.h.1.attn.{part}.{kind}"]
            whole = getattr(fused, kind)
            expected = whole[..., 16 * i : 16 * (i + 1)]
            assert found.numel() == expected.numel() == torch.Size(size).numel()
            assert torch.equal(found.flatten().sort()[0], expected.flatten().sort()[0])
    assert not any("qkv" in name or "c_attn" in name for name in weights)


def test_the_parts_of_a_fused_gate_are_named_and_not_the_whole(tmp_path: Path) -> None:
    config = hf.Phi3Config(
        vocab_size=40,
        pad_token_id=1,
        bos_token_id=None,
        eos_token_id=None,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=48,
        num_key_value_heads=2,
    )
    plain = hf.Phi3ForCausalLM(config)
    helpers.randomise(plain)
    model = loaded(saved(plain, tmp_path), "bridge", torch.float32)
    weights = named_weights(model)
    gate, into = plain.model.layers[0].mlp.gate_up_proj.weight.chunk(2)
    assert torch.equal(weights["model.layers.0.mlp.gate.weight"], gate)
    assert torch.equal(weights["model.layers.0.mlp.in.weight"], into)
    assert not any("gate_up_proj" in name for name in weights)
    assert n_parameters(model) == sum(p.numel() for p in plain.parameters())


@pytest.mark.hooked
def test_a_hooked_transformer_has_its_own_names(cases: Cases) -> None:
    model = helpers.hooked_transformer(cases.path("gpt2-lm"))
    assert set(named_weights(model)) == {name for name, _ in model.named_parameters()}
    assert "blocks.0.attn.W_Q" in named_weights(model)
